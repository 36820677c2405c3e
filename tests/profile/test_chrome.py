"""Known spans give known events; every chunk one arrow, in the file and in what Perfetto makes of the file."""

from __future__ import annotations

import gzip
import json
import random
import re
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from omnilab.errors import BadInput
from omnilab.profile import queries
from omnilab.profile.chrome import chrome_trace, crossings, write_trace
from omnilab.record import SpanRow

US = 1000
FIRST = 7_000_000_123  # ns: some time of the host's clock
QUERIES = tuple(queries.QUERIES.values())
DOCS = Path(__file__).resolve().parents[2] / "docs"


def at(
    stage: str, thread: str, name: str, start_us: float, end_us: float, request: str = "", chunk: int = -1
) -> SpanRow:
    """Return a span, in microseconds from FIRST."""
    return SpanRow(stage, thread, name, request, chunk, FIRST + round(start_us * US), FIRST + round(end_us * US))


# One request: a chunk on each edge with the next span of the thread starting where its put ends, a chunk that the
# receiver was polling for while it came, and the loops' own work.
KNOWN = [
    at("thinker", "engine", "schedule", 0, 10),
    at("thinker", "engine", "save", 10, 40, "r0"),
    at("thinker", "engine", "build", 15, 35, "r0", 0),  # within its save
    at("thinker", "runner", "forward", 2, 9.5, "r0"),
    at("thinker", "send", "encode", 40, 50, "r0", 0),
    at("thinker", "send", "put", 50, 60, "r0", 0),
    at("thinker", "send", "encode", 60, 64, "r0", 1),
    at("thinker", "send", "put", 64, 70, "r0", 1),
    at("talker", "receive", "get", 80, 90, "r0", 0),
    at("talker", "receive", "accumulate", 90, 91, "r0", 0),
    at("talker", "receive", "get", 91, 95, "r0", 1),
    at("talker", "runner", "merge", 96, 100, "r0"),
    at("talker", "engine", "save", 100, 104, "r0"),
    at("talker", "send", "put", 110, 120, "r0", 0),
    at("code2wav", "receive", "get", 105, 125, "r0", 0),
    at("code2wav", "runner", "vocode", 130, 150, "r0"),
]


def events(trace: dict[str, Any], phase: str) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if event["ph"] == phase]


def named(trace: dict[str, Any], what: str, key: str = "name") -> dict[tuple[int, int], Any]:
    return {(e["pid"], e["tid"]): e["args"][key] for e in events(trace, "M") if e["name"] == what}


def tables(trace: dict[str, Any]) -> sqlite3.Connection:
    """Fill Perfetto's tables as its importer does: one instant's slices, the longest first, then its arrows.

    An arrow's end hangs on the slice that was last opened on its thread and that no later slice has closed; of the two
    slices of an arrow the earlier is the outgoing one.
    """
    db = sqlite3.connect(":memory:")
    db.executescript(
        "CREATE TABLE process (upid, pid, name); CREATE TABLE thread (utid, tid, upid, name);"
        "CREATE TABLE thread_track (id, utid); CREATE TABLE flow (id, slice_out, slice_in);"
        "CREATE TABLE slice (id, ts, dur, track_id, name, depth, arg_set_id);"
    )
    args: dict[int, dict[str, Any]] = {}
    db.create_function("EXTRACT_ARG", 2, lambda number, key: args[number].get(key.removeprefix("args.")))
    for (pid, _), name in named(trace, "process_name").items():
        db.execute("INSERT INTO process VALUES (?, ?, ?)", (pid + 10, pid, name))
    for (pid, tid), name in named(trace, "thread_name").items():
        db.execute("INSERT INTO thread VALUES (?, ?, ?, ?)", (tid + 10, tid, pid + 10, name))
        db.execute("INSERT INTO thread_track VALUES (?, ?)", (tid + 20, tid + 10))
    timed = [event for event in trace["traceEvents"] if event["ph"] in "Xsf"]
    stacks: dict[int, list[tuple[int, int, int]]] = {event["tid"]: [] for event in timed}  # id, start, end
    sources: dict[int, tuple[int, int, int]] = {}
    for event in sorted(timed, key=lambda e: (e["ts"], -e["dur"] if e["ph"] == "X" else 0)):
        stack, start = stacks[event["tid"]], round(event["ts"] * US)
        if event["ph"] == "X":
            end, number = start + round(event["dur"] * US), len(args)
            while stack and stack[-1][2] <= start:
                stack.pop()
            assert not stack or end <= stack[-1][2], "a slice that ends after the one it is in is dropped"
            args[number] = event["args"]
            row = (number, start, end - start, event["tid"] + 20, event["name"], len(stack), number)
            db.execute("INSERT INTO slice VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            stack.append((number, start, end))
        elif event["ph"] == "s":
            sources[event["id"]] = stack[-1]
        else:
            assert event["bp"] == "e"
            earlier, later = sorted([sources[event["id"]], stack[-1]], key=lambda opened: opened[1])
            db.execute("INSERT INTO flow VALUES (?, ?, ?)", (event["id"], earlier[0], later[0]))
    return db


def test_a_span_is_a_slice_in_microseconds_from_the_first():
    trace = chrome_trace(KNOWN, trial="baseline")
    assert trace["displayTimeUnit"] == "ms"
    assert trace["metadata"] == {
        "trial": "baseline", "start_ns": FIRST, "spans": 16, "arrows": 3, "unmatched": 0, "crossed": 0,
    }  # fmt: skip
    slices = events(trace, "X")
    assert len(slices) == len(KNOWN)
    build = next(event for event in slices if event["name"] == "build")
    assert build == {
        "ph": "X", "pid": 1, "tid": 102, "ts": 15.0, "dur": 20.0, "name": "build", "cat": "span",
        "args": {"request": "r0", "chunk": 0},
    }  # fmt: skip
    assert next(event for event in slices if event["name"] == "forward")["dur"] == 7.5
    assert next(event for event in slices if event["name"] == "schedule")["args"] == {}
    assert next(event for event in slices if event["name"] == "vocode")["args"] == {"request": "r0"}


def test_every_stage_and_loop_has_a_name_and_a_place():
    trace = chrome_trace(KNOWN, trial="baseline")
    assert {pid: name for (pid, _), name in named(trace, "process_name").items()} == {
        1: "thinker", 2: "talker", 3: "code2wav",
    }  # fmt: skip
    assert {pid: name for (pid, _), name in named(trace, "process_labels", "labels").items()} == {
        1: "baseline", 2: "baseline", 3: "baseline",
    }  # fmt: skip
    order = named(trace, "process_sort_index", "sort_index")
    assert [pid for pid, _ in sorted(order, key=order.__getitem__)] == [1, 2, 3]
    names, places = named(trace, "thread_name"), named(trace, "thread_sort_index", "sort_index")
    assert [names[track] for track in sorted(names, key=places.__getitem__)] == [
        "thinker/engine", "thinker/runner", "thinker/send",
        "talker/receive", "talker/engine", "talker/runner", "talker/send",
        "code2wav/receive", "code2wav/runner",
    ]  # fmt: skip
    used = {(event["pid"], event["tid"]) for event in trace["traceEvents"]}
    assert used == set(names), "an event on a thread without a name"
    tids = [tid for _, tid in names]
    assert len(set(tids)) == len(tids) and not set(tids) & {1, 2, 3}, "Perfetto knows a thread by its tid alone"


def test_a_stage_or_loop_of_another_name_is_shown_after_those_known():
    trace = chrome_trace([*KNOWN, at("vocoder", "engine", "forward", 0, 1), at("talker", "watch", "wait", 0, 1)])
    assert {"vocoder", "talker"} <= set(named(trace, "process_name").values())
    names = named(trace, "thread_name")
    assert max(names, key=lambda track: track[1]) == next(
        track for track, name in names.items() if name == "vocoder/engine"
    )
    assert [name for track, name in names.items() if track[0] == 2][-1] == "talker/watch"


def test_every_chunk_has_one_arrow_from_its_put_to_its_get():
    trace = chrome_trace(KNOWN)
    starts, ends = events(trace, "s"), events(trace, "f")
    assert [e["id"] for e in starts] == [1, 2, 3] and sorted(e["id"] for e in ends) == [1, 2, 3]
    assert {(e["cat"], e["name"]) for e in [*starts, *ends]} == {("chunk", "chunk")}
    assert {e["bp"] for e in ends} == {"e"}
    names = named(trace, "thread_name")
    seen = [
        (names[s["pid"], s["tid"]], s["ts"], names[f["pid"], f["tid"]], f["ts"])
        for s, f in zip(starts, ends, strict=True)
    ]
    assert seen == [
        ("thinker/send", 59.999, "talker/receive", 80.0),
        ("thinker/send", 69.999, "talker/receive", 91.0),
        ("talker/send", 110.0, "code2wav/receive", 110.0),  # the get was polling: both ends where the put begins
    ]


def test_perfetto_hangs_each_arrow_on_the_put_and_the_get_of_one_chunk():
    with closing(tables(chrome_trace(KNOWN))) as db:
        found = db.execute(
            "SELECT a.name, b.name, EXTRACT_ARG(a.arg_set_id, 'args.chunk'), EXTRACT_ARG(b.arg_set_id, 'args.chunk') "
            "FROM flow JOIN slice a ON a.id = slice_out JOIN slice b ON b.id = slice_in ORDER BY flow.id"
        ).fetchall()
    assert found == [("put", "get", 0, 0), ("put", "get", 1, 1), ("get", "put", 0, 0)]  # the polling get starts first


def test_the_queries_of_the_docs_are_those_that_are_run():
    assert tuple(re.findall(r"```sql\n(.*?)```", (DOCS / "perfetto.md").read_text(), re.DOTALL)) == QUERIES


def test_the_queries_give_the_known_times():
    busy, wait, latency = QUERIES
    with closing(tables(chrome_trace(KNOWN))) as db:
        loops = {row[1]: row for row in db.execute(busy)}
        waits, latencies = db.execute(wait).fetchall(), db.execute(latency).fetchall()
    assert len(loops) == 9
    assert loops["thinker/engine"][:3] == ("thinker", "thinker/engine", 2)  # the build is within the save
    assert loops["thinker/engine"][3] == pytest.approx(0.040)
    assert loops["code2wav/runner"][3:] == pytest.approx((0.020, 100 * 20 / 150))
    assert [row[:2] for row in waits] == [("talker/send to code2wav/receive", 1), ("thinker/send to talker/receive", 2)]
    assert waits[0][2:] == (0, 0)
    assert waits[1][2:] == pytest.approx((0.0205, 0.021))  # 60 to 80 and 70 to 91 us
    assert [row[1:3] for row in latencies] == [("r0", 0), ("r0", 1), ("r0", 0)]
    assert [row[3] for row in latencies] == pytest.approx([0.040, 0.031, 0.015])


def test_answers_are_tables_to_read():
    with closing(tables(chrome_trace(KNOWN))) as db:

        def ask(sql):
            cursor = db.execute(sql)
            return [column[0] for column in cursor.description], cursor.fetchall()

        busy, wait, latency = queries.answers(ask)
    assert [answer.title for answer in (busy, wait, latency)] == ["busy per stage", "wait per edge", "chunk latency"]
    assert wait.lines() == [
        "wait per edge:",
        "  edge                             chunks  mean_wait_ms  longest_wait_ms",
        "  talker/send to code2wav/receive       1         0.000            0.000",
        "  thinker/send to talker/receive        2         0.021            0.021",
    ]
    assert queries.Answer("nothing", ("edge", "chunks"), ()).lines() == ["nothing:", "  edge  chunks"]


def test_arrows_go_by_edge_request_and_chunk_whatever_the_thread():
    """The put may run on the engine's thread; ids of chunks are those of other edges and requests too."""
    spans = [
        at("thinker", "engine", "save", 0, 9, "r1"),
        at("thinker", "engine", "put", 2, 8, "r1", 0),
        at("thinker", "send", "put", 0, 5, "r0", 0),
        at("talker", "receive", "get", 20, 30, "r1", 0),
        at("talker", "receive", "get", 30, 40, "r0", 0),
        at("talker", "send", "put", 21, 22, "r1", 0),
        at("code2wav", "receive", "get", 41, 42, "r1", 0),
        at("code2wav", "send", "put", 50, 51, "r1", 0),  # no edge leaves Code2Wav
    ]
    trace = chrome_trace(spans)
    assert (trace["metadata"]["arrows"], trace["metadata"]["unmatched"]) == (3, 0)
    ends = {event["id"]: event["ts"] for event in events(trace, "f")}
    assert [(event["ts"], ends[event["id"]]) for event in events(trace, "s")] == [
        (4.999, 30),
        (7.999, 20),
        (21.999, 41),
    ]


def test_a_chunk_without_its_other_end_has_no_arrow_and_is_counted():
    lost = [
        span
        for span in KNOWN
        if (span.stage, span.name, span.chunk) not in {("talker", "get", 1), ("talker", "put", 0)}
    ]
    trace = chrome_trace(lost)
    assert (trace["metadata"]["arrows"], trace["metadata"]["unmatched"]) == (1, 2)
    assert len(events(trace, "s")) == len(events(trace, "f")) == 1
    assert len(events(trace, "X")) == len(lost)


def test_the_order_of_the_rows_and_their_table_do_not_matter(tmp_path):
    first = tmp_path / "a.json.gz"
    metadata = write_trace(first, KNOWN, trial="x")
    shuffled = random.Random(3).sample(KNOWN, len(KNOWN))
    write_trace(tmp_path / "deep" / "er" / "b.json.gz", pd.DataFrame(shuffled), trial="x")
    assert first.read_bytes() == (tmp_path / "deep" / "er" / "b.json.gz").read_bytes()
    trace = json.loads(gzip.decompress(first.read_bytes()))
    assert trace == chrome_trace(KNOWN, trial="x")
    assert trace["metadata"] == metadata
    times = [event["ts"] for event in trace["traceEvents"] if event["ph"] != "M"]
    assert times == sorted(times)


def test_two_clocks_cross_until_the_offset_is_given():
    """The Talker's clock is 85 us behind: its gets end before the puts start."""
    behind = [
        s._replace(start_ns=s.start_ns - 85 * US, end_ns=s.end_ns - 85 * US) if s.stage == "talker" else s
        for s in KNOWN
    ]
    assert crossings(KNOWN) == []
    crossed = crossings(behind)
    assert [(arrow.edge, arrow.request, arrow.chunk) for arrow in crossed] == [
        ("thinker->talker", "r0", 0), ("thinker->talker", "r0", 1),
    ]  # fmt: skip
    assert chrome_trace(behind)["metadata"]["crossed"] == 2
    assert crossings(behind, {"talker": 85 * US}) == []
    assert chrome_trace(behind, offsets={"talker": 85 * US}) == chrome_trace(KNOWN)


def test_every_nanosecond_is_in_the_file():
    """Milliseconds to days after the first span: a time is a decimal of three places."""
    for after in (1, 999, 1_234_567, 86_400 * 10**9 * 3 + 1):
        trace = chrome_trace([*KNOWN, SpanRow("talker", "engine", "events", "", -1, FIRST + after, FIRST + after + 1)])
        event = next(event for event in events(trace, "X") if event["name"] == "events")
        assert json.dumps(event["ts"]) == f"{after // 1000}.{f'{after % 1000:03}'.rstrip('0') or '0'}"
        assert event["dur"] == 0.001


def test_no_spans_give_an_empty_trace_and_bad_input_is_refused(tmp_path):
    assert chrome_trace([])["traceEvents"] == []
    with pytest.raises(BadInput, match="lack the columns chunk, end_ns"):
        chrome_trace(pd.DataFrame(KNOWN).drop(columns=["chunk", "end_ns"]))
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file" / "trace.json.gz", Path("/proc/none/trace.json.gz")):
        with pytest.raises(BadInput, match=rf"{path}: cannot be written: .*; name another file"):
            write_trace(path, KNOWN)


@pytest.mark.parametrize("recipe", ["BEFORE_1378", "AFTER_1378", "LIKE_0_14"])
def test_a_real_run_has_an_arrow_a_chunk_and_none_crosses(recipe):
    """Chunks are counted where they are put; LIKE_0_14 puts on the engine's thread."""
    from omnilab import recipes
    from omnilab.pipeline import Pipeline
    from omnilab.workload import Workload

    workload = Workload.random(num_prompts=2, input_len=16, output_len=6, frames=30)
    settings: dict[str, Any] = {"topology": "inline", "connector": "memory", "timeout_s": 20}
    with Pipeline.open("tiny", recipe=recipes.recipe_named(recipe), **settings) as pipe:
        trial = pipe.run(workload)
    put = Counter[str]()
    for row in trial.counter_rows:
        put[row.stage] += row.value if row.counter == "chunks_put" else 0
    assert {row.thread for row in trial.span_rows if row.name == "put"} == {
        "engine" if recipe == "LIKE_0_14" else "send"
    }
    trace = chrome_trace(trial.span_rows)
    assert (put["thinker"], put["talker"]) == (10, 4)
    assert trace["metadata"]["arrows"] == put["thinker"] + put["talker"]
    assert (trace["metadata"]["unmatched"], trace["metadata"]["crossed"]) == (0, 0)
    assert crossings(trial.span_rows) == []
    starts, ends = events(trace, "s"), events(trace, "f")
    assert Counter(event["id"] for event in starts) == Counter(event["id"] for event in ends)
    assert Counter(event["pid"] for event in starts) == {1: put["thinker"], 2: put["talker"]}
    assert Counter(event["pid"] for event in ends) == {2: put["thinker"], 3: put["talker"]}
    with closing(tables(trace)) as db:
        assert db.execute("SELECT COUNT(*) FROM flow").fetchone() == (len(starts),)
        assert sum(row[1] for row in db.execute(QUERIES[1])) == len(starts)
