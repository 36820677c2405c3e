"""What does each of the four of vllm-omni#1378 bring on that change's own test: 2,500 in, 900 out, one request?

The change was merged with one run of this with all four on. Here is each alone, the 2 x 2 of prefill-only and shallow
merge (the lists that the one no longer visits are no longer sent by the other), and all four. Expect an hour on two
cores; name fewer blocks for a first look.
"""

from pathlib import Path

from omnilab.experiment.experiment import Experiment
from omnilab.workload import Workload

FOUR = ("async_save", "prefill_only_hidden_states", "idle_skip", "shallow_merge")

EXPERIMENT = Experiment(
    name="seed",
    model="thin",
    base="BEFORE_1378",
    variants={
        "BEFORE_1378": (),
        **{name: (name,) for name in FOUR},
        "prefill-only and shallow merge": ("prefill_only_hidden_states", "shallow_merge"),
        "all four": FOUR,
    },
    workload=Workload.random(num_prompts=1, input_len=2500, output_len=900),
    blocks=5,
    gate_prompts=Path(__file__).with_name("prompts.jsonl"),
)
