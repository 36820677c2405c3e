"""One trace of a trial's spans, in the Chrome format that Perfetto and chrome://tracing open.

A process a stage, a thread a loop, a slice a span, an arrow a chunk. Perfetto's importer shapes it in two ways. Threads
are named by tid alone, so a tid is of the whole trace. At one instant slices come before arrows, so an arrow starts in
the last nanosecond of its `put`: at the very end it would hang on whatever span begins there.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from omnilab.errors import BadInput, RunFolderError
from omnilab.experiment.analysis.table import lost_spans
from omnilab.experiment.checks.verification import SPANS, read_manifest
from omnilab.experiment.results import read_run
from omnilab.profile.arrows import LOOPS, NEEDED, STAGES, Arrow, arrows_of
from omnilab.record import SpanRow

if TYPE_CHECKING:
    from pandas import DataFrame

    Spans: TypeAlias = Iterable[SpanRow] | DataFrame

PHASES = "Xsf"  # as Perfetto takes the events of one instant
LOOPS_AT_MOST = 100  # of a stage: what its tids have room for
Event: TypeAlias = dict[str, Any]


def chrome_trace(spans: Spans, *, trial: str = "", offsets: Mapping[str, int] | None = None) -> dict[str, Any]:
    """Return the spans of a trial as Chrome trace JSON; equal spans in any order give equal JSON.

    Microseconds from the first span's start. `offsets` are ns to add to a stage's clock; one host has one clock.
    `metadata` counts spans, arrows, chunks `unmatched` (only one end was recorded) and `crossed` (see `crossings`).
    """
    rows = _on_one_clock(spans, offsets)
    found, unmatched = arrows_of(rows)
    tracks, start_ns = _tracks(rows), rows[0].start_ns if rows else 0
    timed = [_slice(row, tracks[row.stage, row.thread], start_ns) for row in rows]
    timed += [end for number, arrow in enumerate(found, 1) for end in _ends(number, arrow, tracks, start_ns)]
    timed.sort(key=lambda event: (event["ts"], PHASES.index(event["ph"]), -event.get("dur", 0)))  # outer slices first
    counts = {"spans": len(rows), "arrows": len(found), "unmatched": unmatched, "crossed": len(_crossed(found))}
    return {
        "traceEvents": [*_names(tracks, trial), *timed],
        "displayTimeUnit": "ms",
        "metadata": {"trial": trial, "start_ns": start_ns, **counts},
    }


def write_trace(
    path: Path, spans: Spans, *, trial: str = "", offsets: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """Write `chrome_trace` gzipped and return its metadata; equal spans give equal bytes.

    BadInput when `path` cannot be written.
    """
    trace = chrome_trace(spans, trial=trial, offsets=offsets)
    text = json.dumps(trace, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(text.encode(), compresslevel=6, mtime=0))
    except OSError as error:
        raise BadInput(f"{path}: cannot be written: {error.strerror or error}; name another file") from error
    return trace["metadata"]


def crossings(spans: Spans, offsets: Mapping[str, int] | None = None) -> list[Arrow]:
    """Return the chunks that were taken before they were sent: there are none, unless two clocks differ."""
    return _crossed(arrows_of(_on_one_clock(spans, offsets))[0])


def variants_of(folder: Path) -> list[str]:
    """Return the variants that a run measured, in the order of their first trials; RunFolderError when it has none."""
    return list(dict.fromkeys(line["variant"] for line in _measured(folder)))


def from_run(folder: Path, variant: str, block: int | None = None) -> DataFrame:
    """Return the spans of one trial of a run folder; `block` None: the first block where it succeeded.

    Columns as in spans.parquet; `attrs["spans_lost"]` says how many its rings did not hold. BadInput for an unknown
    variant or block, and for spans that were not packed or recorded; RunFolderError for a folder that is no run, or is
    damaged.
    """
    line = _line(folder, variant, block)
    frame = _read(folder, _span_file(line))
    if frame.empty:
        raise BadInput(f"{folder}: {variant} in block {line['block']} recorded no spans; name another --block")
    frame.attrs["spans_lost"] = sum(lost_spans(line).values())
    return frame


def _on_one_clock(spans: Spans, offsets: Mapping[str, int] | None) -> list[SpanRow]:
    """Return the rows in an order of their own, so that the order they came in does not matter."""
    rows = [_shifted(row, offsets.get(row.stage, 0)) for row in span_rows(spans)] if offsets else span_rows(spans)
    return sorted(rows, key=lambda row: (row.start_ns, -row.end_ns, row[:5]))


def _shifted(row: SpanRow, by_ns: int) -> SpanRow:
    return row._replace(start_ns=row.start_ns + by_ns, end_ns=row.end_ns + by_ns)


def span_rows(spans: Any) -> list[SpanRow]:
    """Return spans as rows; BadInput for a table that lacks a column of theirs."""
    if not hasattr(spans, "itertuples"):
        return list(spans)
    if missing := NEEDED - set(spans.columns):
        raise BadInput(f"spans lack the columns {', '.join(sorted(missing))}")
    columns = [name for name in SpanRow._fields if name in spans.columns]  # older runs have no num_bytes, the last
    return [SpanRow(*row) for row in spans[columns].itertuples(index=False, name=None)]


def _crossed(found: Iterable[Arrow]) -> list[Arrow]:
    return [arrow for arrow in found if arrow.get.end_ns < arrow.put.start_ns]


def _tracks(rows: Iterable[SpanRow]) -> dict[tuple[str, str], tuple[int, int]]:
    """Return pid and tid by stage and loop, in the order in which they are shown."""
    there = {(row.stage, row.thread) for row in rows}
    stages = [*STAGES, *sorted({stage for stage, _ in there} - set(STAGES))]
    loops = [*LOOPS, *sorted({loop for _, loop in there} - set(LOOPS))]
    # no tid is its pid: such a thread is taken for the process's main one, and shown first
    places = {
        (stage, loop): (pid, pid * LOOPS_AT_MOST + number)
        for pid, stage in enumerate(stages, 1)
        for number, loop in enumerate(loops, 1)
    }
    return {track: place for track, place in places.items() if track in there}


def _names(tracks: Mapping[tuple[str, str], tuple[int, int]], trial: str) -> list[Event]:
    events, named = list[Event](), set[int]()
    for (stage, loop), (pid, tid) in tracks.items():
        said: dict[str, dict[str, Any]] = {}
        if pid not in named:  # on a loop's tid: without one Perfetto makes up a thread that has no name
            said |= {"process_name": {"name": stage}, "process_sort_index": {"sort_index": pid}}
            said |= {"process_labels": {"labels": trial}} if trial else {}
        named.add(pid)
        said |= {"thread_name": {"name": f"{stage}/{loop}"}, "thread_sort_index": {"sort_index": tid}}
        events += [{"ph": "M", "pid": pid, "tid": tid, "name": name, "args": args} for name, args in said.items()]
    return events


def _slice(row: SpanRow, place: tuple[int, int], start_ns: int) -> Event:
    """Return a span as a complete event; its args are those of request and chunk that it has."""
    pid, tid = place
    args = {"request": row.request} if row.request else {}
    args |= {"chunk": row.chunk} if row.chunk >= 0 else {}
    event = {"ph": "X", "pid": pid, "tid": tid, "ts": _us(row.start_ns - start_ns)}
    return event | {"dur": _us(row.end_ns - row.start_ns), "name": row.name, "cat": "span", "args": args}


def _ends(number: int, arrow: Arrow, tracks: Mapping[tuple[str, str], tuple[int, int]], start_ns: int) -> list[Event]:
    """Return both ends of an arrow: each within its span, and not backwards where the two overlap.

    A receiver polls: its `get` may begin before the `put` that it finds has ended.
    """
    events = list[Event]()
    for phase, row, time_ns in (("s", arrow.put, arrow.out_ns), ("f", arrow.get, arrow.in_ns)):
        pid, tid = tracks[row.stage, row.thread]
        event = {"ph": phase, "pid": pid, "tid": tid, "ts": _us(time_ns - start_ns), "id": number}
        events.append(event | {"name": "chunk", "cat": "chunk"} | ({"bp": "e"} if phase == "f" else {}))
    return events


def _us(ns: int) -> float:
    return ns / 1000


def _measured(folder: Path) -> list[dict[str, Any]]:
    lines = [line for line in read_run(folder)[1] if line["kind"] == "trial" and _span_file(line)]
    if not lines:
        raise RunFolderError(f"{folder}: holds no measured trial")
    return lines


def _span_file(line: Mapping[str, Any]) -> str:
    return next((name for name in line.get("files") or () if name.startswith(f"{SPANS}/")), "")


def _line(folder: Path, variant: str, block: int | None) -> dict[str, Any]:
    lines = _measured(folder)
    ours = [line for line in lines if line["variant"] == variant]
    if not ours:
        names = ", ".join(dict.fromkeys(repr(line["variant"]) for line in lines))
        raise BadInput(f"{folder}: has no variant {variant!r}; there are {names}")
    here = [line for line in ours if block is None or line["block"] == block]
    if not here:
        blocks = ", ".join(dict.fromkeys(str(line["block"]) for line in ours))
        raise BadInput(f"{folder}: {variant} was not measured in block {block}; it was in {blocks}")
    return next((line for line in here if not line.get("error")), here[0])


def _read(folder: Path, name: str) -> DataFrame:
    import pandas as pd

    path = folder / name
    if not path.is_file():
        if SPANS in read_manifest(folder).get("left_out", {}):
            raise BadInput(f"{folder}: its spans were not packed (pack --no-spans); use the run that was packed")
        raise RunFolderError(f"{path}: is not there, so the run folder is damaged")
    try:
        frame = pd.read_parquet(path)
    except (OSError, ValueError) as error:  # pyarrow's errors are such
        raise RunFolderError(f"{path}: is damaged: {error}") from error
    if missing := NEEDED - set(frame.columns):
        raise RunFolderError(f"{path}: is damaged: lacks the columns {', '.join(sorted(missing))}")
    return frame
