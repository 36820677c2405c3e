"""The protocol: blocks of fresh processes, the output gate, then every variant once in random order.

The variants of the lab take turns on the processes of a block; an arm has a server of its own for each of its trials.
Rows are written as they finish. A failed or aborted trial is a row too; the rest of its block goes on with fresh
processes. What has a row is not measured again, so a run goes on where it stopped, in the same order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from omnilab.errors import BadInput, Error
from omnilab.experiment import gate, guards
from omnilab.experiment.analysis.blocks import planned_blocks
from omnilab.experiment.design import AGAIN
from omnilab.experiment.faults import failed_requests, wrong_occupant
from omnilab.experiment.machine import usable_cores
from omnilab.experiment.plan import Plan, warm_up
from omnilab.experiment.results import ABORTED, RunFolder, aborted
from omnilab.experiment.summary import summary
from omnilab.launch import LeftBehind
from omnilab.record import span_cost_ns
from omnilab.trial import Trial
from omnilab.workload import Workload

if TYPE_CHECKING:
    from omnilab.experiment.plan import Setting


class Bench(Protocol):
    """What is measured: the lab's Pipeline, a server of an arm, or a scripted one in tests."""

    def apply(self, setting: Any, /) -> None:
        """Put a recipe in force in every stage."""
        ...

    def run(self, workload: Workload) -> Trial:
        """Serve a workload."""
        ...


EMPTY = "empty:"  # fault of a client's request: a few tokens may make no sound

OpenBench: TypeAlias = "Callable[[Setting], AbstractContextManager[Bench]]"


class Point(NamedTuple):
    """A workload to measure, and where its rows go. Several points share the arms' servers."""

    plan: Plan
    folder: RunFolder


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


def measure(points: Sequence[Point], open_bench: OpenBench, progress: Progress) -> None:
    """Do what the plans want and the folders have not. BadInput from the first opening takes new folders back.

    Several points differ in their workloads only, and have arms.
    """
    block, needed = 0, _needed(points)
    progress.begin(_left(points, needed))
    try:
        while block < needed:
            due = [one for one in points if block < planned_blocks(one.plan.to_dict(), one.folder.lines)]
            with ExitStack() as opened:
                stages = _Stages(due, open_bench, progress, block, opened)
                _run_block([_Block(point, stages, progress, block) for point in due], stages)
            block += 1
            for point in due:
                _size(point, block)
            if _needed(points) != needed:
                needed = _needed(points)
                progress.begin(_left(points, needed))
    finally:
        progress.end()


def _size(point: Point, done: int) -> None:
    """Write down how many blocks there shall be, once, where the rows of `done` whole ones change it."""
    plan, folder = point
    run = plan.to_dict()
    told = any(line["kind"] == "sized" and line["block"] >= done for line in folder.lines)
    now = plan.rule.needed(run, folder.lines, done)
    if not told and done >= plan.rule.first and now != planned_blocks(run, folder.lines):
        where = {"kind": "sized", "block": done, "position": -1, "variant": plan.baseline}
        folder.add(where, {"blocks": now}, None)


def _needed(points: Sequence[Point]) -> int:
    return max(planned_blocks(plan.to_dict(), folder.lines) for plan, folder in points)


def _left(points: Sequence[Point], blocks: int) -> dict[str, int]:
    left = {"open": 0, "gate": 0, "trial": 0}
    for plan, folder in points:
        done, counts = _measured(folder.lines), plan.counts(blocks)
        orders = enumerate(plan.orders[:blocks])
        if plan.own_processes:
            opened = sum(kind == "trial" for kind, _, _ in done)
        else:
            opened = sum(all(("trial", b, name) in done for name in order) for b, order in orders)
        left["open"] = max(left["open"], counts["open"] - opened)
        left["gate"] += max(0, counts["gate"] - sum(kind == "gate" for kind, _, _ in done))
        left["trial"] += counts["trial"] - sum(kind == "trial" for kind, _, _ in done)
    return left


def _measured(lines: Iterable[Mapping[str, Any]]) -> set[tuple[str, int, str]]:
    """Return what has a row: kind, block, variant. What was aborted is measured again."""
    return {(line["kind"], line["block"], line["variant"]) for line in lines if not aborted(line)}


def _run_block(points: Sequence[_Block], stages: _Stages) -> None:
    """Measure what has no row yet, and compare its outputs."""
    if stages.own:
        for position, name in enumerate(points[0].order):
            for one in points:
                one.gate_of(position, name)
                one.refuse_failed_base()
                one.trial_of(position, name)
            stages.close()
    else:
        stages.open_first()
        for one in points:
            for position, name in enumerate(one.gate_order):
                one.gate_of(position, name)
            one.compare_gate()
            for position, name in enumerate(one.order):
                one.trial_of(position, name)
    for one in points:
        one.compare_gate()
        one.compare()


class _Stages:
    """The processes of a block: one set for all variants, or a server for each; opened anew after a failure."""

    def __init__(
        self, points: Sequence[Point], open_bench: OpenBench, progress: Progress, block: int, opened: ExitStack
    ) -> None:
        self._points, self._open_bench, self._progress = points, open_bench, progress
        self._block, self._opened = block, opened
        self._bench: Bench | None = None
        self._whose = ""
        self.left_behind: LeftBehind | None = None
        self._failed: dict[str, str] = {}  # arms that did not start in this block

    @property
    def own(self) -> bool:
        """Has each variant processes of its own?"""
        return self._points[0].plan.own_processes

    def open_first(self) -> None:
        """Open them where nothing was measured yet: BadInput takes the new folders back."""
        if any(folder.lines for _, folder in self._points):
            return
        try:
            self.ready(self._points[0].plan.baseline)
        except BadInput:
            for _, folder in self._points:
                folder.discard()
            raise

    def ready(self, name: str) -> Bench:
        """Return warm processes for a variant, opened if need be."""
        whose = name if self.own else self._points[0].plan.baseline
        if self.own and whose in self._failed:
            raise Error(f"not started again in this block: {self._failed[whose]}")
        if self._bench is None or self._whose != whose:
            self.close()
            self._failed[whose] = "it did not start"
            began = time.monotonic()
            what = f"starting {whose}" if self.own else "starting stages"
            self._progress.start(f"block {self._block + 1}: {what}, warming up")
            setting = self._points[0].plan.settings[whose]
            bench = self._opened.enter_context(self._open_bench(setting))
            for plan, _ in self._points:
                trial = bench.run(warm_up(plan.workloads[self._block], plan.own_processes))
                if self.own and not all(record.error is None or EMPTY in record.error for record in trial.records):
                    raise Error(f"warming up: {failed_requests(trial)}")
            self._bench, self._whose = bench, whose
            del self._failed[whose]
            seconds = time.monotonic() - began
            for _, folder in self._points:
                where = {"kind": "open", "block": self._block, "position": -1, "variant": whose}
                folder.add(where, {"error": None, "seconds": seconds}, None)
            self._progress.done("open", seconds, "")
        return self._bench

    def close(self) -> None:
        """End them."""
        self._bench = None
        self._opened.close()

    def give_up(self) -> str:
        """End them after a failure; return what went wrong in that, too."""
        try:
            self.close()
        except LeftBehind as error:
            self.left_behind = error
            return f"; and then: {error}"
        return ""

    def refuse_leftovers(self) -> None:
        """Raise LeftBehind once something of a server was in the way of all that would come next."""
        if self.left_behind is not None:
            raise self.left_behind


class _Block:
    """One block of one point: its trials, and whose outputs are at hand."""

    def __init__(self, point: Point, stages: _Stages, progress: Progress, block: int) -> None:
        self._plan, self._folder = point
        self._stages, self._progress, self._block = stages, progress, block
        self._cuda = self._plan.cuda
        self._span_ns = span_cost_ns()
        self._trials: dict[str, Trial | None] = {}
        self._gates: dict[str, Trial | None] = {}
        self._stopped = gate.stopped(self._plan.to_dict(), self._folder.lines)
        self._done = _measured(self._folder.lines)
        self._gate_due = block == 0 and self._plan.gate is not None and not self._gated()

    @property
    def order(self) -> Sequence[str]:
        """Variants in the order in which the block tries them."""
        return self._plan.orders[self._block]

    @property
    def gate_order(self) -> Sequence[str]:
        """Variants in the order of the gate: the baseline first."""
        plan = self._plan
        return sorted(plan.settings, key=lambda name: (name != plan.baseline, name != plan.baseline + AGAIN))

    def gate_of(self, position: int, name: str) -> None:
        """Answer the gate's prompts, with audio and image, before any speed."""
        if self._gate_due and self._plan.gate is not None:
            self._gates[name] = self._trial("gate", position, name, self._plan.gate)

    def trial_of(self, position: int, name: str) -> None:
        """Measure a variant, unless it has a row or may get no speed."""
        if ("trial", self._block, name) not in self._done and name not in self._stopped:
            self._trials[name] = self._trial("trial", position, name, self._plan.workloads[self._block])

    def compare_gate(self) -> None:
        """Compare every variant with the base on the gate's prompts, once; Error when the base has failed."""
        plan = self._plan
        if not self._gates:
            return
        self.refuse_failed_base()
        self._compare("gate comparison", self._gates)
        self._gates = {}
        self._stopped = gate.stopped(plan.to_dict(), self._folder.lines)

    def refuse_failed_base(self) -> None:
        """Raise Error when the baseline has failed on the gate's prompts: nothing could be compared with it."""
        plan = self._plan
        for name in (plan.baseline, plan.baseline + AGAIN):
            if self._gates.get(name, self) is None and (name == plan.baseline or plan.own_processes):
                raise Error(
                    f"{name}: the baseline itself failed on the gate prompts; see {self._folder.path}; other prompts: "
                    "--gate-prompts FILE, or none"
                )

    def compare(self) -> None:
        """Compare outputs of the block's trials with the base's."""
        plan, trials = self._plan, self._trials
        for name in (plan.baseline, plan.baseline + AGAIN) if trials else ():
            if trials.get(name) is None:
                # Outputs of processes before an interruption are gone: the baseline answers once more, unmeasured.
                trials[name] = self._trial("reference", -1, name, plan.workloads[self._block])
        self._compare("comparison", trials)

    def _gated(self) -> bool:
        """Is the gate done? Its comparisons are written one after another, after the last of its trials."""
        lines = self._folder.lines
        tried = {line["variant"]: line["error"] for line in lines if line["kind"] == "gate"}
        passed = {name for name, error in tried.items() if not error} - {self._plan.baseline}
        compared = {line["variant"] for line in lines if line["kind"] == "gate comparison"}
        return len(tried) == len(self._plan.settings) and passed <= compared

    def _compare(self, kind: str, trials: Mapping[str, Trial | None]) -> None:
        plan = self._plan
        work = gate.WORK_OF_SERVERS if plan.own_processes else gate.WORK
        base = trials.get(plan.baseline) or trials.get(plan.baseline + AGAIN)
        for name, trial in trials.items():
            if trial is not None and trial is not base and base is not None:
                variant = plan.variant(name)
                found = gate.compare(trial, base, variant.exact, variant.tolerance, work)
                self._folder.add(self._where(kind, -1, name), found.to_dict(), None)

    def _trial(self, kind: str, position: int, name: str, workload: Workload) -> Trial | None:
        """Measure a variant once and write its row; None when it failed."""
        text = f"block {self._block + 1}: {kind} of {name}"
        began, before, trial, error = time.monotonic(), guards.read(self._cuda), None, None
        try:
            pipe = self._stages.ready(name)
            self._progress.start(text)
            began, before = time.monotonic(), guards.read(self._cuda)
            pipe.apply(self._plan.settings[name])
            trial = pipe.run(workload)
            error = wrong_occupant(trial, self._plan.settings[name]) or failed_requests(trial)
        except Exception as caught:  # whatever ends a trial is a row; the others go on
            if isinstance(caught, LeftBehind):
                self._stages.left_behind = caught
            error = f"{type(caught).__name__}: {caught}{self._stages.give_up()}"
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
        self._stages.refuse_leftovers()
        return None if error else trial

    def _where(self, kind: str, position: int, name: str) -> dict[str, Any]:
        return {"kind": kind, "block": self._block, "position": position, "variant": name}
