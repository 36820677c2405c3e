"""What the timeline draws: the spans of a trial in a window, few enough to draw, as strict JSON for timeline.js.

Where a window holds more spans than are wanted, neighbours of one loop, name and request become one bar that keeps
their number and their time: nothing is dropped. Kinds of few spans keep them all; those of many share the room left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from omnilab.errors import BadInput
from omnilab.profile.columns import DEEPEST, NOTHING, Arrows, Ints, SpanColumns, span_columns

if TYPE_CHECKING:
    from omnilab.profile.columns import Spans

Bools: TypeAlias = NDArray[np.bool_]
MOST = 20_000  # spans of one panel that a browser draws smoothly
LEAST_MOST = 100
TRIES = 6  # at finding how fine the slots can be
SEVERAL = -1  # request of a bar that stands for spans of several


@dataclass(frozen=True, slots=True)
class _Bars:
    """What is drawn: the first row of each bar, its end and sums, and the bar of each row."""

    first: Ints
    end: Ints
    busy: Ints
    count: Ints
    num_bytes: Ints
    request: Ints
    of_row: Ints


def timeline_data(
    spans: Spans | SpanColumns,
    *,
    label: str,
    request: str | None = None,
    window: tuple[float, float] | None = None,
    most: int = MOST,
    offsets: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """Return one panel of the timeline: what a window of a trial holds, in about `most` bars at most.

    `window` is in microseconds from the trial's first span; None is all of the trial, or of the request's time. With
    `request` only its spans are taken, and those that belong to no request: a batch's. `offsets` are ns to add to a
    stage's clock. For several windows of one trial give `span_columns(spans)`. A span that reaches over the window's
    edge is whole; over those taken, `busy_us` adds up exactly. BadInput for an unknown request, or what is no window.
    """
    columns = spans if isinstance(spans, SpanColumns) else span_columns(spans, offsets)
    if most < LEAST_MOST:
        raise BadInput(f"timeline: most is {most}; it must be {LEAST_MOST} or more")
    code = _code(columns, request)
    low, high = _window(columns, code, window)
    taken = (columns.start <= high) & (columns.end >= low)
    if code is not None:
        taken &= (columns.request == code) | (columns.request == 0)
    rows = np.flatnonzero(taken)
    bars = _bars(columns, rows, most)
    return {
        "label": label, "start_ns": columns.start_ns, "length_us": columns.length / 1000,
        "window_us": [low / 1000, high / 1000], "tracks": list(columns.tracks), "names": list(columns.names),
        "requests": list(columns.requests), "total": len(rows), "merged": int((bars.count > 1).sum()),
        "spans": _shown(columns, bars), "arrows": _arrows(columns, bars, most),
        "lost": columns.lost, "unmatched": columns.unmatched,
    }  # fmt: skip


def script() -> str:
    """Return timeline.js: the ES module that draws what `timeline_data` gives."""
    return Path(__file__).with_suffix(".js").read_text(encoding="utf-8")


def _code(columns: SpanColumns, request: str | None) -> int | None:
    if request is None:
        return None
    if not request or request not in columns.requests:
        raise BadInput(f"timeline: no request {request!r} in the spans; there are {', '.join(columns.requests[1:6])}")
    return columns.requests.index(request)


def _window(columns: SpanColumns, code: int | None, window: tuple[float, float] | None) -> tuple[int, int]:
    if window is None:
        own = slice(None) if code is None else columns.request == code
        return int(columns.start[own].min(initial=columns.length)), int(columns.end[own].max(initial=0))
    if not (np.isfinite(window).all() and window[0] < window[1]):
        said = f"{window[0]:g} to {window[1]:g}"
        raise BadInput(f"timeline: {said} is no window: give two times in microseconds, the earlier one first")
    return round(window[0] * 1000), round(window[1] * 1000)


def _bars(columns: SpanColumns, rows: Ints, most: int) -> _Bars:
    """Make bars of the rows: neighbours within a slot are one, where their kind has too many."""
    if len(rows) <= most:
        return _summed(columns, rows, np.ones(len(rows), dtype=np.bool_))
    kind = _kinds(columns, rows, most)
    order = np.argsort(kind, kind="stable")  # rows are by track and start, and a kind is of one track
    return _summed(columns, rows[order], _fitted(columns, rows[order], kind[order], most))


def _fitted(columns: SpanColumns, rows: Ints, kind: Ints, most: int) -> Bools:
    """Say which rows begin a bar, with slots as fine as `most` allows; as coarse as there are, where none fit."""
    sizes, parts = np.bincount(kind), _Parts(kind, columns.start[rows], columns.end[rows])
    low, high, level = 1, int(sizes.max()), _level(sizes, most)
    best = parts.begins(low, sizes)
    for _ in range(TRIES):
        new = parts.begins(level, sizes)
        number = int(new.sum())
        best, low, high = (new, level, high) if number <= most else (best, low, level - 1)
        if low >= high or 0.9 * most <= number <= most:
            break
        level = min(max(low + 1, level * most // number), high)
    return best


class _Parts:
    """Rows of some kinds, each kind's time cut into slots."""

    def __init__(self, kind: Ints, start: Ints, end: Ints) -> None:
        self._kind, self._took = kind, end - start
        first = np.flatnonzero(np.diff(kind, prepend=-1))
        began = np.minimum.reduceat(start, first)
        self._since, self._extent = start - began[kind], np.maximum.reduceat(end, first) - began

    def begins(self, level: int, sizes: Ints) -> Bools:
        """Say which rows begin a bar with `level` slots; a long span stays by itself, and all of a kind that fits."""
        kind = self._kind
        width = np.maximum(1, -(-self._extent // level))[kind]
        slot, alone = self._since // width, (self._took >= width) | (sizes[kind] <= level)
        new = np.ones(len(kind), dtype=np.bool_)
        new[1:] = (kind[1:] != kind[:-1]) | (slot[1:] != slot[:-1]) | alone[1:] | alone[:-1]
        return new


def _kinds(columns: SpanColumns, rows: Ints, most: int) -> Ints:
    """Number what may become one bar: one loop, name and depth, and one request if these are not too many."""
    kind = (columns.track[rows] * len(columns.names) + columns.name[rows]) * (DEEPEST + 1) + columns.depth[rows]
    by_request = np.unique(kind * len(columns.requests) + columns.request[rows], return_inverse=True)
    chosen = by_request if len(by_request[0]) <= most // 4 else np.unique(kind, return_inverse=True)
    return chosen[1].astype(np.int64)


def _level(sizes: Ints, most: int) -> int:
    """Return how many bars a kind may have so that all together fit: small ones leave their room to the others."""
    low, high = 1, int(sizes.max(initial=1))
    while low < high:
        level = (low + high + 1) // 2
        low, high = (level, high) if np.minimum(sizes, level).sum() <= most else (low, level - 1)
    return low


def _summed(columns: SpanColumns, rows: Ints, new: Bools) -> _Bars:
    first, of_row = np.flatnonzero(new), np.full(len(columns.start), -1)
    if not len(first):
        return _Bars(NOTHING, NOTHING, NOTHING, NOTHING, NOTHING, NOTHING, of_row)
    start, end, size, request = (c[rows] for c in (columns.start, columns.end, columns.num_bytes, columns.request))
    lowest, highest = (function.reduceat(request, first) for function in (np.minimum, np.maximum))
    known = np.maximum.reduceat(size, first) >= 0
    show = np.lexsort((columns.depth[rows[first]], start[first], columns.track[rows[first]]))
    place = np.empty(len(first), dtype=np.int64)
    place[show] = np.arange(len(first))
    of_row[rows] = place[np.cumsum(new) - 1]
    return _Bars(
        first=rows[first][show],
        end=np.maximum.reduceat(end, first)[show],
        busy=np.add.reduceat(end - start, first)[show],
        count=np.diff(np.append(first, len(rows)))[show],
        num_bytes=np.where(known, np.add.reduceat(np.maximum(size, 0), first), -1)[show],
        request=np.where(lowest == highest, lowest, SEVERAL)[show],
        of_row=of_row,
    )


def _shown(columns: SpanColumns, bars: _Bars) -> dict[str, list[Any]]:
    first, start = bars.first, columns.start[bars.first]
    return {
        "track": columns.track[first].tolist(),
        "name": columns.name[first].tolist(),
        "request": bars.request.tolist(),
        "chunk": np.where(bars.count == 1, columns.chunk[first], -1).tolist(),
        "start_us": (start / 1000).tolist(),
        "length_us": ((bars.end - start) / 1000).tolist(),
        "busy_us": (bars.busy / 1000).tolist(),
        "bytes": bars.num_bytes.tolist(),
        "count": bars.count.tolist(),
        "depth": columns.depth[first].tolist(),
    }


def _arrows(columns: SpanColumns, bars: _Bars, most: int) -> dict[str, list[Any]]:
    """Return the chunks that have an end in a bar; -1 for an end that has none. `count` chunks share an arrow."""
    chunks = columns.arrows
    put, get = bars.of_row[chunks.put], bars.of_row[chunks.get]
    kept, count = _few(chunks, np.flatnonzero((put >= 0) | (get >= 0)), most)
    return {
        "from": put[kept].tolist(),
        "to": get[kept].tolist(),
        "at_us": (chunks.out[kept] / 1000).tolist(),
        "to_us": (chunks.into[kept] / 1000).tolist(),
        "edge": [chunks.edge[index] for index in kept.tolist()],
        "count": count.tolist(),
    }


def _few(chunks: Arrows, every: Ints, most: int) -> tuple[Ints, Ints]:
    """Choose at most `most` chunks, one of those of an edge that leave and come together; count what each is for."""
    kept, count, slots = every, np.ones(len(every), dtype=np.int64), most
    _, edge = np.unique(np.array(chunks.edge, dtype=np.str_), return_inverse=True)
    while len(kept) > most and slots:
        extent = chunks.into[every].max() - chunks.out[every].min()
        width = max(1, extent // slots)
        places = np.stack([edge[every], chunks.out[every] // width, chunks.into[every] // width])
        _, first, number = np.unique(places, axis=1, return_index=True, return_counts=True)
        by_time = np.argsort(first)
        kept, count, slots = every[first[by_time]], number[by_time], slots // 2
    return kept, count
