"""Confirmed, refuted or inconclusive: what a run says of a toggle's claim, part by part.

The parts are written down before the run. What is counted is settled by the counts; what is timed only by the run's
own intervals and its rules for verdicts, so that below five blocks, or where the baseline differs from itself, nothing
timed is settled. One refuted part refutes the claim; all must be confirmed to confirm it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from omnilab import show
from omnilab.errors import BadInput
from omnilab.experiment.analysis import findings as f
from omnilab.experiment.reports import words
from omnilab.experiment.statistics import estimate

if TYPE_CHECKING:
    from omnilab.experiment.reports.report import Report

CONFIRMED, REFUTED, INCONCLUSIVE = "confirmed", "refuted", "inconclusive"
LEVEL = 0.05
HOLDS_BACK = (f.TOO_FEW, f.WITHHELD, f.NO_BASELINE, f.NO_COMPARISON, f.UNSETTLED)  # verdicts that settle no time
Settled = tuple[str, str]  # one of the three, and why


class Part(Protocol):
    """One thing that a claim says."""

    def settle(self, report: Report, variant: f.Variant) -> Settled:
        """Return confirmed, refuted or inconclusive, and why."""
        ...


@dataclass(frozen=True, slots=True)
class Counts:
    """A counter, "talker/runner/elements_visited", falls: to exactly `to`, or at all where that is None."""

    counter: str
    to: float | None = None

    def __str__(self) -> str:
        """Say it."""
        return f"{self.counter} falls" + ("" if self.to is None else f" to {words.short(self.to)}")

    def settle(self, report: Report, variant: f.Variant) -> Settled:
        """Compare the counts; BadInput for a counter that no trial of the run has."""
        found = next((moved for moved in variant.counters if moved.what == self.counter), None)
        if found is None:
            sides = [self._counted(report, name) for name in (report.findings.baseline_name, variant.name)]
            same = len({value for side in sides for value in side}) == 1
            return (REFUTED, "it did not change") if same else (INCONCLUSIVE, "it differs by no more than by chance")
        fell = found.after < found.before and (self.to is None or found.after == self.to)
        return CONFIRMED if fell else REFUTED, f"{words.short(found.before)} -> {words.short(found.after)}"

    def _counted(self, report: Report, name: str) -> list[int]:
        if not any(self.counter in line["counters"] for line in report.lines if line["kind"] == "trial"):
            raise BadInput(f"claim: no trial counted {self.counter!r}; trial.counters shows what is counted")
        return [line["counters"].get(self.counter, 0) for line in report.trials(name)]


@dataclass(frozen=True, slots=True)
class Falls:
    """A metric falls to at most `at_most` of the baseline's (0.5: it halves)."""

    metric: str
    at_most: float = 1.0

    def __str__(self) -> str:
        """Say it."""
        share = "" if self.at_most == 1.0 else f" to {self.at_most:g} of the baseline's or less"
        return f"{words.TITLES[self.metric]} falls{share}"

    def settle(self, report: Report, variant: f.Variant) -> Settled:
        """Ask the interval, where the run's rules let it speak."""
        effect, why = _spoken(report, variant, self.metric)
        if effect is None or effect.low is None or effect.high is None:
            return INCONCLUSIVE, why
        if effect.low > self.at_most or (self.at_most == 1.0 and _equal(report, variant, effect, self.metric)):
            return REFUTED, why
        sure = effect.p_adjusted is not None and effect.p_adjusted <= LEVEL
        return (CONFIRMED if sure and effect.high <= self.at_most else INCONCLUSIVE), why


@dataclass(frozen=True, slots=True)
class Stays:
    """A metric stays what it was, within the run's margin."""

    metric: str

    def __str__(self) -> str:
        """Say it."""
        return f"{words.TITLES[self.metric]} stays"

    def settle(self, report: Report, variant: f.Variant) -> Settled:
        """Ask both one-sided tests; not to have seen a change is no proof that there is none."""
        effect, why = _spoken(report, variant, self.metric)
        if effect is None:
            return INCONCLUSIVE, why
        if _equal(report, variant, effect, self.metric):
            return CONFIRMED, why
        differs = effect.p_adjusted is not None and effect.p_adjusted <= LEVEL
        beyond = abs(math.log(effect.ratio)) >= math.log1p(report.findings.margin)
        return (REFUTED if differs and beyond else INCONCLUSIVE), why


@dataclass(frozen=True, slots=True)
class StopsGrowing:
    """Host work a Talker step grew while it spoke, and no longer does: the last tenth under `within` of the first."""

    within: float = 1.25

    def __str__(self) -> str:
        """Say it."""
        return f"host work a Talker step no longer grows: its last tenth is under {self.within:g} of its first"

    def settle(self, report: Report, variant: f.Variant) -> Settled:
        """Compare the growth of both, an interval over blocks each."""
        before, after = (_growth(report, name) for name in (report.findings.baseline_name, variant.name))
        why = f"{_growth_text(before)} -> {_growth_text(after)}"
        if before is None or after is None or min(before.blocks, after.blocks) < estimate.LEAST_BLOCKS:
            return INCONCLUSIVE, f"{why}; {variant.verdict}"
        if variant.verdict in HOLDS_BACK or after.low is None or after.high is None:
            return INCONCLUSIVE, f"{why}; {variant.verdict}"
        if before.low is None or before.low <= 0:
            return INCONCLUSIVE, f"{why}: at these lengths the baseline does not grow for certain"
        if after.low > math.log(self.within):
            return REFUTED, why
        return (CONFIRMED if after.high < math.log(self.within) else INCONCLUSIVE), why


@dataclass(frozen=True, slots=True, repr=False)
class Judged:
    """A claim, what the run says of it, and why, part by part: (part, outcome, evidence)."""

    variant: str
    claim: str
    outcome: str
    parts: tuple[tuple[str, str, str], ...]
    verdict: str  # the report's own
    run: str

    def __str__(self) -> str:
        """Return it as text."""
        table = show.plain_table(HEADER, [[*part] for part in self.parts])
        return f"{self.variant}: {self.outcome.upper()}\nclaim: {self.claim}\n{table}\n{self._below()}"

    def __repr__(self) -> str:
        """Return one line."""
        return f"<Claim of {self.variant}: {self.outcome}>"

    def _repr_html_(self) -> str:
        """Return it as HTML."""
        head = show.said(f"{self.outcome}: {self.claim}", f"{self.variant}, {self.run}")
        return show.frame(head, show.table(HEADER, self.parts, left=3), show.line(self._below(), soft=True))

    def _below(self) -> str:
        return f"verdict of the report: {self.verdict}"


HEADER = ("part of the claim", "outcome", "why")


def judged(report: Report, name: str, claim: str, parts: Sequence[Part]) -> Judged:
    """Hold a claim of the variant `name` against a run; BadInput for no parts or a variant that is not in it."""
    known = [variant.name for variant in report.findings.variants if variant.against is not None]
    if name not in known:
        raise BadInput(f"claim: no variant {name!r} in the run; there are {', '.join(known)}")
    if not parts:
        raise BadInput("claim: it has no parts; say what is counted or timed, such as Counts(...) or Falls(...)")
    variant = report.result(name)
    stopped = _stopped(variant)
    settled = [(str(part), *(stopped or part.settle(report, variant))) for part in parts]
    run, ours = report.run, report.findings
    where = f"{ours.blocks} blocks of {run['experiment']} on {run['model']}"
    return Judged(
        name, claim, _outcome([one for _, one, _ in settled]), tuple(settled), words.verdict_text(variant), where
    )


def _outcome(parts: Sequence[str]) -> str:
    return REFUTED if REFUTED in parts else CONFIRMED if set(parts) == {CONFIRMED} else INCONCLUSIVE


def _stopped(variant: f.Variant) -> Settled | None:
    """Say what ends a claim before any part of it: other output, no part taken, or no measurement."""
    if variant.verdict == f.FAILED_GATE:
        return REFUTED, f"failed the output gate: {variant.difference or variant.output}"
    if variant.verdict == f.NO_EFFECT:
        return REFUTED, "had no effect: no counter differs"
    return (INCONCLUSIVE, "not measured") if variant.verdict == f.NOT_MEASURED else None


def _spoken(report: Report, variant: f.Variant, metric: str) -> tuple[f.Effect | None, str]:
    """Return the effect on a metric, None where it may settle nothing, and how it reads."""
    effect = variant.effects.get(metric)
    if effect is None:
        return None, "not measured"
    said = f"{words.ratio_text(effect)} of the baseline's"
    if metric != report.findings.primary:
        said += ", exploratory"
    if variant.verdict in HOLDS_BACK or effect.blocks < estimate.LEAST_BLOCKS:
        return None, f"{said}; {variant.verdict}"
    return effect, said


def _equal(report: Report, variant: f.Variant, effect: f.Effect, metric: str) -> bool:
    if metric == report.findings.primary:
        return variant.verdict == f.EQUIVALENT
    return effect.p_equivalent is not None and effect.p_equivalent <= LEVEL


def _growth(report: Report, name: str) -> estimate.Estimate | None:
    """Return the growth of a variant's trials, a number a block, as an estimate of its log."""
    logs = [math.log(line["host_growth"]) for line in report.trials(name) if line["host_growth"]]
    return estimate.estimate(logs, len(report.run["variants"]) + 1)  # A/A is a trial of a block too


def _growth_text(found: estimate.Estimate | None) -> str:
    if found is None:
        return "unknown"
    edges = (
        "" if found.low is None or found.high is None else f" [{math.exp(found.low):.2f}, {math.exp(found.high):.2f}]"
    )
    return f"{math.exp(found.value):.2f}x{edges}"
