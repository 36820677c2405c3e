"""Paired ratios over blocks: the unit of replication is a block of fresh processes. Needs scipy, nothing of torch.

One number a block and contrast, the log of a ratio; its interval is Student t over blocks (blocks - 1 degrees of
freedom).
No bootstrap: at 5 blocks its 95 % interval covers 82 %.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

LEVEL = 0.95
LEAST_BLOCKS = 5  # below that an interval is printed, and no verdict


@dataclass(frozen=True, slots=True)
class Estimate:
    """A ratio (or a difference), its 95 % interval (None from one block) and over how many blocks."""

    value: float
    low: float | None
    high: float | None
    blocks: int

    def excludes(self, null: float) -> bool:
        """Does the interval leave `null` out?"""
        return self.low is not None and self.high is not None and not self.low <= null <= self.high


def ratio(treated: Mapping[int, float | None], base: Mapping[int, Sequence[float | None]]) -> Estimate | None:
    """Geometric mean over blocks of treated over base; base trials of one block are averaged on the log scale.

    Blocks that lack a side, or where a value is not positive, are left out. None when no block is left.
    """
    logs = []
    for block, value in treated.items():
        others = [other for other in base.get(block, ()) if other is not None and other > 0]
        if value is not None and value > 0 and others:
            logs.append(math.log(value) - float(np.mean(np.log(others))))
    found = interval(logs)
    if found is None:
        return None
    low, high = (None if edge is None else math.exp(edge) for edge in (found.low, found.high))
    return Estimate(math.exp(found.value), low, high, found.blocks)


def difference(
    treated: Mapping[int, float], base: Mapping[int, Sequence[float]], level: float = LEVEL
) -> Estimate | None:
    """Mean over blocks of treated less base."""
    return interval([value - float(np.mean(base[b])) for b, value in treated.items() if base.get(b)], level)


def interval(values: Sequence[float], level: float = LEVEL) -> Estimate | None:
    """Mean with a Student t interval; None without values, no interval from one."""
    if not values:
        return None
    mean, count = float(np.mean(values)), len(values)
    if count < 2:
        return Estimate(mean, None, None, count)
    half = float(stats.t.ppf((1 + level) / 2, count - 1) * np.std(values, ddof=1) / math.sqrt(count))
    return Estimate(mean, mean - half, mean + half, count)


def verdict(found: Estimate | None) -> str:
    """Say what a ratio of times shows: faster, slower, no difference shown, or nothing yet."""
    if found is None:
        return "not measured"
    if found.blocks < LEAST_BLOCKS:
        return f"none below {LEAST_BLOCKS} blocks"
    if not found.excludes(1.0):
        return "no difference shown"
    return "faster" if found.value < 1 else "slower"
