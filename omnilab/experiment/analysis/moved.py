"""Counters and span sums that a variant changed, and by how much: where its effect is to be seen."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from omnilab.experiment.analysis.effects import LEVEL, Comparison
from omnilab.experiment.analysis.findings import Moved
from omnilab.experiment.analysis.table import Row, Table, mean, too_low
from omnilab.experiment.statistics import estimate
from omnilab.experiment.statistics.estimate import LEAST_BLOCKS

LEAST_SPAN_MS = 1.0  # a span that takes less in a whole trial is not looked at


def moved_counters(table: Table, c: Comparison) -> tuple[Moved, ...]:
    """Counters that the variant changed, largest relative change first.

    A counter on which the two baseline trials agree in every block is exact: any difference counts. One that the clock
    decides (passes while waiting) must be 0 on one side only, or lie outside what others counted, on one side, in every
    one of at least 5 blocks.
    """
    sides = table.sides(c.name, c.against)
    names = {name for ours, others in sides.values() for row in (ours, *others) for name in row["counters"]}
    moved = []
    for name in sorted(names):
        counts = _counts(sides, name)
        exact = _agrees(table, c, name)
        if _differs(counts, exact):
            before = mean([float(np.mean(others)) for _, others in counts]) or 0.0
            after = mean([ours for ours, _ in counts]) or 0.0
            differences = [ours - float(np.mean(others)) for ours, others in counts]
            change = None if exact else estimate.estimate(differences, table.per_block)
            low, high = (None, None) if change is None else (change.low, change.high)
            moved.append(Moved(name, before, after, low, high, exact=exact))
    return tuple(sorted(moved, key=lambda m: abs(m.after - m.before) / (m.after + m.before or 1), reverse=True))


def unsettled(table: Table, c: Comparison) -> bool:
    """Is there a counter of the clock's that lies on one side in every block, in too few blocks to count as moved?"""
    sides = table.sides(c.name, c.against)
    names = {name for ours, others in sides.values() for row in (ours, *others) for name in row["counters"]}
    return len(sides) < LEAST_BLOCKS and any(
        len(_places(_counts(sides, name))) == 1 and _places(_counts(sides, name)) != {0} for name in names
    )


def _counts(sides: Mapping[int, tuple[Row, list[Row]]], name: str) -> list[tuple[int, list[int]]]:
    return [
        (ours["counters"].get(name, 0), [other["counters"].get(name, 0) for other in others])
        for ours, others in sides.values()
    ]


def _places(counts: Sequence[tuple[int, list[int]]]) -> set[int]:
    """Return on which side of what others counted it lies, over blocks."""
    return {(ours > max(others)) - (ours < min(others)) for ours, others in counts}


def _agrees(table: Table, c: Comparison, name: str) -> bool:
    """Do both baseline trials agree on a counter in every block? It says nothing of comparisons with other variants."""
    pairs = [rows for block in table.blocks if len(rows := table.baselines(block)) > 1]
    agree = all(len({row["counters"].get(name, 0) for row in rows}) == 1 for rows in pairs)
    return c.against == table.baseline and bool(pairs) and agree


def _differs(counts: Sequence[tuple[int, list[int]]], exact: bool) -> bool:
    places = _places(counts)
    if places == {0} or not places:
        return False
    zero = {(ours == 0, not any(others)) for ours, others in counts}
    silenced = zero in ({(True, False)}, {(False, True)})
    return exact or silenced or (len(counts) >= LEAST_BLOCKS and len(places) == 1)


def moved_spans(table: Table, comparisons: Sequence[Comparison]) -> dict[str, tuple[Moved, ...]]:
    """Span sums in ms by variant that differ by more than noise, largest first.

    Benjamini-Hochberg over all spans of all variants: exploratory.
    """
    lost = {loop for row in table.rows.values() for loop in too_low(row)}  # not looked at
    names = sorted({
        name for row in table.rows.values() for name, ms in row["spans_ms"].items()
        if ms >= LEAST_SPAN_MS and name.rsplit("/", 1)[0] not in lost
    })  # fmt: skip
    found: list[tuple[str, Moved, float]] = []
    for name in names:
        columns = table.columns(table.matrix(lambda row, name=name: row["spans_ms"].get(name, 0.0)))
        for c in comparisons:
            change = estimate.estimate(table.against(columns, c.name, c.against), table.per_block)
            if change is not None and change.p is not None:
                before, after = _sums(table, c, name)
                found.append((c.name, Moved(name, before, after, change.low, change.high), change.p))
    adjusted = estimate.benjamini_hochberg([p for *_, p in found]) if found else []
    moved: dict[str, list[Moved]] = {c.name: [] for c in comparisons}
    for (variant, m, _), p in zip(found, adjusted, strict=True):
        if p <= LEVEL and not math.isclose(m.before, m.after, abs_tol=LEAST_SPAN_MS / 100):
            moved[variant].append(Moved(m.what, m.before, m.after, m.low, m.high, float(p)))
    return {
        variant: tuple(sorted(several, key=lambda m: abs(m.after - m.before), reverse=True))
        for variant, several in moved.items()
    }


def _sums(table: Table, c: Comparison, name: str) -> tuple[float, float]:
    sides = table.sides(c.name, c.against).values()
    before = mean([mean([row["spans_ms"].get(name, 0.0) for row in others]) for _, others in sides])
    return before or 0.0, mean([ours["spans_ms"].get(name, 0.0) for ours, _ in sides]) or 0.0


def per_stage(table: Table) -> dict[str, dict[str, float]]:
    """Mean span sums in ms a trial by variant and "stage/name", over the stage's threads; A/A is the baseline."""
    found: dict[str, dict[str, float]] = {}
    for name in (n for n in table.names if n != table.names[1]):
        rows = table.of(name) + (table.of(table.names[1]) if name == table.baseline else [])
        sums: dict[str, float] = {}
        for row in rows:
            for span, ms in row["spans_ms"].items():
                stage, _, what = span.split("/")
                sums[f"{stage}/{what}"] = sums.get(f"{stage}/{what}", 0.0) + ms / len(rows)
        if rows:
            found[name] = dict(sorted(sums.items()))
    return found
