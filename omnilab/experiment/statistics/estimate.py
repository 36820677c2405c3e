"""Effects over blocks: one number a block and contrast, its interval Student t over blocks. Needs numpy and scipy.

Values are logs unless said otherwise, so that an effect is the log of a ratio. Arrays may have leading axes (many runs
at once, as the simulation test has); only without them may NaN stand for a trial that is missing.
No bootstrap for a verdict: at 5 blocks its 95 % interval covers 82 %. No spread pooled over cells: where a toggle acts
differently from block to block, such an interval covers as little.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

Array: TypeAlias = NDArray[np.float64]

LEVEL = 0.95
LEAST_BLOCKS = 5  # for a verdict
INTERVAL_BLOCKS = 3  # for an interval
LEAST_SE = 1e-12  # what rounding leaves; below it no spread is told from none
UNRESOLVED = 1e-9  # share of the positions' spread that must be left for a slope to be fitted
POLISHES = 10
MAD_TO_SD = 1.4826  # of normal draws
DRAWS = 400


@dataclass(frozen=True, slots=True)
class Estimate:
    """An effect with its standard error, two-sided p, 95 % interval, and over how many blocks.

    `se` and `p` are None from one block, `low` and `high` below 3 blocks.
    """

    value: float
    se: float | None
    p: float | None
    low: float | None
    high: float | None
    blocks: int
    halves: bool = False  # is it made of two kinds of blocks

    @property
    def df(self) -> int:
        """Degrees of freedom: blocks less one for each kind of block."""
        return self.blocks - 1 - self.halves

    def excludes(self, null: float) -> bool:
        """Does the interval leave `null` out?"""
        return self.low is not None and self.high is not None and not self.low <= null <= self.high


def remove_slope(values: ArrayLike, positions: ArrayLike) -> Array:
    """Return values [..., B, V] less the slope of position within the block that all blocks share.

    Block and variant effects are fitted with it (least squares), so none of them leaks into the slope. Every value is
    moved to the middle of its block; a block keeps its mean. Where position cannot be told from variant (every block
    in one order) nothing is removed. [B, V] may hold NaN, which stays.
    """
    values, positions = np.asarray(values, dtype=float), np.asarray(positions, dtype=float)
    if np.isnan(values).any():
        return _remove_slope_of_known(values, positions)
    moved = positions - positions.mean(-1, keepdims=True)
    slope = _slope(_centred(values), _centred(positions), moved, (-2, -1))
    return values - slope * moved


def _centred(table: Array) -> Array:
    rest = table - table.mean(-1, keepdims=True)
    return rest - rest.mean(-2, keepdims=True)


def _slope(rest: Array, places: Array, moved: Array, axes: tuple[int, ...]) -> Array:
    """Regress what block and variant leave of values on what they leave of positions; 0 where that is nothing."""
    spread = (places**2).sum(axes, keepdims=True)
    shared = (rest * places).sum(axes, keepdims=True)
    told = spread > UNRESOLVED * (moved**2).sum(axes, keepdims=True)
    return np.divide(shared, spread, out=np.zeros_like(shared), where=np.broadcast_to(told, shared.shape))


def _remove_slope_of_known(values: Array, positions: Array) -> Array:
    known = ~np.isnan(values)
    if not known.any():
        return values.copy()
    counts = np.maximum(known.sum(1, keepdims=True), 1)
    moved = positions - np.where(known, positions, 0.0).sum(1, keepdims=True) / counts
    blocks, variants = np.nonzero(known)
    dummies = np.hstack([np.eye(values.shape[0])[blocks], np.eye(values.shape[1])[variants]])
    both = np.column_stack([values[known], moved[known]])
    rest, places = (both - dummies @ np.linalg.lstsq(dummies, both)[0]).T
    return values - _slope(rest, places, moved[known], (0,)) * moved


def slope_factor(variants: int, blocks: int) -> float:
    """Return what a standard error is multiplied by to pay for the slope: 1 + 1/((V-1)(B-1)).

    `variants` are the trials a block, the repeated baseline counted. ValueError below 2 of either.
    """
    if variants < 2 or blocks < 2:
        raise ValueError(f"a comparison needs 2 variants and 2 blocks, not {variants} and {blocks}")
    return 1 + 1 / ((variants - 1) * (blocks - 1))


def t_summary(per_block: ArrayLike, variants: int, null: float = 0.0) -> tuple[Array, Array, Array]:
    """Summarize contrasts [..., B, m] as estimate, standard error and two-sided p, each [..., m]; df is B - 1.

    A standard error of 0 gives p 1 at `null`, 0 elsewhere. ValueError below 2 blocks.
    """
    per_block = np.asarray(per_block, dtype=float)
    blocks = per_block.shape[-2]
    factor = slope_factor(variants, blocks)
    value = per_block.mean(-2)
    se = per_block.std(-2, ddof=1) / math.sqrt(blocks) * factor
    return value, se, 2 * stats.t.sf(np.abs(_in_se(value - null, se)), blocks - 1)


def _in_se(distance: ArrayLike, se: ArrayLike) -> Array:
    return np.asarray(distance) / np.maximum(se, LEAST_SE)


def estimate(per_block: ArrayLike, variants: int, null: float = 0.0, level: float = LEVEL) -> Estimate | None:
    """Estimate an effect from its contrast in each block [B]; NaN is a block without it. None without any."""
    known = np.asarray(per_block, dtype=float)
    known = known[~np.isnan(known)]
    if len(known) == 0:
        return None
    if len(known) == 1:
        return Estimate(float(known[0]), None, None, None, None, 1)
    value, se, p = (float(part[0]) for part in t_summary(known[:, None], variants, null))
    return Estimate(value, se, p, *_limits(value, se, len(known), level), len(known))


def estimate_of_halves(first: ArrayLike, second: ArrayLike, variants: int, level: float = LEVEL) -> Estimate | None:
    """Estimate the mean of two kinds of blocks' means, whatever lies between them; None without two blocks of each.

    For half-fractions: one half has an effect plus its alias, the other less it. Taking all blocks as one kind would
    count the alias as noise, and leave a part of it where one kind has lost a block.
    """
    halves = [part[~np.isnan(part)] for part in (np.asarray(side, dtype=float) for side in (first, second))]
    counts = [len(part) for part in halves]
    if min(counts) < 2:
        return None
    blocks, value = sum(counts), float(np.mean([part.mean() for part in halves]))
    within = sum(float(((part - part.mean()) ** 2).sum()) for part in halves) / (blocks - 2)  # one variance for both
    se = math.sqrt(within * sum(1 / count for count in counts)) / 2 * slope_factor(variants, blocks)
    p = float(2 * stats.t.sf(abs(_in_se(value, se)), blocks - 2))
    return Estimate(value, se, p, *_limits(value, se, blocks - 1, level), blocks, halves=True)


def _limits(value: float, se: float, blocks: int, level: float) -> tuple[float | None, float | None]:
    if blocks < INTERVAL_BLOCKS:
        return None, None
    half = _quantile_of_t(level, blocks) * se
    return value - half, value + half


def _quantile_of_t(level: float, blocks: int) -> float:
    return float(stats.t.ppf((1 + level) / 2, blocks - 1))


def equivalence_p(value: ArrayLike, se: ArrayLike, blocks: int, margin: float) -> Array:
    """Return the p value of two one-sided tests that the ratio lies within 1 + margin and its inverse.

    `value` and `se` are logs (any shape), `margin` a ratio less one: 0.02 for 2 %.
    """
    edge = math.log1p(margin)
    above = stats.t.sf(_in_se(np.asarray(value) + edge, se), blocks - 1)
    below = stats.t.cdf(_in_se(np.asarray(value) - edge, se), blocks - 1)
    return np.maximum(above, below)


def holm(p: ArrayLike) -> Array:
    """Return p values adjusted for all in the last axis (Holm). NaN stays and does not count."""
    p = np.asarray(p, dtype=float)
    order = np.argsort(p, -1)  # NaN last
    left = (~np.isnan(p)).sum(-1, keepdims=True) - np.arange(p.shape[-1])
    adjusted = np.maximum.accumulate(np.take_along_axis(p, order, -1) * left, -1)
    found = np.empty_like(p)
    np.put_along_axis(found, order, np.minimum(adjusted, 1.0), -1)
    return found


def benjamini_hochberg(p: ArrayLike) -> Array:
    """Return p values adjusted for the rate of false discoveries in the last axis. NaN stays and does not count."""
    p = np.asarray(p, dtype=float)
    if not np.isnan(p).any():
        return np.asarray(stats.false_discovery_control(p, axis=-1))
    return np.apply_along_axis(_adjust_known, -1, p)


def _adjust_known(p: Array) -> Array:
    found, known = p.copy(), ~np.isnan(p)
    found[known] = stats.false_discovery_control(p[known])
    return found


def clip_outliers(values: ArrayLike, mads: float = 5.0) -> Array:
    """Return log values [..., B, V] with those far from the block-plus-variant table moved to `mads` MAD from it.

    The table is fitted by median polish, blind to what a variant is. MAD is scaled to the standard deviation of a
    normal. Clip before `remove_slope`, which an outlier would spoil. [B, V] may hold NaN, which stays. Without spread
    nothing is clipped.
    """
    values = np.asarray(values, dtype=float)
    known = ~np.isnan(values)
    if known.all():
        return _clip(values, mads)
    found, rows_and_columns = values.copy(), np.ix_(known.any(1), known.any(0))
    found[rows_and_columns] = _clip(values[rows_and_columns], mads)
    return found


def _clip(values: Array, mads: float) -> Array:
    if values.size == 0:
        return values.copy()
    median = np.nanmedian if np.isnan(values).any() else np.median
    rest = values.copy()
    for _ in range(POLISHES):
        rest -= median(rest, axis=-1, keepdims=True)
        rest -= median(rest, axis=-2, keepdims=True)
    blocks, variants = values.shape[-2:]
    known = blocks * variants - int(np.isnan(values).sum())
    # The fit makes as many residuals small as it has terms: counting those, a small design's MAD is too small.
    free = max(known - (blocks + variants - 1), 1)
    sizes = np.sort(np.abs(rest).reshape(*values.shape[:-2], -1), -1)  # NaN last
    sd = MAD_TO_SD * np.median(sizes[..., known - free : known], axis=-1)[..., None, None]
    most = np.where(sd > LEAST_SE, mads * sd, np.inf)
    return np.where(np.abs(rest) > most, values - rest + np.clip(rest, -most, most), values)


def fieller_share(
    per_block: ArrayLike, total: ArrayLike, variants: int, level: float = LEVEL
) -> tuple[float, float, float] | None:
    """Return an effect's share of a total, and its Fieller limits, from both contrasts in each block [B].

    Blocks where either is NaN are left out. None below 3 blocks, or when the total's own interval holds 0: then the
    share may be anything.
    """
    both = np.stack([np.asarray(per_block, dtype=float), np.asarray(total, dtype=float)])
    both = both[:, ~np.isnan(both).any(0)]
    blocks = both.shape[1]
    if blocks < INTERVAL_BLOCKS:
        return None
    part, whole = both.mean(1)
    cov = np.cov(both) / blocks
    reach = _quantile_of_t(level, blocks) * slope_factor(variants, blocks)
    if abs(whole) <= reach * max(math.sqrt(cov[1, 1]), LEAST_SE):
        return None
    # The limits are the roots s of (part - s whole)^2 = reach^2 var(part - s whole).
    a, b, c = (x - reach**2 * v for x, v in ((whole**2, cov[1, 1]), (part * whole, cov[0, 1]), (part**2, cov[0, 0])))
    root = math.sqrt(max(b * b - a * c, 0.0))
    return float(part / whole), float((b - root) / a), float((b + root) / a)


def quantile_effect(
    base: Iterable[ArrayLike], arm: Iterable[ArrayLike], q: float, seed: int, level: float = LEVEL
) -> Estimate:
    """Estimate the difference of the q-quantiles of log values, pooled over blocks: exploratory.

    `base` and `arm` hold one array of requests a block, paired by block; NaN is a request without a value, and a block
    without requests on either side is left out. Blocks are brought to one level first, both sides alike: the slowest
    block alone would make the upper quantiles, and 95 % intervals cover 90 %. The standard error is that of drawing
    blocks anew (seeded), x sqrt(B / (B - 1)). ValueError when a variant has too few requests for a 95 % bound of the
    quantile to exist at all: 29, 59 and 299 are needed for p90, p95 and p99.
    """
    pairs = [(x, y) for x, y in zip(map(_known, base), map(_known, arm), strict=True) if len(x) and len(y)]
    levels = [(np.median(x) + np.median(y)) / 2 for x, y in pairs]
    level_pairs = [(x - middle, y - middle) for (x, y), middle in zip(pairs, levels, strict=True)]
    sides = [list(side) for side in zip(*level_pairs, strict=True)]
    least, requests = least_requests(q), min((sum(map(len, side)) for side in sides), default=0)
    if requests < least:
        raise ValueError(f"p{100 * q:g} needs {least} requests a variant, not {requests}")
    blocks, random = len(pairs), np.random.default_rng(seed)
    drawn = np.vstack([np.arange(blocks), random.integers(0, blocks, (DRAWS, blocks))])  # first: all as they are
    before, after = (_quantiles(side, drawn, q) for side in sides)
    value, others = float(after[0] - before[0]), after[1:] - before[1:]
    if blocks == 1:
        return Estimate(value, None, None, None, None, 1)
    se = float(np.std(others, ddof=1)) * math.sqrt(blocks / (blocks - 1))
    p = float(2 * stats.t.sf(abs(_in_se(value, se)), blocks - 1))
    return Estimate(value, se, p, *_limits(value, se, blocks, level), blocks)


def _known(values: ArrayLike) -> Array:
    found = np.asarray(values, dtype=float)
    return found[~np.isnan(found)]


def _quantiles(blocks: Sequence[Array], drawn: NDArray[np.int64], q: float) -> Array:
    """Return the q-quantile of the requests of each drawn set of blocks, pooled; `drawn` is [draws, B]."""
    longest = max(map(len, blocks))
    padded = np.stack([np.pad(block, (0, longest - len(block)), constant_values=np.nan) for block in blocks])
    quantile = np.nanquantile if np.isnan(padded).any() else np.quantile  # the former is some ten times slower
    return np.asarray(quantile(padded[drawn].reshape(len(drawn), -1), q, axis=1), dtype=float)


def least_requests(q: float) -> int:
    """Return the least number of requests of which one lies beyond the q-quantile in 95 % of all cases.

    ValueError unless q lies between 0 and 1.
    """
    if not 0 < q < 1:
        raise ValueError(f"a quantile lies between 0 and 1, not at {q}")
    return math.ceil(math.log(0.05) / math.log(max(q, 1 - q)))
