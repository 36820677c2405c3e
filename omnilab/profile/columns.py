"""A trial's spans as columns, sorted, with the depth of each on its loop and the chunks' ends paired."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from omnilab.errors import BadInput
from omnilab.profile.arrows import NEEDED, arrows_of, as_data_flows
from omnilab.record import SPAN_NAMES, SpanRow

if TYPE_CHECKING:
    from pandas import DataFrame

    Spans: TypeAlias = Iterable[SpanRow] | DataFrame

Ints: TypeAlias = NDArray[np.int64]
DEEPEST = 7  # spans within spans; deeper ones are shown here


NOTHING = np.zeros(0, dtype=np.int64)


class Arrows(NamedTuple):
    """Chunks on edges: the rows of the `put` and the `get` of each, and when it left and came in, ns."""

    put: Ints
    get: Ints
    out: Ints
    into: Ints
    edge: tuple[str, ...]


NO_ARROWS = Arrows(NOTHING, NOTHING, NOTHING, NOTHING, ())


@dataclass(frozen=True, slots=True)
class SpanColumns:
    """All spans of a trial as columns, by track and start, outer ones first; ns from the first span's start.

    `track`, `name` and `request` point into the texts; `depth` counts the spans around a span on its loop.
    """

    tracks: tuple[str, ...]
    names: tuple[str, ...]
    requests: tuple[str, ...]  # the first is "": spans of no request, or of a batch
    track: Ints
    name: Ints
    request: Ints
    chunk: Ints
    start: Ints
    end: Ints
    num_bytes: Ints
    start_ns: int
    lost: int  # spans that full rings overwrote
    depth: Ints = field(default_factory=NOTHING.copy)
    arrows: Arrows = NO_ARROWS
    unmatched: int = 0  # chunks with one end only

    @property
    def length(self) -> int:
        """Of the trial, ns."""
        return int(self.end.max(initial=0))


def span_columns(spans: Spans, offsets: Mapping[str, int] | None = None) -> SpanColumns:
    """Return a trial's spans as columns; equal spans in any order give equal columns. BadInput for lacking ones.

    `offsets` are ns to add to a stage's clock. A table says in `attrs["spans_lost"]` how many its rings did not hold.
    """
    frame = _frame(spans)
    start, end, chunk, size = (frame[n].to_numpy(dtype=np.int64) for n in ("start_ns", "end_ns", "chunk", "num_bytes"))
    if offsets:
        shift = np.array([offsets.get(str(stage), 0) for stage in frame["stage"]], dtype=np.int64)
        start, end = start + shift, end + shift
    start_ns = int(start.min()) if len(start) else 0
    tracks, track = _tracks(frame)
    names, name = _texts(frame["name"], SPAN_NAMES)
    requests, request = _requests(frame["request"])
    order = np.lexsort((size, chunk, request, name, -end, start, track))
    found = SpanColumns(
        tracks=tracks, names=names, requests=requests, track=track[order], name=name[order], request=request[order],
        chunk=chunk[order], start=start[order] - start_ns, end=end[order] - start_ns, num_bytes=size[order],
        start_ns=start_ns, lost=int(frame.attrs.get("spans_lost", 0)),
    )  # fmt: skip
    arrows, unmatched = _paired(found)
    return replace(found, depth=_depths(found), arrows=arrows, unmatched=unmatched)


def _frame(spans: Any) -> DataFrame:
    import pandas as pd

    if not isinstance(spans, pd.DataFrame):
        return pd.DataFrame(list(spans), columns=list(SpanRow._fields))
    if missing := NEEDED - set(spans.columns):
        raise BadInput(f"spans lack the columns {', '.join(sorted(missing))}")
    return spans if "num_bytes" in spans else spans.assign(num_bytes=-1)  # runs of older versions


def _tracks(frame: DataFrame) -> tuple[tuple[str, ...], Ints]:
    stage_of, stages = frame["stage"].factorize()
    loop_of, loops = frame["thread"].factorize()
    both = stage_of * len(loops) + loop_of
    there = {divmod(int(code), len(loops)): int(code) for code in np.unique(both)}
    codes = {(str(stages[stage]), str(loops[loop])): code for (stage, loop), code in there.items()}
    ordered = as_data_flows(codes)
    place = np.zeros(len(stages) * len(loops), dtype=np.int64)
    for index, track in enumerate(ordered):
        place[codes[track]] = index
    return tuple("/".join(track) for track in ordered), place[both]


def _texts(column: Any, known: Iterable[str]) -> tuple[tuple[str, ...], Ints]:
    """Return the texts of a column, known ones first and in their order, and where each row points."""
    codes, found = column.factorize()
    there = [str(text) for text in found]
    ordered = [text for text in known if text in there] + sorted(set(there) - set(known))
    place = np.array([ordered.index(text) for text in there], dtype=np.int64)
    return tuple(ordered), place[codes] if len(there) else codes.astype(np.int64)


def _requests(column: Any) -> tuple[tuple[str, ...], Ints]:
    """Return the requests in the order of their ids, which count, after ""; and where each row points."""
    codes, found = column.factorize()
    there = [str(text) for text in found]
    ordered = ["", *sorted({*there} - {""}, key=_counted)]
    index = {text: number for number, text in enumerate(ordered)}
    place = np.array([index[text] for text in there], dtype=np.int64)
    return tuple(ordered), place[codes] if len(there) else codes.astype(np.int64)


def _counted(text: str) -> list[tuple[int, str]]:
    """Sort request-9 before request-10."""
    return [(len(part) if part.isdecimal() else 0, part) for part in re.split(r"(\d+)", text)]


def _depths(columns: SpanColumns) -> Ints:
    """Return how many spans of its loop each span lies in: those that begin before others' ends, again and again."""
    depth = np.zeros(len(columns.track), dtype=np.int64)
    edges = np.searchsorted(columns.track, np.arange(len(columns.tracks) + 1))
    for low, high in pairwise(edges.tolist()):
        rest, level = np.arange(low, high), 0
        while len(rest) and level < DEEPEST:
            reach = np.maximum.accumulate(columns.end[rest])
            rest, level = rest[1:][columns.start[rest][1:] < reach[:-1]], level + 1
            depth[rest] = level
    return depth


def _paired(columns: SpanColumns) -> tuple[Arrows, int]:
    """Pair the ends of each chunk; count the chunks that have one end only."""
    row_of: dict[SpanRow, int] = {}
    ends = [columns.names.index(text) for text in ("put", "get") if text in columns.names]
    for row in np.flatnonzero(np.isin(columns.name, ends)).tolist():
        row_of.setdefault(_row(columns, row), row)
    found, unmatched = arrows_of(row_of)
    return Arrows(
        put=np.array([row_of[arrow.put] for arrow in found], dtype=np.int64),
        get=np.array([row_of[arrow.get] for arrow in found], dtype=np.int64),
        out=np.array([arrow.out_ns for arrow in found], dtype=np.int64),
        into=np.array([arrow.in_ns for arrow in found], dtype=np.int64),
        edge=tuple(arrow.edge for arrow in found),
    ), unmatched


def _row(columns: SpanColumns, row: int) -> SpanRow:
    stage, _, loop = columns.tracks[columns.track[row]].partition("/")
    texts = (columns.names[columns.name[row]], columns.requests[columns.request[row]])
    return SpanRow(stage, loop, *texts, int(columns.chunk[row]), int(columns.start[row]), int(columns.end[row]))
