"""Do the four pay under load? One, four and eight requests together, 32 as well on a GPU; underruns and memory beside.

On a machine with fewer cores than busy processes, requests together show what the host can still do beside the
forwards, not what a GPU would serve.
"""

from pathlib import Path

from omnilab.experiment.experiment import Experiment
from omnilab.experiment.plan import uses_cuda
from omnilab.experiment.sweep import Sweep
from omnilab.workload import Workload

FOUR = ("async_save", "prefill_only_hidden_states", "idle_skip", "shallow_merge")


def at(concurrency: int) -> Experiment:
    """As many requests as run together."""
    return Experiment(
        name="load",
        model="thin",
        base="BEFORE_1378",
        variants={"BEFORE_1378": (), **{name: (name,) for name in FOUR}, "all four": FOUR},
        workload=Workload.random(
            num_prompts=concurrency, input_len=1000, output_len=60, frames=60, max_concurrency=concurrency
        ),
        blocks=5,
        gate_prompts=Path(__file__).with_name("prompts.jsonl"),
    )


TOGETHER = (1, 4, 8, 32) if uses_cuda("auto") else (1, 4, 8)
EXPERIMENT = Sweep(
    name="load",
    experiments={f"concurrency {n}": at(n) for n in TOGETHER},
    axes={"requests together": {f"concurrency {n}": n for n in TOGETHER}},
)
