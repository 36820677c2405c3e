"""The trials of a run as arrays over blocks and variants. Reads rows; needs numpy only."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from statistics import median
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from omnilab.experiment.design import AGAIN
from omnilab.experiment.statistics import estimate

Array: TypeAlias = NDArray[np.float64]
Row: TypeAlias = Mapping[str, Any]
BASE = "both baseline trials"  # column of their mean
PER_AUDIO = ("wall_s", "e2el_ms", "cpu_s")  # what is per audio second where audio lengths differ
LENGTHS_DECIDE = ("request_throughput", "output_throughput")  # what shorter audio makes better


class Table:
    """One cell a trial that succeeded; a missing one is NaN. The baseline's second trial is a column of its own."""

    def __init__(self, run: Row, lines: Iterable[Row]) -> None:
        """Take the trials of a run; `run` is its run.json."""
        lines = list(lines)
        self.baseline: str = run["baseline"]
        self.per_audio = any(line["kind"] == "comparison" and line.get("same_length") is False for line in lines)
        self.rows = {
            (line["block"], line["variant"]): line
            for line in lines
            if line["kind"] == "trial" and not line["error"]
        }  # fmt: skip
        self.blocks = sorted({block for block, _ in self.rows})
        self.names = [self.baseline, self.baseline + AGAIN, *(v["name"] for v in run["variants"][1:])]
        self.per_block = max((len(order) for order in run["orders"]), default=0)

    def of(self, name: str) -> list[Row]:
        """Return the rows of a variant, in the order of blocks."""
        return [self.rows[block, name] for block in self.blocks if (block, name) in self.rows]

    def baselines(self, block: int) -> list[Row]:
        """Return the one or two baseline rows of a block."""
        names = (self.baseline, self.baseline + AGAIN)
        return [self.rows[block, name] for name in names if (block, name) in self.rows]

    def sides(self, name: str, against: str) -> dict[int, tuple[Row, list[Row]]]:
        """Return by block a variant's row and the rows it is compared with, where both are there."""
        found = {}
        for block in self.blocks:
            others = self.baselines(block) if against == self.baseline else [self.rows.get((block, against))]
            known = [row for row in others if row is not None]
            if (block, name) in self.rows and known:
                found[block] = (self.rows[block, name], known)
        return found

    def matrix(self, value: Callable[[Row], float | None]) -> Array:
        """Return a number of each trial, [blocks, names]."""
        found = np.full((len(self.blocks), len(self.names)), np.nan)
        for index, block in enumerate(self.blocks):
            for column, name in enumerate(self.names):
                if (row := self.rows.get((block, name))) is not None and (number := value(row)) is not None:
                    found[index, column] = number
        return found

    def counts_per_audio(self, metric: str) -> bool:
        """Is a metric taken per audio second here?"""
        return self.per_audio and metric in PER_AUDIO

    def value(self, row: Row, metric: str) -> float | None:
        """Return a metric of a trial; None where it is undefined. Times are per audio second where lengths differ."""
        value = row["metrics"].get(metric)
        if value is None or not self.counts_per_audio(metric):
            return value
        seconds = row["per_request"]["audio_s"]
        if metric in row["per_request"]:  # a median over requests, each over its own seconds
            pairs = zip(row["per_request"][metric], seconds, strict=True)
            return median([one / length for one, length in pairs if one is not None and length] or [math.nan])
        return value / total if (total := sum(length or 0.0 for length in seconds)) else None

    def logs(self, metric: str) -> Array:
        """Return the logs of a metric; what is not positive is missing, and what lost spans have made too small."""
        of_talker = metric == "host_ms_per_step"
        values = self.matrix(lambda row: None if of_talker and _talkers_too_low(row) else self.value(row, metric))
        return np.log(values, out=np.full_like(values, np.nan), where=values > 0)

    @cached_property
    def positions(self) -> Array:
        """Where in its block each trial stood."""
        return self.matrix(lambda row: row["position"])

    def columns(self, values: Array) -> dict[str, Array]:
        """Return values less the position slope by name, and both baseline trials' mean under BASE."""
        flat = estimate.remove_slope(values, self.positions) if values.size else values
        found = {name: flat[:, index] for index, name in enumerate(self.names)}
        both = flat[:, :2]
        known = (~np.isnan(both)).sum(1)
        total = np.nansum(both, axis=1)
        found[BASE] = np.divide(total, known, out=np.full(len(both), np.nan), where=known > 0)
        return found

    def against(self, columns: Mapping[str, Array], name: str, against: str) -> Array:
        """Return a variant less what it is compared with, one number a block."""
        return columns[name] - columns[BASE if against == self.baseline else against]


def lost_by_loop(row: Row) -> dict[str, Any]:
    """Return by loop what its ring overwrote: number and ms by span name.

    Older runs know their number alone: there the loop's span sums are too low.
    """
    lost = row.get("spans_lost")
    return dict(lost) if isinstance(lost, Mapping) else {"some loops": lost} if lost else {}


def lost_spans(row: Row) -> dict[str, int]:
    """Return by loop how many spans its ring overwrote."""
    return {
        loop: names if isinstance(names, int) else sum(count for count, _ in names.values())
        for loop, names in lost_by_loop(row).items()
    }


def too_low(row: Row) -> set[str]:
    """Return the loops whose span sums are too low."""
    return {loop for loop, names in lost_by_loop(row).items() if isinstance(names, int)}


def _talkers_too_low(row: Row) -> bool:
    return any(loop.startswith("talker/") for loop in too_low(row))


def mean(values: Sequence[float | None]) -> float | None:
    """Mean of what is known; None without any."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
