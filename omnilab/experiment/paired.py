"""Two recipes in turn on one open pipeline: a quick look. The verdict to publish is `omnilab.ablate`'s."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import numpy as np

from omnilab import recipes
from omnilab.errors import Aborted, Error
from omnilab.experiment import gate
from omnilab.experiment.analysis.paired import BASE, OTHER, PairedRows, found_of
from omnilab.experiment.design import Variant
from omnilab.experiment.faults import failed_requests, wrong_occupant
from omnilab.experiment.plan import uses_cuda, warm_up
from omnilab.experiment.reports.paired import Paired
from omnilab.experiment.summary import summary
from omnilab.prompt import at_least
from omnilab.toggles import TOGGLES
from omnilab.trial import Trial
from omnilab.workload import Workload, derive_seed

if TYPE_CHECKING:
    from omnilab.recipe import Recipe

Side: TypeAlias = Literal["base", "other"]
Stop: TypeAlias = Callable[[], bool]
OnTrial: TypeAlias = Callable[[Side, int, Trial], None]


class Stages(Protocol):
    """What is measured: an open Pipeline, or a scripted one in tests."""

    @property
    def opened(self) -> Mapping[str, Any]:
        """The arguments it was opened with."""
        ...

    def apply(self, recipe: Recipe) -> None:
        """Put a recipe in force in every stage."""
        ...

    def run(self, workload: Workload, *, stop: Stop | None = None) -> Trial:
        """Serve a workload; Aborted once `stop` says yes."""
        ...


def paired(
    pipeline: Stages,
    base: Recipe,
    other: Recipe,
    workload: Workload,
    *,
    pairs: int = 5,
    on_trial: OnTrial | None = None,
    stop: Stop | None = None,
) -> Paired:
    """Run `other` and `base` in turn on the same requests, `pairs` times each, and compare them pair by pair.

    Both are warmed first; which comes first in a pair is drawn from the workload's seed, each as often as the other.
    `on_trial(side, pair, trial)` is called after each trial, pairs from 0 on. Once `stop` says yes the running trial
    is given up and the whole pairs so far are what is returned. The pipeline is left with one of the two recipes.
    Raises BadInput for `pairs` below 1, Error where a trial failed: nothing is compared then.
    """
    at_least("pairs", pairs, 1)
    measured = _Pairs(pipeline, {"base": base, "other": other}, workload, stop)
    try:
        measured.warm()
        for pair, order in enumerate(orders(pairs, workload.seed)):
            measured.add(pair, order, on_trial)
    except Aborted:
        if stop is None or not stop():
            raise
    toggles = recipes.difference(other, base)
    found = found_of(
        measured.rows, toggles=toggles, planned=pairs, cuda=uses_cuda(pipeline.opened.get("device", "cpu"))
    )
    return Paired(base, other, workload, toggles, found, pairs, None if measured.last is None else {**measured.last})


def orders(pairs: int, seed: int) -> list[tuple[Side, Side]]:
    """Return which side comes first in each pair: each as often as the other, within one, in random order."""
    first = np.random.Generator(np.random.PCG64(derive_seed(seed, pairs))).permutation(pairs)
    return [("base", "other") if place % 2 else ("other", "base") for place in first.tolist()]


def kept(base: Recipe, other: Recipe) -> Variant:
    """Return what stays equal between two recipes: what every toggle on a seam in which they differ promises to keep.

    A toggle that is on in `base` and off in `other` counts as well.
    """
    known = {name: getattr(base, name) for name in base.occupants()}
    sides = {seam: (old, getattr(other, seam)) for seam, old in known.items() if getattr(other, seam) != old}
    listed = [t for t in (*TOGGLES, *recipes.difference(other, base)) if t.optimized in sides.get(t.seam, ())]
    return Variant(OTHER, tuple(listed), BASE)


class _Pairs:
    """Trials in turn; keeps their rows and the last whole pair."""

    def __init__(self, stages: Stages, sides: Mapping[Side, Recipe], workload: Workload, stop: Stop | None) -> None:
        self._stages, self._sides, self._workload, self._stop = stages, sides, workload, stop
        self._variant = kept(sides["base"], sides["other"])
        # the runner's process starts anew with the recipe, so it is as cold as after opening
        self._cold = sides["base"].worker_link != sides["other"].worker_link
        self.rows = PairedRows()
        self.last: dict[Side, Trial] | None = None

    def warm(self) -> None:
        """Run short requests on both sides."""
        for side in ("other", "base"):
            self._stages.apply(self._sides[side])
            self._warm()

    def add(self, pair: int, order: tuple[Side, Side], on_trial: OnTrial | None) -> None:
        """Measure both sides once, and compare their outputs."""
        trials: dict[Side, Trial] = {}
        for side in order:
            self._stages.apply(self._sides[side])
            if self._cold:
                self._warm()
            trials[side] = self._checked(self._stages.run(self._workload, stop=self._stop), side)
            self.rows.add_trial(side == "base", pair, summary(trials[side], 0.0))
            if on_trial is not None:
                on_trial(side, pair, trials[side])
        before = None if self.last is None else self.last["base"]
        ours, variant = trials["base"], self._variant
        self.rows.add_output(False, pair, gate.compare(trials["other"], ours, variant.exact, variant.tolerance))
        if before is not None:
            self.rows.add_output(True, pair, gate.compare(ours, before, variant.exact, variant.tolerance))
        self.last = trials

    def _warm(self) -> None:
        self._stages.run(warm_up(self._workload), stop=self._stop)

    def _checked(self, trial: Trial, side: Side) -> Trial:
        if wrong := wrong_occupant(trial, self._sides[side]) or failed_requests(trial):
            raise Error(f"a trial of the {side} recipe failed, so nothing is compared: {wrong}")
        return trial
