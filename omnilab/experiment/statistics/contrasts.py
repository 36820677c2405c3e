"""Contrasts of on/off toggles: weights over the cells of a design. Pure; needs numpy and scipy.

A cell is a row of 0 and 1, one a toggle. Weights are applied to log values, one contrast a block.
"""

from __future__ import annotations

import itertools
import math
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import integrate, stats

Array: TypeAlias = NDArray[np.float64]
Cells: TypeAlias = NDArray[np.int64]

MOST_TOGGLES = 6  # 64 cells
LEAST_HALVED = 4  # below, half of the cells confound a toggle with the interaction of two others


def cells(k: int) -> Cells:
    """Return all on/off cells of k toggles, [2^k, k]: all off first, all on last, the last toggle changing fastest."""
    return np.array(list(itertools.product((0, 1), repeat=k)), dtype=np.int64).reshape(2**k, k)


def factorial_weights(cells: Cells) -> tuple[list[tuple[int, ...]], Array]:
    """Return subsets of toggles (singles, pairs, ..) and their effects' weights [cells, subsets].

    An effect is the mean where the product of the toggles' signs is + less the mean where it is -. All cells, or a
    half fraction: there complementary subsets have the same column, up to sign, and the whole set has none.
    """
    signs = 2 * cells - 1
    k = cells.shape[1]
    every = [subset for size in range(1, k + 1) for subset in itertools.combinations(range(k), size)]
    columns = {subset: signs[:, list(subset)].prod(axis=1) for subset in every}
    subsets = [subset for subset in every if not columns[subset].sum()]  # a fraction's defining product is constant
    return subsets, np.stack([columns[subset] for subset in subsets], axis=1) / (len(cells) / 2)


def interaction_weights(cells: Cells) -> tuple[list[tuple[int, int]], Array]:
    """Return all pairs of toggles and weights [cells, pairs]: one's effect with the other on less that with it off.

    Averaged over the remaining toggles. On logs: how much more than the product of both alone they do together.
    """
    subsets, weights = factorial_weights(cells)
    chosen = [index for index, subset in enumerate(subsets) if len(subset) == 2]
    return [(subsets[index][0], subsets[index][1]) for index in chosen], 2 * weights[:, chosen]


def shapley_weights(cells: Cells) -> Array:
    """Return weights [2^k, k] of the Shapley values: a toggle's marginal effect averaged over all k! orders.

    They add up to all on less all off. ValueError unless every cell is there once.
    """
    count, k = cells.shape
    place = {tuple(cell): index for index, cell in enumerate(cells.tolist())}
    if len(place) != 2**k or count != 2**k:
        raise ValueError(f"Shapley values of {k} toggles need each of the {2**k} cells once")
    weights = np.zeros((count, k))
    for cell, index in place.items():
        before = sum(cell)  # toggles that come earlier in the order
        for toggle in np.flatnonzero(np.array(cell) == 0):
            share = 1 / (k * math.comb(k - 1, before))
            weights[index, toggle] -= share
            weights[place[(*cell[:toggle], 1, *cell[toggle + 1 :])], toggle] += share
    return weights


def per_block(values: ArrayLike, weights: ArrayLike) -> Array:
    """Apply weights [V, m] to values [..., V]; NaN only where a value that carries weight is missing."""
    values, weights = np.asarray(values, dtype=float), np.asarray(weights, dtype=float)
    missing = np.isnan(values)
    found = np.where(missing, 0.0, values) @ weights
    if missing.any():
        found[(missing.astype(float) @ (weights != 0)) > 0] = np.nan
    return found


def order_range(log_cells: ArrayLike) -> tuple[Array, Array]:
    """Return the least and greatest marginal effect [..., k] of each toggle over all orders of turning them on.

    `log_cells` [..., 2^k] is in the order of `cells`. A toggle's effect depends on which others are on already, not on
    their order: 2^(k-1) subsets stand for k! orders. ValueError for another length, or more than 6 toggles.
    """
    log_cells = np.asarray(log_cells, dtype=float)
    count = log_cells.shape[-1]
    k = count.bit_length() - 1
    if count != 2**k or not 1 <= k <= MOST_TOGGLES:
        raise ValueError(f"{count} cells are not all those of 1 to {MOST_TOGGLES} toggles")
    lead = log_cells.shape[:-1]
    cube = log_cells.reshape(*lead, *(2,) * k)
    effects = [np.diff(cube, axis=len(lead) + toggle).reshape(*lead, -1) for toggle in range(k)]
    marginal = np.stack(effects, axis=-2)
    return marginal.min(-1), marginal.max(-1)


def noise_range(trial_sd: float, blocks: int, toggles: int = 4) -> float:
    """Return the mean span from least to greatest marginal effect (log) that noise alone gives without interaction.

    Each of the 2^(k-1) marginal effects is a difference of two means over blocks: 4.03 s / sqrt(B) for 4 toggles.
    `trial_sd` is that of one trial within its block.
    """
    return math.sqrt(2) * _mean_range(2 ** (toggles - 1)) * trial_sd / math.sqrt(blocks)


@lru_cache
def _mean_range(count: int) -> float:
    """Return the expected range of so many standard normal draws."""

    def between(x: float) -> float:
        below = float(stats.norm.cdf(x))
        return 1 - below**count - (1 - below) ** count

    return integrate.quad(between, -9, 9)[0]


def half_fractions(k: int) -> tuple[Cells, Cells]:
    """Return the halves of the cells of k toggles in which the product of all signs is + and -, [2^(k-1), k] each.

    Blocks may alternate between them. All off is in the first for an even k. ValueError below 4 toggles.
    """
    if k < LEAST_HALVED:
        raise ValueError(f"half of the cells of {k} toggles confounds them with pairs: at least {LEAST_HALVED}")
    every = cells(k)
    positive = (2 * every - 1).prod(axis=1) > 0
    return every[positive], every[~positive]
