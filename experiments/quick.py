"""Which of the four of vllm-omni#1378 shows on two cores within five minutes, and in what?

At 70 text tokens only prefill-only hidden states can show in time: the lists that shallow merge no longer visits have
not grown yet, async save and idle skip move milliseconds of a trial of seconds. Counters and spans show them all.
"""

from pathlib import Path

from omnilab.experiment.experiment import Experiment
from omnilab.workload import Workload

FOUR = ("async_save", "prefill_only_hidden_states", "idle_skip", "shallow_merge")

EXPERIMENT = Experiment(
    name="quick",
    model="thin",
    base="BEFORE_1378",
    variants={
        "BEFORE_1378": (),
        **{name: (name,) for name in FOUR},
        "prefill-only and shallow merge": ("prefill_only_hidden_states", "shallow_merge"),
        "all four": FOUR,
    },
    workload=Workload.random(num_prompts=1, input_len=2500, output_len=70, frames=70),
    blocks=5,
    gate_prompts=Path(__file__).with_name("prompts.jsonl"),
)
