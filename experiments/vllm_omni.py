"""What do the four bring on the real vLLM-Omni, alone, two together and all on, at the lengths where they show?

484 tokens in, 900 out and 909 frames, with a worker process a stage. The server runs without a GPU, on `parity`: times
of lists and of the host are its own, times of the network are not a GPU's. `make vllm-omni` builds its environment.
"""

from pathlib import Path

from omnilab.experiment.experiment import Experiment
from omnilab.vllm_omni.engine import VllmOmni
from omnilab.workload import Workload

FOUR = ("async_save", "prefill_only_hidden_states", "idle_skip", "shallow_merge")

EXPERIMENT = Experiment(
    name="vllm-omni",
    subject=VllmOmni(),
    variants={
        "all off": (),
        **{name: (name,) for name in FOUR},
        "prefill-only + shallow merge": ("prefill_only_hidden_states", "shallow_merge"),
        "all four": FOUR,
    },
    workload=Workload.random(num_prompts=1, input_len=484, output_len=900, frames=909),
    primary="e2el_ms",
    gate_prompts=Path(__file__).with_name("prompts_without_images.jsonl"),
)
