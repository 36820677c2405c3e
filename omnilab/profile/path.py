"""Critical path of a request over stages and edges, from spans. What waits for what is in `omnilab.profile.order`."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from omnilab.errors import BadInput
from omnilab.profile.order import CHUNK_LOOPS, Order, Piece, pieces_of
from omnilab.record import SpanRow

BETWEEN = "between spans"
OTHERS = "other steps"  # idle ones, and those for other requests
Until = Literal["first audio", "end"]


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a path, in a stage or on an edge; nanoseconds of the spans' clock."""

    where: str  # "talker", or "thinker->talker"
    name: str
    start_ns: int
    end_ns: int

    @property
    def key(self) -> str:
        """Name of its share: the edge, or "stage/name"."""
        return self.where if "->" in self.where else f"{self.where}/{self.name}"


def critical_path(spans: Iterable[SpanRow], request: str, until: Until = "end") -> list[Segment]:
    """Say what a request waited for at each moment, from its first span to the end of its first or last `vocode`.

    A request without audio ends with its last span. The segments follow each other without gap or overlap. `spans` are
    the rows of one trial, of all its requests. BadInput when the request is not in them, or has no audio to wait for.
    """
    return Paths(spans).path(request, until)


class Paths:
    """The critical paths of one trial's requests: its spans are taken apart once, however many paths are asked for."""

    def __init__(self, spans: Iterable[SpanRow], pieces: Sequence[Piece] | None = None) -> None:
        """Take the rows of one trial, of all its requests, and their `pieces_of` where these are known."""
        rows = list(spans)
        self._pieces = pieces_of(rows) if pieces is None else pieces
        self._own = rows_by_request(rows)
        self._orders: dict[str, Order] = {}

    def path(self, request: str, until: Until = "end") -> list[Segment]:
        """Return `critical_path` of one of the requests."""
        if request not in self._orders:
            self._orders = {request: Order([piece for piece in self._pieces if piece.served(request)])}
        order = self._orders[request]
        end = end_of(self._own.get(request, ()), order, request, until)
        return _Walk(self._pieces, order, request).back_from(end, order.pieces[order.first[request]].start)


def shares(path: Sequence[Segment]) -> dict[str, float]:
    """Return the part of the path's time by edge or "stage/name", the largest first; they add up to 1."""
    return _sums(path, [segment.key for segment in path])


def in_words(path: Sequence[Segment], first_audio: Sequence[Segment] = ()) -> str:
    """Say in a sentence what held the end of a request, and what its first audio. Both are paths."""
    end = f"the end{'' if first_audio else ' was held'} by {_holder(path)}"
    sentence = f"the first audio was held by {_holder(first_audio)}, {end}." if first_audio else f"{end}."
    return sentence[0].upper() + sentence[1:]


class _Walk:
    """Back through what a request waited for."""

    def __init__(self, pieces: Sequence[Piece], order: Order, request: str) -> None:
        self._order, self._request = order, request
        self._loops: dict[str, dict[str, list[Piece]]] = defaultdict(lambda: defaultdict(list))
        for piece in pieces:
            self._loops[piece.stage][piece.thread].append(piece)
        self._path: list[Segment] = []

    def back_from(self, index: int, first: int) -> list[Segment]:
        """Return the segments from `first` to the end of the piece `index`, in the order of time."""
        pieces = self._order.pieces
        now = pieces[index].end
        while now > first:
            piece, before = pieces[index], self._order.latest(index)
            ready = first if before is None else max(first, pieces[before].end)
            # a get may have begun before the put's span ended: that part is the put's
            now = self._add(piece.stage, piece.name, max(piece.start, min(ready, piece.end)), now)
            if before is not None and before == self._order.put_of.get(index):
                now = self._add(piece.edge, f"{piece.edge} wait", ready, now)
            else:
                now = self._fill(piece, ready, now)
            if before is None:
                break
            index = before
        return self._path[::-1]

    def _add(self, where: str, name: str, start: int, end: int) -> int:
        if start >= end:
            return end
        self._path.append(Segment(where, name, start, end))
        return start

    def _fill(self, piece: Piece, start: int, now: int) -> int:
        """Cover the time before a piece with what ran in its stage: in its own loop when that moves chunks."""
        loops = self._loops[piece.stage]
        own = [piece.thread] if piece.thread in CHUNK_LOOPS else [name for name in loops if name not in CHUNK_LOOPS]
        while now > start:
            running = [loops[name][at - 1] for name in own if (at := bisect_left(loops[name], now, key=_start))]
            top = max(running, key=lambda other: (min(other.end, now), other.start), default=None)
            if top is None or top.end <= start:
                return self._add(piece.stage, BETWEEN, start, now)
            now = self._add(piece.stage, BETWEEN, top.end, now)
            name = top.name if top.served(self._request) else OTHERS
            now = self._add(piece.stage, name, max(top.start, start), now)
        return now


def _start(piece: Piece) -> int:
    return piece.start


def end_of(own: Sequence[SpanRow], order: Order, request: str, until: Until) -> int:
    """Return the index of the piece with which the request's first or last `vocode` ends, or the last of its spans."""
    if not own:
        raise BadInput(f"{request}: no spans of this request")
    heard = [row for row in own if row.name == "vocode"]
    if until == "first audio" and not heard:
        raise BadInput(f"{request}: has no vocode span, so no first audio; ask for until='end'")
    pick = min if until == "first audio" else max
    row = pick(heard or own, key=lambda span: span.end_ns)
    index = order.last((row.stage, row.thread), row.end_ns)
    assert index is not None
    return index


def rows_by_request(rows: Iterable[SpanRow]) -> dict[str, list[SpanRow]]:
    """Return the rows of each request, in the order of its first."""
    every: dict[str, list[SpanRow]] = defaultdict(list)
    for row in rows:
        every[row.request].append(row)
    return every


def _sums(path: Sequence[Segment], keys: Iterable[str]) -> dict[str, float]:
    total = sum(segment.end_ns - segment.start_ns for segment in path)
    sums: dict[str, float] = defaultdict(float)
    for key, segment in zip(keys, path, strict=True):
        sums[key] += (segment.end_ns - segment.start_ns) / total
    return dict(sorted(sums.items(), key=lambda item: -item[1]))


def _holder(path: Sequence[Segment]) -> str:
    """Return the stage or edge that held most of a path, and what in it."""
    where, share = next(iter(_sums(path, [segment.where for segment in path]).items()), ("nothing", 0.0))
    if "->" in where or not path:
        return f"{where} ({share:.0%})"
    key = next(key for key in shares(path) if key.startswith(f"{where}/"))
    return f"{where} ({share:.0%}, most of it {key.removeprefix(f'{where}/')})"
