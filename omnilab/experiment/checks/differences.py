"""What a run folder says beside what its rows give: each difference with its place. Needs nothing."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

TOLERANCE = 1e-9  # relative; sums of many times may differ in their last digits
NOTHING = "nothing"
BRIEF = 60  # characters of a value that are shown


@dataclass(frozen=True, slots=True)
class Difference:
    """Where something differs, what is stored there, and what the rest of the folder gives instead."""

    where: str
    stored: str
    recomputed: str

    def __str__(self) -> str:
        """Say it in one line."""
        return f"{self.where}: stored {self.stored}, recomputed {self.recomputed}"


@dataclass(frozen=True, slots=True)
class Check:
    """One kind of thing that was checked: what, how many of it, and what differs."""

    name: str
    said: str
    differences: tuple[Difference, ...] = ()


def compared(where: str, stored: Any, recomputed: Any) -> list[Difference]:
    """Compare two JSON values, part by part: numbers to TOLERANCE (whole ones exactly), all else exactly."""
    if isinstance(stored, Mapping) and isinstance(recomputed, Mapping):
        keys = dict.fromkeys((*recomputed, *stored))
        return [
            found
            for key in keys
            for found in _part(f"{where}.{key}" if where else str(key), stored, recomputed, key)
        ]  # fmt: skip
    if isinstance(stored, list) and isinstance(recomputed, list) and len(stored) == len(recomputed):
        pairs = enumerate(zip(stored, recomputed, strict=True))
        return [found for index, pair in pairs for found in compared(f"{where}[{index}]", *pair)]
    return [] if _equal(stored, recomputed) else [Difference(where, brief(stored), brief(recomputed))]


def _part(where: str, stored: Mapping[str, Any], recomputed: Mapping[str, Any], key: str) -> Iterable[Difference]:
    if key in stored and key in recomputed:
        return compared(where, stored[key], recomputed[key])
    sides = (brief(side[key]) if key in side else NOTHING for side in (stored, recomputed))
    return [Difference(where, *sides)]


def _equal(stored: Any, recomputed: Any) -> bool:
    if isinstance(stored, float) or isinstance(recomputed, float):
        numbers = isinstance(stored, (int, float)) and isinstance(recomputed, (int, float))
        return numbers and math.isclose(stored, recomputed, rel_tol=TOLERANCE)
    return stored == recomputed


def brief(value: Any) -> str:
    """Write a value as JSON, cut where it is long."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= BRIEF else text[: BRIEF - 3] + "..."
