"""Which comparisons a figure and a page name, in which words, and which of them have a verdict."""

from __future__ import annotations

from dataclasses import dataclass

from omnilab.experiment.analysis.findings import FAILED_GATE, NO_EFFECT, NOT_MEASURED, Effect, Findings, Variant
from omnilab.experiment.reports import words

ONE_CELL = "one cell"
UNTIMED = (FAILED_GATE, NO_EFFECT, NOT_MEASURED)  # what needs no comparison of times


@dataclass(frozen=True, slots=True)
class Judged:
    """A comparison: its name, its effect on a metric, and its verdict in words."""

    name: str
    effect: Effect | None
    verdict: str
    words: str  # the verdict, with how many more blocks would decide it

    @property
    def ratio(self) -> str:
        """Write the effect; nothing where the output gate leaves no speed."""
        if self.effect is None:
            return "" if self.verdict == FAILED_GATE else NOT_MEASURED
        return words.ratio_text(self.effect)


def judged(findings: Findings, metric: str) -> list[Judged]:
    """Return main effects, where the design has them, then every variant but the baseline.

    Verdicts are on the primary metric; with main effects they are on those, and a variant is one cell.
    """
    rows = []
    if metric == findings.primary:
        rows = [Judged(f"{m.toggle}, main effect", m.effect, m.verdict, m.verdict) for m in findings.mains]
    for variant in findings.variants:
        if variant.against is not None:
            one = not variant.primary and variant.verdict not in UNTIMED
            verdict, said = (ONE_CELL, ONE_CELL) if one else (variant.verdict, words.verdict_text(variant))
            rows.append(Judged(name_of(variant, findings), effect_of(variant, metric), verdict, said))
    return rows


def effect_of(variant: Variant, metric: str) -> Effect | None:
    """Return a variant's effect; None where its output failed the gate."""
    return None if variant.verdict == FAILED_GATE else variant.effects.get(metric)


def name_of(variant: Variant, findings: Findings) -> str:
    """Return a variant's name, with what it is compared with unless that is the baseline."""
    against = variant.against
    return variant.name if against in (None, findings.baseline_name) else f"{variant.name} (against {against})"
