"""Is one server faster than another on the same requests, and is its output the same?

The arms come from the command line (`--arm NAME=COMMAND`, twice or more), or from a file like this one with
`arms={"main": Arm(command=..., folder=..., environment=...), ...}`. Without them it compares omnilab's own server at
two recipes, on the small `tiny`, which shows the protocol and not a speed.
"""

import sys

from omnilab.experiment.arms import Arm
from omnilab.experiment.experiment import Experiment
from omnilab.workload import Workload


def served(recipe: str) -> Arm:
    """Our own server with a named recipe."""
    return Arm(command=f"{sys.executable} -m omnilab.serve --model tiny --recipe {recipe} --port {{port}}")


EXPERIMENT = Experiment(
    name="servers",
    arms={"BEFORE_1378": served("BEFORE_1378"), "AFTER_1378": served("AFTER_1378")},
    workload=Workload.random(num_prompts=4, input_len=100, output_len=30, frames=60),
    primary="e2el_ms",
)
