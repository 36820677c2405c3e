"""The notebooks' size, and the tables that they show of trials."""

from __future__ import annotations

import pytest

from omnilab.notebook.lessons import SEED_RUN, VARIABLE, counted, size, spans_by_loop
from omnilab.record import CounterRow, SpanRow
from omnilab.trial import Trial

MS = 1_000_000


def trial(*merges_ms: float, visited: int) -> Trial:
    spans = [SpanRow("talker", "runner", "merge", "r0", i, 0, round(ms * MS)) for i, ms in enumerate(merges_ms)]
    spans.append(SpanRow("talker", "runner", "forward", "r0", 0, 0, 5 * MS))
    counters = [
        CounterRow("talker", "runner", "elements_visited", visited),
        CounterRow("talker", "engine", "steps", 4),
    ]
    return Trial([], spans, counters)


def test_a_reader_gets_thin_and_a_test_gets_tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    full = size()
    monkeypatch.setenv(VARIABLE, "tiny")
    small = size()
    assert (full.model, full.blocks, full.topology) == ("thin", 5, "processes")
    assert (small.model, small.blocks, small.topology) == ("tiny", 3, "inline")
    assert small.workload().requests[0].prompt.random_tokens == small.input_len
    assert full.workload(full.long_len).requests[0].sampling.max_frames == full.long_len
    assert small.experiment(name="mine", blocks=4).plan().experiment.blocks == 4
    assert SEED_RUN.is_file()


def test_the_tables_of_two_trials_stand_side_by_side() -> None:
    off, on = trial(2.0, 3.0, visited=1900), trial(0.5, visited=0)
    table = spans_by_loop("merge", off=off, on=on)
    assert table.index.tolist() == [("talker/runner", "merge")]
    assert table.iloc[0].tolist() == [2, 5.0, 1, 0.5]
    differs = counted(off=off, on=on)
    assert differs.to_dict("index") == {"talker/runner/elements_visited": {"off": "1,900", "on": "0"}}
    assert counted(off=off, on=off).empty
