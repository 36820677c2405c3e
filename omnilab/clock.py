"""How far the clocks of the stages' processes are from ours, and their spans moved onto ours.

Processes of one host read one monotonic clock, unless they live in time namespaces of their own; those of two hosts do
not. So it is measured, not assumed: a reading lies between the moments before it was asked for and after it came.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeAlias

from omnilab.record import SpanRow

PROBES = 5
RUNNER, ENGINE = "runner", "engine"
Readings: TypeAlias = Mapping[str, Mapping[str, int]]  # ns by stage and process


class Clock(NamedTuple):
    """What a process's clock shows beyond ours, in ns, and by how much that may be wrong."""

    offset_ns: int
    error_ns: int

    @property
    def ahead_ns(self) -> int:
        """What to take off its times: 0 while it may be the very clock that we read."""
        return self.offset_ns if abs(self.offset_ns) > self.error_ns else 0


def read_clocks(
    ask: Callable[[], Readings], probes: int = PROBES, now: Callable[[], int] = time.monotonic_ns
) -> dict[str, Clock]:
    """Ask for the processes' clocks several times; return by "stage/process" the one that is known best."""
    best: dict[str, Clock] = {}
    for _ in range(probes):
        before, readings, after = now(), ask(), now()
        middle, error = (before + after) // 2, (after - before + 1) // 2
        for stage, by_process in readings.items():
            for process, reading in by_process.items():
                key = f"{stage}/{process}"
                if key not in best or error < best[key].error_ns:
                    best[key] = Clock(reading - middle, error)
    return best


def on_our_clock(spans: Iterable[SpanRow], clocks: Mapping[str, Clock]) -> list[SpanRow]:
    """Move each span by what the clock of its process is ahead of ours."""
    ahead = {process: clock.ahead_ns for process, clock in clocks.items() if clock.ahead_ns}
    if not ahead:
        return list(spans)
    moved = []
    for row in spans:
        by = ahead.get(f"{row.stage}/{RUNNER if row.thread == RUNNER else ENGINE}", 0)
        moved.append(row._replace(start_ns=row.start_ns - by, end_ns=row.end_ns - by))
    return moved
