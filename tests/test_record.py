"""Spans and counters: what a ring keeps, what it overwrites, and what it costs to leave spans out."""

import pytest

from omnilab import record
from omnilab.record import Recorder, count, recording, span


def recorded(recorder, number, start=0):
    for i in range(start, start + number):
        recorder.add("get" if i % 3 else "put", 100 * i, 100 * i + i, f"r{i % 2}", i, 10 * i)


@pytest.mark.parametrize("number", [0, 1, 7, 8, 9, 16, 1000])
def test_nothing_is_lost_without_its_time_being_kept(number):
    """Ring wrap-around: every span is either a row or in the sum of its name, whatever the ring's size divides."""
    recorder = Recorder("talker", "receive", ring=8)
    recorded(recorder, number)
    spans, _, lost = recorder.collect()
    assert [row.chunk for row in spans] == list(range(max(0, number - 8), number))
    assert [row.request for row in spans] == [f"r{row.chunk % 2}" for row in spans]
    assert [row.num_bytes for row in spans] == [10 * row.chunk for row in spans]
    assert len(spans) + sum(row.number for row in lost) == number
    for name, ours in (("get", [i for i in range(number) if i % 3]), ("put", list(range(0, number, 3)))):
        kept = sum(row.end_ns - row.start_ns for row in spans if row.name == name)
        assert kept + sum(row.ns for row in lost if row.name == name) == sum(ours)
    assert recorder.collect() == ([], [], [])


def test_a_collection_starts_anew():
    recorder = Recorder("talker", "receive", ring=8)
    recorded(recorder, 11)
    recorder.collect()
    recorded(recorder, 3, start=50)
    spans, _, lost = recorder.collect()
    assert [row.chunk for row in spans] == [50, 51, 52]
    assert lost == []


def test_without_spans_counters_stay():
    recorder = Recorder("talker", "receive", ring=8)
    recorder.spans = False
    with recording(recorder):
        with span("get", "r"):
            count("chunks")
        recorder.add("get", 1, 2)
    spans, counters, lost = recorder.collect()
    assert (spans, lost) == ([], [])
    assert [(row.counter, row.value) for row in counters] == [("chunks", 1)]


def test_a_span_belongs_to_the_loop_in_which_it_began():
    outer, inner = Recorder("talker", "engine"), Recorder("talker", "runner")
    with recording(outer), span("transport"), recording(inner), span("forward"):
        pass
    with span("forward"):  # outside every loop: nobody's
        pass
    assert [row.name for row in outer.collect().spans] == ["transport"]
    assert [row.name for row in inner.collect().spans] == ["forward"]


def test_idling_overwrites_no_work():
    """A loop that waits for minutes idles a thousand times a second; the work before that is what counts."""
    recorder = Recorder("talker", "engine", ring=8)
    recorded(recorder, 5)
    for i in range(100):
        assert recorder.hold()
        recorder.add("schedule", 1000 + 10 * i, 1001 + 10 * i)
        recorder.add("pickle", 1002 + 10 * i, 1005 + 10 * i)
        recorder.release(idle=i != 50)
    recorder.release(idle=True)  # nothing is held
    spans, _, lost = recorder.collect()
    assert [row.chunk for row in spans][:5] == [0, 1, 2, 3, 4]
    assert [(row.name, row.start_ns) for row in spans[5:]] == [
        ("schedule", 1500), ("pickle", 1502), ("schedule", 1990), ("pickle", 1992),
    ]  # fmt: skip
    assert {row.name: (row.number, row.ns) for row in lost} == {"schedule": (98, 98), "pickle": (98, 294)}


def test_what_is_held_within_a_held_step_belongs_to_it():
    recorder = Recorder("talker", "runner", ring=8)
    assert recorder.hold() and not recorder.hold()
    recorder.add("merge", 1, 2)
    assert [row.name for row in recorder.collect().spans] == ["merge"]  # a step that never ended is there too
    assert recorder.hold()


def test_names_of_requests_are_bounded():
    """A server is never asked for its spans: what it keeps of a million requests is what it keeps of a few."""
    recorder = Recorder("talker", "engine", ring=8)
    for i in range(record.MOST_REQUESTS + 3):
        recorder.add("get", 0, 1, f"request-{i}")
    assert len(recorder._requests) == 3
    spans, _, lost = recorder.collect()
    assert [row.request for row in spans] == [f"request-{record.MOST_REQUESTS + i}" for i in range(3)]
    assert sum(row.number for row in lost) == record.MOST_REQUESTS
