"""From the lines of a run to what they show: ratios over blocks, counters and spans that moved, a verdict a variant.

Reads plain rows, draws nothing, needs no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from omnilab.experiment import statistics
from omnilab.experiment.plan import AGAIN
from omnilab.experiment.statistics import LEAST_BLOCKS, Estimate

RATIOS = ("wall_s", "ttft_ms", "audio_ttfp_ms", "host_ms_per_step", "cpu_s")
LEAST_SPAN_MS = 1.0  # a span that takes less in a whole trial is not looked at
SHOWN = 5  # spans and counters named per variant

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Moved:
    """A counter or a span sum that differs: its mean before and after, with the interval of the difference."""

    what: str
    before: float
    after: float
    change: Estimate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What the run shows of one variant."""

    name: str
    toggles: tuple[str, ...]
    against: str | None
    difference: str | None  # first difference of its output; None: same output
    gated: bool  # was its output compared at all
    trials: int
    errors: tuple[str, ...]
    ratios: Mapping[str, Estimate | None]
    growth: float | None  # host work a chunk-consuming Talker step, last tenth over first tenth
    counters: tuple[Moved, ...]
    spans: tuple[Moved, ...]
    verdict: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """What the run shows. `baseline` holds the baseline's means by metric."""

    baseline_name: str
    baseline: Mapping[str, float | None]
    same: Mapping[str, Estimate | None]  # A/A: the baseline's second trial over its first
    results: tuple[Result, ...]  # the baseline first
    blocks: int
    planned_blocks: int
    unfinished: bool
    disturbed: int  # trials during which other programs used more than a tenth of the cores
    trials: int


def analyse(run: Row, lines: Sequence[Row]) -> Analysis:
    """Analyse a run from its run.json and its trial lines."""
    base = run["baseline"]
    good = [line for line in lines if line["kind"] == "trial" and not line["error"]]
    by_variant: dict[str, dict[int, Row]] = {}
    for line in good:
        by_variant.setdefault(line["variant"], {})[line["block"]] = line
    differences = _differences(lines)
    first, second = by_variant.get(base, {}), by_variant.get(base + AGAIN, {})
    pairs = {b: [t[b] for t in (first, second) if b in t] for b in sorted({*first, *second})}
    tried = {(line["block"], line["variant"]) for line in lines if line["kind"] == "trial"}
    stopped = {name for name, found in differences.items() if found}
    wanted = {
        (b, name)
        for b, order in enumerate(run["orders"][: run["rule"]["first"]])
        for name in order
        if name not in stopped
    }
    return Analysis(
        baseline_name=base,
        baseline={m: _mean([row["metrics"][m] for rows in pairs.values() for row in rows]) for m in RATIOS},
        same={m: statistics.ratio(_values(second, m), _lists({b: [r] for b, r in first.items()}, m)) for m in RATIOS},
        results=tuple(_result(v, by_variant, pairs, base, differences, lines) for v in run["variants"]),
        blocks=len(pairs),
        planned_blocks=run["rule"]["first"],
        unfinished=bool(wanted - tried),
        disturbed=sum(bool(row["disturbed"]) for row in good),
        trials=len(good),
    )


def _result(
    variant: Row,
    by_variant: Mapping[str, Mapping[int, Row]],
    pairs: Mapping[int, list[Row]],
    base: str,
    differences: Mapping[str, str | None],
    lines: Sequence[Row],
) -> Result:
    name, against = variant["name"], variant["against"]
    ours = by_variant.get(name, {})
    others = pairs if against in (None, base) else {b: [row] for b, row in by_variant.get(against, {}).items()}
    difference = differences.get(name)
    no_speed = difference is not None or against is None
    ratios = {} if no_speed else {m: statistics.ratio(_values(ours, m), _lists(others, m)) for m in RATIOS}
    counters = () if no_speed else moved_counters(ours, others, pairs)
    shared = bool(set(ours) & set(others))
    return Result(
        name=name,
        toggles=tuple(variant["toggles"]),
        against=against,
        difference=difference,
        gated=name in differences,
        trials=len(ours),
        errors=tuple(line["error"] for line in lines if line["variant"] == name and line.get("error")),
        ratios=ratios,
        growth=_mean([row["host_growth"] for row in ours.values()]),
        counters=counters,
        spans=() if no_speed else moved_spans(ours, others),
        verdict=_verdict(against, difference, shared, bool(counters), ratios),
    )


def _verdict(
    against: str | None, difference: str | None, shared: bool, effect: bool, ratios: Mapping[str, Estimate | None]
) -> str:
    if against is None:
        return "baseline"
    if difference is not None:
        return "failed the gate"
    if not shared:
        return "not measured"
    if not effect:
        return "had no effect"
    return statistics.verdict(ratios["wall_s"])


def _differences(lines: Sequence[Row]) -> dict[str, str | None]:
    """First difference by variant over the gate and every block; None where all were the same."""
    found: dict[str, str | None] = {}
    for line in lines:
        if line["kind"] in ("gate comparison", "comparison"):
            found[line["variant"]] = found.get(line["variant"]) or line["difference"]
        elif line["kind"] == "gate" and line["error"]:
            found[line["variant"]] = found.get(line["variant"]) or line["error"]
    return found


def moved_counters(
    ours: Mapping[int, Row], others: Mapping[int, list[Row]], baselines: Mapping[int, list[Row]]
) -> tuple[Moved, ...]:
    """Counters that the variant changed, largest relative change first.

    A counter on which the two baseline trials agree in every block is exact: any difference counts. One that the clock
    decides (passes while waiting) must be 0 on one side only, or lie outside what others counted, on one side, in every
    one of at least 5 blocks.
    """
    blocks = sorted(set(ours) & set(others))
    names = {name for b in blocks for row in (ours[b], *others[b]) for name in row["counters"]}
    moved = []
    for name in sorted(names):
        noisy = any(len({row["counters"].get(name, 0) for row in rows}) > 1 for rows in baselines.values())
        counts = {b: [row["counters"].get(name, 0) for row in (ours[b], *others[b])] for b in blocks}
        sides = {_side(first, rest) for first, *rest in counts.values()}
        zero = {(first == 0, not any(rest)) for first, *rest in counts.values()}
        silenced = zero in ({(True, False)}, {(False, True)})
        if noisy and not silenced and (len(blocks) < LEAST_BLOCKS or len(sides) > 1):
            continue
        if sides != {0}:
            before = _mean([value for _, *rest in counts.values() for value in rest]) or 0.0
            after = _mean([first for first, *_ in counts.values()]) or 0.0
            moved.append(Moved(name, before, after))
    return tuple(sorted(moved, key=lambda m: abs(m.after - m.before) / (m.after + m.before or 1), reverse=True))


def moved_spans(ours: Mapping[int, Row], others: Mapping[int, list[Row]]) -> tuple[Moved, ...]:
    """Span sums in ms that the variant changed, largest first; the intervals' level is shared by all looked at."""
    blocks = sorted(set(ours) & set(others))
    names = {name for b in blocks for row in (ours[b], *others[b]) for name, ms in row["spans_ms"].items()
             if ms >= LEAST_SPAN_MS}  # fmt: skip
    level = 1 - (1 - statistics.LEVEL) / max(1, len(names))
    moved = []
    for name in sorted(names):
        after = {b: ours[b]["spans_ms"].get(name, 0.0) for b in blocks}
        before = {b: [row["spans_ms"].get(name, 0.0) for row in others[b]] for b in blocks}
        change = statistics.difference(after, before, level)
        if change is not None and change.excludes(0.0):
            means = _mean([ms for values in before.values() for ms in values]), _mean(list(after.values()))
            moved.append(Moved(name, means[0] or 0.0, means[1] or 0.0, change))
    return tuple(sorted(moved, key=lambda m: abs(m.after - m.before), reverse=True))


def _side(value: float, others: Sequence[float]) -> int:
    return (value > max(others)) - (value < min(others))


def _values(rows: Mapping[int, Row], metric: str) -> dict[int, float | None]:
    return {block: row["metrics"][metric] for block, row in rows.items()}


def _lists(rows: Mapping[int, list[Row]], metric: str) -> dict[int, list[float | None]]:
    return {block: [row["metrics"][metric] for row in several] for block, several in rows.items()}


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
