"""Effects of variants over what they are compared with: intervals, corrections, verdicts. Needs numpy and scipy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from omnilab.experiment.analysis import findings
from omnilab.experiment.analysis.findings import Effect
from omnilab.experiment.analysis.table import Array, Table, mean
from omnilab.experiment.statistics import estimate, power
from omnilab.experiment.statistics.estimate import Estimate
from omnilab.metrics import THROUGHPUTS

LEVEL = 0.05
NOTED, WITHHELD = 0.05, 0.01  # p of A/A on the primary metric


@dataclass(frozen=True, slots=True)
class Comparison:
    """A variant and what it is compared with; `primary`: its verdict shares the error rate."""

    name: str
    against: str
    primary: bool


def effects_of(
    table: Table, comparisons: list[Comparison], metrics: tuple[str, ...], primary: str, margin: float
) -> dict[str, dict[str, Effect]]:
    """Return by variant and metric the effects, with Holm over the primaries and Benjamini-Hochberg over the rest."""
    num_primaries = max(1, sum(c.primary for c in comparisons))
    found: dict[tuple[str, str], Effect] = {}
    for metric in metrics:
        logs = table.logs(metric)
        columns, clipped = table.columns(logs), table.columns(estimate.clip_outliers(logs))
        for c in comparisons:
            level = LEVEL / num_primaries if c.primary and metric == primary else LEVEL
            per_block = table.against(columns, c.name, c.against)
            effect = effect_of(per_block, table.per_block, margin, level)
            if effect is not None:
                robust = estimate.estimate(table.against(clipped, c.name, c.against), table.per_block)
                found[c.name, metric] = replace(
                    effect, clipped=None if robust is None else math.exp(robust.value), **_means(table, c, metric)
                )
    return _adjusted(found, {(c.name, primary) for c in comparisons if c.primary})


def effect_of(per_block: Array, variants: int, margin: float, level: float) -> Effect | None:
    """Return an effect from its contrast (a log) in each block, not yet adjusted; None without any."""
    found = estimate.estimate(per_block, variants)
    return None if found is None else _effect(found, spread(per_block), variants, margin, level)


def effect_of_halves(first: Array, second: Array, variants: int, margin: float, level: float) -> Effect | None:
    """Return the effect midway between two kinds of blocks that confound it with opposite signs; None without both."""
    found = estimate.estimate_of_halves(first, second, variants)
    if found is None or found.se is None:
        return None
    sd = found.se * math.sqrt(found.blocks) / estimate.slope_factor(variants, found.blocks)
    return _effect(found, sd, variants, margin, level)


def _effect(found: Estimate, sd: float, variants: int, margin: float, level: float) -> Effect:
    low, high = (None if edge is None else math.exp(edge) for edge in (found.low, found.high))
    effect = Effect(math.exp(found.value), low, high, found.blocks, p=found.p)
    if found.blocks < estimate.INTERVAL_BLOCKS or found.se is None:
        return effect
    equivalent = float(estimate.equivalence_p(found.value, found.se, found.df + 1, margin))
    least = power.mde(sd, found.df + 1, level, found.df, variants=variants)
    return replace(effect, p_equivalent=equivalent, mde=math.expm1(least))


def spread(per_block: Array) -> float:
    """Standard deviation of a contrast over blocks."""
    known = per_block[~np.isnan(per_block)]
    return float(np.std(known, ddof=1)) if len(known) > 1 else 0.0


def _means(table: Table, c: Comparison, metric: str) -> dict[str, float | None]:
    sides = table.sides(c.name, c.against).values()
    return {
        "before": mean([mean([table.value(row, metric) for row in others]) for _, others in sides]),
        "after": mean([table.value(ours, metric) for ours, _ in sides]),
    }


def _adjusted(found: dict[tuple[str, str], Effect], primaries: set[tuple[str, str]]) -> dict[str, dict[str, Effect]]:
    by_variant: dict[str, dict[str, Effect]] = {}
    for keys, adjust in (
        ([key for key in found if key in primaries], estimate.holm),
        ([key for key in found if key not in primaries], estimate.benjamini_hochberg),
    ):
        for (variant, metric), effect in zip(keys, adjusted([found[key] for key in keys], adjust), strict=True):
            by_variant.setdefault(variant, {})[metric] = effect
    return by_variant


def adjusted(effects: Sequence[Effect], adjust: Callable[[list[float]], Array]) -> list[Effect]:
    """Return effects with their p values adjusted for all of them."""
    p = adjust([math.nan if effect.p is None else effect.p for effect in effects]) if effects else []
    return [
        replace(effect, p_adjusted=None if math.isnan(value) else float(value))
        for effect, value in zip(effects, p, strict=True)
    ]


def same_of(table: Table, metrics: tuple[str, ...], margin: float) -> dict[str, Effect]:
    """Return A/A by metric: the baseline's second trial over its first."""
    found: dict[str, Effect] = {}
    first, second = table.names[:2]
    for metric in metrics:
        columns = table.columns(table.logs(metric))
        effect = effect_of(columns[second] - columns[first], table.per_block, margin, LEVEL)
        if effect is not None:
            found[metric] = effect
    return found


def verdict_of(effect: Effect, metric: str, margin: float, withheld: str | None, decided: bool | None = None) -> str:
    """Say what an effect on the primary metric shows.

    `withheld`: why it may not be faster or slower. `decided`: what the looks' levels say, where there are looks.
    """
    if effect.blocks < estimate.LEAST_BLOCKS or effect.p_adjusted is None:
        return findings.TOO_FEW
    differs = effect.p_adjusted <= LEVEL if decided is None else decided
    if differs and withheld:
        return withheld
    if differs:
        better = (effect.ratio > 1) if metric in THROUGHPUTS else (effect.ratio < 1)
        word = findings.FASTER if better else findings.SLOWER
        small = abs(math.log(effect.ratio)) < math.log1p(margin)
        return f"{word}, below the margin" if small else word
    if effect.p_equivalent is not None and effect.p_equivalent <= LEVEL:
        return findings.EQUIVALENT
    return findings.INCONCLUSIVE


def more_blocks(per_block: Array, variants: int, margin: float, num_primaries: int) -> int | None:
    """About how many more blocks would see an effect of this size, or show that there is none. None: too many."""
    known = per_block[~np.isnan(per_block)]
    sd, size = spread(per_block), abs(float(np.mean(known)))
    try:
        if size > math.log1p(margin):
            wanted = power.blocks_for(size, sd, LEVEL / num_primaries, variants=variants)
        else:
            wanted = power.equivalence_blocks(sd, margin, variants=variants)
    except ValueError:
        return None
    return max(1, wanted - len(known))


def looked(table: Table, comparisons: list[Comparison], primary: str) -> dict[str, bool]:
    """Return by variant whether its primary is decided at the looks after 5, 7 and 10 blocks that were reached."""
    names = [c for c in comparisons if c.primary]
    done = np.zeros(len(names), dtype=bool)
    logs = table.logs(primary)
    for blocks in power.LOOKS:
        if blocks > len(table.blocks):
            break
        columns = table.columns(np.where(np.arange(len(logs))[:, None] < blocks, logs, np.nan))
        found = [estimate.estimate(table.against(columns, c.name, c.against), table.per_block) for c in names]
        done = power.decided([1.0 if f is None or f.p is None else f.p for f in found], blocks, done)
    return {c.name: bool(d) for c, d in zip(names, done, strict=True)}
