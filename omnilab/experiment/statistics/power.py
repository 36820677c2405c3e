"""How many blocks, and what they can show: power, least detectable effects, looks. Log scale; needs numpy and scipy.

`sd` is always that of one contrast over blocks, as measured: without the factor by which its standard error pays for
the position slope. The functions add that factor, hence their `variants`: the trials a block, the repeated baseline
counted.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, special, stats

from omnilab.experiment.statistics.estimate import INTERVAL_BLOCKS, LEAST_BLOCKS, slope_factor

Array: TypeAlias = NDArray[np.float64]

POWER = 0.80
MOST_BLOCKS = 200
NODES = 96  # powers to 1e-5

# Levels of an unadjusted p after so many blocks, by how many hypotheses are not yet decided: O'Brien-Fleming spending
# of 0.05 / m over the three looks, m as in Holm.
LOOKS: Mapping[int, Mapping[int, float]] = MappingProxyType(
    {
        5: MappingProxyType({4: 0.00041, 3: 0.00071, 2: 0.00154, 1: 0.0056}),
        7: MappingProxyType({4: 0.00265, 3: 0.00385, 2: 0.00647, 1: 0.0157}),
        10: MappingProxyType({4: 0.0108, 3: 0.0143, 2: 0.0206, 1: 0.0393}),
    }
)


def power(effect: float, sd: float, blocks: int, alpha: float, sd_df: float = math.inf, *, variants: int) -> float:
    """Return the chance that a two-sided t test over blocks finds an effect at level alpha.

    An sd estimated on `sd_df` degrees of freedom may be wrong; the chance is averaged over its error.
    """
    if sd == 0:
        return 1.0 if effect else alpha
    return _unit_power(abs(effect) / (sd * slope_factor(variants, blocks)), blocks, alpha, sd_df)


def mde(sd: float, blocks: int, alpha: float, sd_df: float = math.inf, *, variants: int) -> float:
    """Return the least effect that is found with 80 % power, as `power` counts it."""
    return sd * slope_factor(variants, blocks) * _unit_mde(blocks, alpha, sd_df)


def blocks_for(
    effect: float, sd: float, alpha: float, sd_df: float = math.inf, most: int = MOST_BLOCKS, *, variants: int
) -> int:
    """Return the least number of blocks, from 3, that finds an effect with 80 % power; ValueError if above `most`."""
    tried = range(INTERVAL_BLOCKS, most + 1)
    index = bisect_left(tried, POWER, key=lambda blocks: power(effect, sd, blocks, alpha, sd_df, variants=variants))
    if index == len(tried):
        raise ValueError(f"an effect of {math.expm1(abs(effect)):.1%} needs more than {most} blocks")
    return tried[index]


def equivalence_blocks(sd: float, margin: float, alpha: float = 0.05, most: int = MOST_BLOCKS, *, variants: int) -> int:
    """Return the least number of blocks, from 3, that shows a true 1 to lie within `margin` (0.02: 2 %), 80 % power.

    ValueError if above `most`.
    """
    tried = range(INTERVAL_BLOCKS, most + 1)
    index = bisect_left(tried, POWER, key=lambda blocks: _equivalence_power(sd, blocks, margin, alpha, variants))
    if index == len(tried):
        raise ValueError(f"a margin of {margin:.1%} needs more than {most} blocks")
    return tried[index]


def blocks_after_five(mean_variance: float, effect: float, alpha: float, variants: int, cap: int = 30) -> int:
    """Size a run once, after 5 blocks, from the noise alone: the number of blocks in all, 5 to `cap`.

    `mean_variance` is that of the contrasts over the 5 blocks, averaged over toggles (the greater of that and the
    average over interactions scaled like main effects). It must not look at effects: only then do later levels hold.
    `cap` comes back too when more would be needed: the run is then too short for `effect`.
    """
    tried = range(LEAST_BLOCKS, cap)
    sd = math.sqrt(mean_variance)
    return LEAST_BLOCKS + bisect_left(
        tried, POWER, key=lambda blocks: power(effect, sd, blocks, alpha, variants=variants)
    )


def decided(p: ArrayLike, blocks: int, before: ArrayLike) -> NDArray[np.bool_]:
    """Return which hypotheses [m] are decided at a look after 5, 7 or 10 blocks: those decided `before`, and more.

    `p` are unadjusted. The least p of those left is held against the level for so many left, and so on (Holm).
    KeyError for another number of blocks, or more than 4 hypotheses left.
    """
    p, found = np.asarray(p, dtype=float), np.array(before, dtype=bool)
    levels = LOOKS[blocks]
    left = [int(index) for index in np.argsort(p) if not found[index]]
    for rank, index in enumerate(left):
        if not p[index] <= levels[len(left) - rank]:
            break
        found[index] = True
    return found


@lru_cache(maxsize=4096)
def _unit_mde(blocks: int, alpha: float, sd_df: float) -> float:
    def short(size: float) -> float:
        return _unit_power(size, blocks, alpha, sd_df) - POWER

    most = 1.0
    while short(most) < 0:
        most *= 2
    return optimize.root_scalar(short, bracket=(0.0, most), xtol=1e-6).root


def _unit_power(size: float, blocks: int, alpha: float, sd_df: float) -> float:
    # Integrated over both spreads: the library's noncentral t is NaN far from its centre, where a root search looks.
    spread, weight = _chi(blocks - 1)
    error, chance = (np.ones(1), np.ones(1)) if math.isinf(sd_df) else _chi(sd_df)
    centre = size * math.sqrt(blocks) * error[:, None]
    edge = float(stats.t.ppf(1 - alpha / 2, blocks - 1)) * spread
    return float(chance @ (special.ndtr(centre - edge) + special.ndtr(-centre - edge)) @ weight)


@lru_cache(maxsize=1024)
def _chi(df: float) -> tuple[Array, Array]:
    """Return values and weights of sd over true sd, for an sd on so many degrees of freedom."""
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    return np.sqrt(stats.chi2.ppf((nodes + 1) / 2, df) / df), weights / 2


def _equivalence_power(sd: float, blocks: int, margin: float, alpha: float, variants: int) -> float:
    if sd == 0:
        return 1.0
    spread, weight = _chi(blocks - 1)
    tau = sd / math.sqrt(blocks)
    reach = float(stats.t.ppf(1 - alpha, blocks - 1)) * slope_factor(variants, blocks) * tau * spread
    half = np.maximum(math.log1p(margin) - reach, 0.0) / tau
    return float((special.ndtr(half) - special.ndtr(-half)) @ weight)
