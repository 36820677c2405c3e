"""Clocks of stages that are not ours: read with a bound, and taken off."""

import itertools

from omnilab.clock import Clock, on_our_clock, read_clocks
from omnilab.pipeline import Pipeline
from omnilab.recipes import BEFORE_1378
from omnilab.record import SpanRow
from omnilab.workload import Workload

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


def test_processes_of_this_host_read_one_clock():
    with Pipeline.open("tiny", recipe=BEFORE_1378) as pipeline:
        trial = pipeline.run(Workload.random(num_prompts=1, input_len=24, output_len=4, frames=30))
        bare = pipeline.run(Workload.random(num_prompts=1, input_len=24, output_len=4, frames=30), spans=False)
    assert set(trial.clocks) == {f"{s}/{p}" for s in ("thinker", "talker", "code2wav") for p in ("engine", "runner")}
    assert all(clock.ahead_ns == 0 and clock.error_ns < 10**9 for clock in trial.clocks.values())
    assert bare.span_rows == [] and bare.counter_rows and bare.metrics["host_ms_per_step"] is None
    sent = [row.num_bytes for row in trial.span_rows if row.name == "put" and row.stage == "thinker"]
    got = [row.num_bytes for row in trial.span_rows if row.name == "get" and row.stage == "talker"]
    assert sent == got and min(sent) > 0
    assert sum(sent) == sum(r.value for r in trial.counter_rows if (r.stage, r.counter) == ("thinker", "bytes_put"))
