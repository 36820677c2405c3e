"""What do the four bring on the lab's pipeline, at the folder and lengths of `vllm_omni.py`, to be read beside it?

The baseline is what preceded vllm-omni#1378, where that of `vllm_omni.py` is vLLM-Omni 0.30 with the four taken back.
"""

from pathlib import Path

from omnilab.experiment.experiment import Experiment
from omnilab.workload import Workload

FOUR = ("async_save", "prefill_only_hidden_states", "idle_skip", "shallow_merge")

EXPERIMENT = Experiment(
    name="same-lengths",
    model="parity",
    base="BEFORE_1378",
    variants={
        "BEFORE_1378": (),
        **{name: (name,) for name in FOUR},
        "prefill-only + shallow merge": ("prefill_only_hidden_states", "shallow_merge"),
        "all four": FOUR,
    },
    workload=Workload.random(num_prompts=1, input_len=484, output_len=900, frames=909),
    primary="e2el_ms",
    gate_prompts=Path(__file__).with_name("prompts.jsonl"),
)
