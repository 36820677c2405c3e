"""What is profiled: recipes by their names, the variants of an experiment, or those of a run that was measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omnilab.errors import BadInput
from omnilab.experiment.analysis.blocks import Fixed
from omnilab.experiment.design import AGAIN
from omnilab.experiment.experiment import Experiment
from omnilab.experiment.plan import make_plan
from omnilab.experiment.results import read_run
from omnilab.experiment.statistics.estimate import LEAST_BLOCKS
from omnilab.workload import Workload

if TYPE_CHECKING:
    from omnilab.recipe import Recipe

RECIPES = ("BEFORE_1378", "AFTER_1378")
# As quick.py's, with frames for as many steps of Code2Wav as are recorded.
SMALL = Workload.random(num_prompts=1, input_len=2500, output_len=70, frames=130)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Variants by name with their recipes, the model they run on, and the workload."""

    recipes: Mapping[str, Recipe]
    model: str = "thin"
    device: Any = "auto"
    workload: Workload = SMALL

    def only(self, names: Iterable[str]) -> Subject:
        """Return it with these variants alone; BadInput names those there are."""
        for name in names:
            if name not in self.recipes:
                raise BadInput(f"no variant {name!r}; there are {', '.join(map(repr, self.recipes))}")
        return replace(self, recipes={name: self.recipes[name] for name in names})


def of_recipes(names: Iterable[str]) -> Subject:
    """Return named recipes; ToggleUnavailable for an unknown one."""
    from omnilab.recipes import recipe_named

    return Subject(recipes={name: recipe_named(name) for name in names})


def of_experiment(experiment: Experiment) -> Subject:
    """Return an experiment's variants, on its model and workload; BadInput as its plan would."""
    plan = make_plan(experiment, Fixed(LEAST_BLOCKS + 1))
    if plan.own_processes:
        raise BadInput(f"{experiment.name}: compares servers: profile each of them by its own means")
    recipes: dict[str, Any] = {name: one for name, one in plan.settings.items() if not name.endswith(AGAIN)}
    return Subject(recipes=recipes, model=str(experiment.model), device=experiment.device, workload=plan.workloads[0])


def of_run(folder: Path) -> Subject:
    """Return a run's variants, rebuilt from what its stages reported, on its model and the small workload.

    BadInput when what filled a seam is not in this version of omnilab: code that has changed, or a toggle of one's own.
    RunFolderError when it is no run folder.
    """
    run, _ = read_run(folder)
    known = _occupants()
    recipes = {variant["name"]: _recipe(folder, variant, known) for variant in run["variants"]}
    return Subject(recipes=recipes, model=run["model"], device=run["device"])


def _recipe(folder: Path, variant: Mapping[str, Any], known: Mapping[tuple[str, str], Any]) -> Recipe:
    from omnilab.recipe import Recipe

    filled = {}
    for seam, name in variant["occupants"].items():
        if (seam, name) not in known:
            raise BadInput(
                f"{folder}: what fills {seam} in {variant['name']!r} ({name}) is not in this version of omnilab, so it "
                "cannot be run again; check its commit out, or give the experiment's file and --out"
            )
        filled[seam] = known[seam, name]
    return Recipe(**filled)


def _occupants() -> dict[tuple[str, str], Any]:
    """Return all that is known to fill a seam, by seam and the words of Recipe.occupants."""
    from omnilab.recipe import Recipe
    from omnilab.recipes import NAMED
    from omnilab.toggles import TOGGLES

    recipes = [*NAMED.values()]
    recipes += [replace(Recipe(), **{t.seam: side}) for t in TOGGLES for side in (t.baseline, t.optimized)]
    seams = [field.name for field in fields(Recipe)]
    return {(seam, words[seam]): getattr(r, seam) for r in recipes for words in (r.occupants(),) for seam in seams}
