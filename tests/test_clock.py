"""Clocks of stages that are not ours: read with a bound, and taken off."""

import itertools

from omnilab.clock import Clock, on_our_clock, read_clocks
from omnilab.record import SpanRow

MS = 1_000_000


def test_a_reading_is_known_as_well_as_its_quickest_answer():
    """The offset is within half of the round trip, however unevenly the way there and back share it."""
    ours, ways = itertools.count(), iter([(9, 1), (2, 1), (30, 0)])
    now = [1000 * MS]

    def ask():
        there, back = next(ways)
        now[0] += there * MS
        reading = now[0] + 70 * MS
        now[0] += back * MS
        next(ours)
        return {"talker": {"engine": reading, "runner": reading - 500 * MS}}

    clocks = read_clocks(ask, probes=3, now=lambda: now[0])
    assert next(ours) == 3
    for process, true in (("talker/engine", 70 * MS), ("talker/runner", -430 * MS)):
        clock = clocks[process]
        assert clock.error_ns == 1.5 * MS
        assert abs(clock.offset_ns - true) <= clock.error_ns


def test_spans_are_moved_only_by_clocks_that_cannot_be_ours():
    clocks = {"talker/engine": Clock(5 * MS, 2 * MS), "talker/runner": Clock(-5 * MS, 6 * MS)}
    rows = [SpanRow("talker", loop, "get", "r", 0, 100 * MS, 101 * MS) for loop in ("receive", "engine", "runner")]
    moved = on_our_clock(rows, clocks)
    assert [row.start_ns // MS for row in moved] == [95, 95, 100]
    assert all(row.end_ns - row.start_ns == MS for row in moved)
    assert on_our_clock(rows, {}) == rows
