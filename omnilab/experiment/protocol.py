"""The protocol: blocks of fresh processes, the output gate, then every variant once in random order.

Rows are written as they finish. A failed or aborted trial is a row too; the rest of its block goes on with fresh
processes. What has a row is not measured again, so a run goes on where it stopped, in the same order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from omnilab.errors import BadInput, Error
from omnilab.experiment import gate, guards
from omnilab.experiment.analysis.blocks import planned_blocks
from omnilab.experiment.design import AGAIN
from omnilab.experiment.faults import failed_requests, wrong_occupant
from omnilab.experiment.machine import usable_cores
from omnilab.experiment.plan import Plan, uses_cuda, warm_up
from omnilab.experiment.results import ABORTED, RunFolder, aborted
from omnilab.experiment.summary import summary
from omnilab.record import span_cost_ns
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

    def note(self, text: str) -> None:
        """Something to know before it begins."""
        ...

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

    def note(self, text: str) -> None:
        """Say nothing."""

    def begin(self, counts: Mapping[str, int]) -> None:
        """Say nothing."""

    def start(self, text: str) -> None:
        """Say nothing."""

    def done(self, kind: str, seconds: float, outcome: str) -> None:
        """Say nothing."""

    def end(self) -> None:
        """Say nothing."""


def measure(plan: Plan, folder: RunFolder, open_pipeline: OpenPipeline, progress: Progress) -> None:
    """Do what the plan wants and the folder has not. BadInput from the first opening takes a new folder back."""
    run, block = plan.to_dict(), 0
    needed = planned_blocks(run, folder.lines)
    progress.begin(_left(plan, folder, needed))
    try:
        while block < needed:
            with ExitStack() as stages:
                _Block(plan, folder, open_pipeline, progress, block, stages).run()
            block += 1
            now = plan.rule.needed(run, folder.lines, block)
            if block >= plan.rule.first and now != needed:
                needed = now
                where = {"kind": "sized", "block": block, "position": -1, "variant": plan.baseline}
                folder.add(where, {"blocks": needed}, None)
                progress.begin(_left(plan, folder, needed))
    finally:
        progress.end()


def _left(plan: Plan, folder: RunFolder, blocks: int) -> dict[str, int]:
    done = _measured(folder.lines)
    left = plan.counts(blocks)
    whole = sum(all(("trial", b, name) in done for name in order) for b, order in enumerate(plan.orders[:blocks]))
    return {
        "open": left["open"] - whole,
        "gate": max(0, left["gate"] - sum(kind == "gate" for kind, _, _ in done)),
        "trial": left["trial"] - sum(kind == "trial" for kind, _, _ in done),
    }


def _measured(lines: Iterable[Mapping[str, Any]]) -> set[tuple[str, int, str]]:
    """Return what has a row: kind, block, variant. What was aborted is measured again."""
    return {(line["kind"], line["block"], line["variant"]) for line in lines if not aborted(line)}


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
        self._cuda = uses_cuda(plan.experiment.device)
        self._span_ns = span_cost_ns()

    def run(self) -> None:
        """Measure what has no row yet, and compare its outputs."""
        if not self._folder.lines:
            self._open_first()
        if self._block == 0:
            self._gate()
        plan, done, trials = self._plan, _measured(self._folder.lines), {}
        stopped = gate.stopped(plan.to_dict(), self._folder.lines)
        for position, name in enumerate(plan.orders[self._block]):
            if ("trial", self._block, name) not in done and name not in stopped:
                trials[name] = self._trial("trial", position, name, plan.workloads[self._block])
        for name in (plan.baseline, plan.baseline + AGAIN) if trials else ():
            if trials.get(name) is None:
                # Outputs of processes before an interruption are gone: the baseline answers once more, unmeasured.
                trials[name] = self._trial("reference", -1, name, plan.workloads[self._block])
        self._compare("comparison", trials)

    def _open_first(self) -> None:
        try:
            self._ready()
        except BadInput:
            self._folder.discard()
            raise

    def _gate(self) -> None:
        """Compare every variant with the base on prompts with audio and image, before any speed."""
        plan = self._plan
        if plan.gate is None or self._gated():
            return
        order = sorted(plan.recipes, key=lambda name: (name != plan.baseline, name != plan.baseline + AGAIN))
        trials = {name: self._trial("gate", position, name, plan.gate) for position, name in enumerate(order)}
        if trials[plan.baseline] is None:
            raise Error(f"{plan.baseline}: the baseline itself failed on the gate prompts; see {self._folder.path}")
        self._compare("gate comparison", trials)

    def _gated(self) -> bool:
        """Is the gate done? Its comparisons are written one after another, after the last of its trials."""
        lines = self._folder.lines
        tried = {line["variant"]: line["error"] for line in lines if line["kind"] == "gate"}
        passed = {name for name, error in tried.items() if not error} - {self._plan.baseline}
        compared = {line["variant"] for line in lines if line["kind"] == "gate comparison"}
        return len(tried) == len(self._plan.recipes) and passed <= compared

    def _compare(self, kind: str, trials: Mapping[str, Trial | None]) -> None:
        plan = self._plan
        base = trials.get(plan.baseline) or trials.get(plan.baseline + AGAIN)
        for name, trial in trials.items():
            if trial is not None and trial is not base and base is not None:
                variant = plan.variant(name)
                found = gate.compare(trial, base, variant.exact, variant.tolerance)
                self._folder.add(self._where(kind, -1, name), found.to_dict(), None)

    def _trial(self, kind: str, position: int, name: str, workload: Workload) -> Trial | None:
        """Measure a variant once and write its row; None when it failed."""
        text = f"block {self._block + 1}: {kind} of {name}"
        began, before, trial, error = time.monotonic(), guards.read(self._cuda), None, None
        try:
            pipe = self._ready()
            self._progress.start(text)
            began, before = time.monotonic(), guards.read(self._cuda)
            pipe.apply(self._plan.recipes[name])
            trial = pipe.run(workload)
            error = wrong_occupant(trial, self._plan.recipes[name]) or failed_requests(trial)
        except Exception as caught:  # whatever ends a trial is a row; the others go on
            error = f"{type(caught).__name__}: {caught}"
            self._close()
        except KeyboardInterrupt:
            row = {"error": f"{ABORTED}: interrupted", "seconds": time.monotonic() - began}
            self._folder.add(self._where(kind, position, name), row, None)
            raise
        seconds, after = time.monotonic() - began, guards.read(self._cuda)
        row: dict[str, Any] = {"error": error, "seconds": seconds, "guards": {"before": before, "after": after}}
        if trial is not None:
            row |= summary(trial, self._span_ns)
        own = sum(trial.cpu_s.values()) if trial is not None else 0.0
        row["disturbed"] = guards.disturbances(before, after, seconds, own, usable_cores())
        self._folder.add(self._where(kind, position, name), row, trial)
        if trial is not None and kind == "trial" and self._block == 0:
            self._folder.write_audio(name, trial.records[0], trial.sample_rate)
        self._progress.done(kind, seconds, error or "")
        return None if error else trial

    def _ready(self) -> Bench:
        """Return warm stages, opened if need be."""
        if self._pipe is None:
            began = time.monotonic()
            self._progress.start(f"block {self._block + 1}: starting stages, warming up")
            pipe = self._stages.enter_context(self._open_pipeline(self._plan.recipes[self._plan.baseline]))
            pipe.run(warm_up(self._plan.workloads[self._block]))
            self._pipe = pipe
            seconds = time.monotonic() - began
            self._folder.add(self._where("open", -1, self._plan.baseline), {"error": None, "seconds": seconds}, None)
            self._progress.done("open", seconds, "")
        return self._pipe

    def _close(self) -> None:
        self._pipe = None
        self._stages.close()

    def _where(self, kind: str, position: int, name: str) -> dict[str, Any]:
        return {"kind": kind, "block": self._block, "position": position, "variant": name}
