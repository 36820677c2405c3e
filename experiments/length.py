"""How does each toggle's effect grow with the prompt and with the answer, and is it the law that it should follow?

Two lines through one point: prompts of 500 to 16,000 tokens at 60 out, answers of 50 to 900 at 500 in. Counts stand
beside what the lengths alone predict. Text and frames are equal in number: only steps that take a chunk matter here.
"""

from pathlib import Path

from omnilab.experiment.experiment import Experiment
from omnilab.experiment.sweep import Sweep
from omnilab.workload import Workload

FOUR = ("async_save", "prefill_only_hidden_states", "idle_skip", "shallow_merge")
POINTS = ((500, 60), (2500, 60), (8000, 60), (16000, 60), (500, 300), (500, 900))


def at(input_len: int, output_len: int) -> Experiment:
    """The four, one at a time and together, at one point."""
    return Experiment(
        name="length",
        model="thin",
        base="BEFORE_1378",
        variants={
            "BEFORE_1378": (),
            **{name: (name,) for name in FOUR},
            "override_rows": ("override_rows",),
            "all four": FOUR,
        },
        workload=Workload.random(num_prompts=1, input_len=input_len, output_len=output_len, frames=output_len),
        blocks=5,
        gate_prompts=Path(__file__).with_name("prompts.jsonl"),
    )


EXPERIMENT = Sweep(
    name="length",
    experiments={f"{p} in, {t} out": at(p, t) for p, t in POINTS},
    axes={
        "prompt tokens, 60 out": {f"{p} in, {t} out": p for p, t in POINTS if t == 60},
        "text tokens, 500 in": {f"{p} in, {t} out": t for p, t in POINTS if p == 500},
    },
)
