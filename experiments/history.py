"""What did each release's changes cost or bring on this pipeline? The named recipes, each against the one before it.

LIKE_0_16 is AFTER_1378 with two changes that nobody listed: a receive loop that spins and a payload attached to every
step. Its row shows what these took back of what the four had brought. Costs are reproduced, not defects.
"""

from pathlib import Path

from omnilab import recipes
from omnilab.experiment.design import Variant
from omnilab.experiment.experiment import Experiment
from omnilab.workload import Workload

ORDER = ("AFTER_1378", "LIKE_0_16", "LIKE_0_30", "BEST")

EXPERIMENT = Experiment(
    name="history",
    model="thin",
    base="BEFORE_1378",
    variants=[
        Variant("BEFORE_1378"),
        Variant("LIKE_0_14", recipes.difference(recipes.LIKE_0_14), "BEFORE_1378"),
        *(
            Variant(name, recipes.difference(recipes.recipe_named(name)), before)
            for before, name in zip(("BEFORE_1378", *ORDER), ORDER, strict=False)
        ),
    ],
    workload=Workload.random(num_prompts=1, input_len=2500, output_len=150, frames=300),
    blocks=5,
    gate_prompts=Path(__file__).with_name("prompts.jsonl"),
)
