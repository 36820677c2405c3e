"""The protocol: blocks of fresh processes, the output gate, then every variant once in random order.

Rows are written as they finish. A failed trial is a row too; the rest of its block goes on with fresh processes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import psutil

from omnilab.errors import BadInput, Error
from omnilab.experiment.gate import first_difference
from omnilab.experiment.plan import AGAIN, Plan, warm_up
from omnilab.experiment.results import RunFolder
from omnilab.metrics import host_growth
from omnilab.trial import Trial
from omnilab.workload import Workload

if TYPE_CHECKING:
    from omnilab.recipe import Recipe


class Bench(Protocol):
    """What is measured: the lab's Pipeline, or a scripted one in tests."""

    def apply(self, recipe: Recipe) -> None:
        """Put a recipe in force in every stage."""
        ...

    def run(self, workload: Workload) -> Trial:
        """Serve a workload."""
        ...


OpenPipeline: TypeAlias = "Callable[[Recipe], AbstractContextManager[Bench]]"


class Progress(Protocol):
    """Is told what is done and how long it took."""

    def begin(self, counts: Mapping[str, int]) -> None:
        """So many steps of each kind are to come."""
        ...

    def start(self, text: str) -> None:
        """A step begins."""
        ...

    def done(self, kind: str, seconds: float, outcome: str) -> None:
        """The step has ended."""
        ...

    def end(self) -> None:
        """Nothing more will come."""
        ...


class Silent:
    """Progress that says nothing."""

    def begin(self, counts: Mapping[str, int]) -> None:
        """Say nothing."""

    def start(self, text: str) -> None:
        """Say nothing."""

    def done(self, kind: str, seconds: float, outcome: str) -> None:
        """Say nothing."""

    def end(self) -> None:
        """Say nothing."""


def measure(plan: Plan, folder: RunFolder, open_pipeline: OpenPipeline, progress: Progress) -> None:
    """Do the whole plan. BadInput from the first opening takes the folder back; an interrupt leaves what is done."""
    progress.begin(plan.counts())
    stopped: dict[str, str] = {}  # variant -> why it gets no speed
    try:
        for block in range(len(plan.orders)):
            with ExitStack() as stages:
                _Block(plan, folder, open_pipeline, progress, block, stages).run(stopped)
    finally:
        progress.end()


class _Block:
    """One block: its stage processes, opened anew after a failure."""

    def __init__(
        self,
        plan: Plan,
        folder: RunFolder,
        open_pipeline: OpenPipeline,
        progress: Progress,
        block: int,
        stages: ExitStack,
    ) -> None:
        self._plan, self._folder, self._progress, self._block = plan, folder, progress, block
        self._open_pipeline, self._stages = open_pipeline, stages
        self._pipe: Bench | None = None
        self._opened = 0

    def run(self, stopped: dict[str, str]) -> None:
        plan, trials = self._plan, {}
        if self._block == 0:
            self._open_first()
            self._gate(stopped)
        for position, name in enumerate(plan.orders[self._block]):
            if name not in stopped:
                trials[name] = self._trial("trial", position, name, plan.workloads[self._block])
        for name, difference in self._compare(trials).items():
            self._folder.add(self._where("comparison", -1, name), {"difference": difference}, None)
            if difference is not None:
                stopped.setdefault(name, difference)

    def _open_first(self) -> None:
        try:
            self._ready()
        except BadInput:
            self._folder.discard()
            raise

    def _gate(self, stopped: dict[str, str]) -> None:
        """Compare every variant with the base on prompts with audio and image, before any speed."""
        plan = self._plan
        if plan.gate is None:
            return
        order = sorted(plan.orders[0], key=lambda name: (name != plan.baseline, name != plan.baseline + AGAIN))
        trials = {name: self._trial("gate", position, name, plan.gate) for position, name in enumerate(order)}
        if trials[plan.baseline] is None:
            raise Error(f"{plan.baseline}: the baseline itself failed on the gate prompts; see {self._folder.path}")
        for name, difference in self._compare(trials).items():
            self._folder.add(self._where("gate comparison", -1, name), {"difference": difference}, None)
            if difference is not None and not name.startswith(plan.baseline):
                stopped[name] = difference

    def _compare(self, trials: Mapping[str, Trial | None]) -> dict[str, str | None]:
        plan = self._plan
        base = trials.get(plan.baseline) or trials.get(plan.baseline + AGAIN)
        found: dict[str, str | None] = {}
        for name, trial in trials.items():
            if trial is not None and trial is not base and base is not None:
                variant = plan.variant(name)
                difference = first_difference(trial, base, variant.exact, variant.tolerance)
                found[name] = None if difference is None else str(difference)
        return found

    def _trial(self, kind: str, position: int, name: str, workload: Workload) -> Trial | None:
        """Measure a variant once and write its row; None when it failed."""
        before, began, trial, error = busy_elsewhere(), time.monotonic(), None, None
        try:
            pipe = self._ready()
            self._progress.start(f"block {self._block + 1} of {len(self._plan.orders)}: {kind} of {name}")
            before, began = busy_elsewhere(), time.monotonic()
            pipe.apply(self._plan.recipes[name])
            trial = pipe.run(workload)
            error = _wrong_occupant(trial, self._plan.recipes[name]) or _failed_requests(trial)
        except Exception as caught:  # whatever ends a trial is a row; the others go on
            error = f"{type(caught).__name__}: {caught}"
            self._close()
        seconds = time.monotonic() - began
        elsewhere = busy_elsewhere() - before
        row = {"error": error, "seconds": seconds, "elsewhere_cpu_s": elsewhere, "processes": self._opened}
        if trial is not None:
            row |= _summary(trial)
            row["elsewhere_cpu_s"] = max(0.0, elsewhere - sum(trial.cpu_s.values()))
        self._folder.add(self._where(kind, position, name), row, trial)
        self._progress.done(kind, seconds, error or "")
        return None if error else trial

    def _ready(self) -> Bench:
        """Return warm stages, opened if need be."""
        if self._pipe is None:
            began = time.monotonic()
            self._progress.start(f"block {self._block + 1} of {len(self._plan.orders)}: starting stages, warming up")
            self._opened += 1
            pipe = self._stages.enter_context(self._open_pipeline(self._plan.recipes[self._plan.baseline]))
            pipe.run(warm_up(self._plan.workloads[self._block]))
            self._pipe = pipe
            self._progress.done("open", time.monotonic() - began, "")
        return self._pipe

    def _close(self) -> None:
        self._pipe = None
        self._stages.close()

    def _where(self, kind: str, position: int, name: str) -> dict[str, Any]:
        return {"kind": kind, "block": self._block, "position": position, "variant": name}


def _summary(trial: Trial) -> dict[str, Any]:
    spans: dict[str, float] = {}
    for row in trial.span_rows:
        key = f"{row.stage}/{row.thread}/{row.name}"
        spans[key] = spans.get(key, 0.0) + (row.end_ns - row.start_ns) / 1e6
    counters: dict[str, int] = {}
    for row in trial.counter_rows:
        key = f"{row.stage}/{row.thread}/{row.counter}"
        counters[key] = counters.get(key, 0) + row.value
    return {
        "metrics": trial.metrics, "host_growth": host_growth(trial.span_rows), "counters": counters, "spans_ms": spans,
        "spans_lost": trial.spans_lost, "cpu_s": trial.cpu_s, "occupants": trial.occupants,
    }  # fmt: skip


def _wrong_occupant(trial: Trial, recipe: Recipe) -> str | None:
    """The label must match what ran: compare names only, for a by-value toggle's source is hashed otherwise there."""
    expected = recipe.occupants()
    for stage, seams in trial.occupants.items():
        for seam, occupant in seams.items():
            if seam in expected and occupant.split()[0] != expected[seam].split()[0]:
                return f"{stage} runs {occupant} in the seam {seam}, not {expected[seam]}"
    return None


def _failed_requests(trial: Trial) -> str | None:
    errors = [record.error for record in trial.records if record.error]
    return f"{len(errors)} of {len(trial.records)} requests failed: {errors[0]}" if errors else None


def busy_elsewhere() -> float:
    """CPU seconds that this machine has spent so far on anything but this process."""
    times = psutil.cpu_times()
    return sum(times) - times.idle - getattr(times, "iowait", 0.0) - time.process_time()
