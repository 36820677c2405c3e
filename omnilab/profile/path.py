"""Critical path of a request over stages and edges, and what another speed of a stage would change, from spans.

What waits for what is in `omnilab.profile.order`.
"""

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
    rows = list(spans)
    pieces = pieces_of(rows)
    order = Order([piece for piece in pieces if piece.served(request)])
    end = _end([row for row in rows if row.request == request], order, request, until)
    return _Walk(pieces, order, request).back_from(end, order.pieces[order.first[request]].start)


def shares(path: Sequence[Segment]) -> dict[str, float]:
    """Return the part of the path's time by edge or "stage/name", the largest first; they add up to 1."""
    return _sums(path, [segment.key for segment in path])


def in_words(path: Sequence[Segment], first_audio: Sequence[Segment] = ()) -> str:
    """Say in a sentence what held the end of a request, and what its first audio. Both are paths."""
    end = f"the end{'' if first_audio else ' was held'} by {_holder(path)}"
    sentence = f"the first audio was held by {_holder(first_audio)}, {end}." if first_audio else f"{end}."
    return sentence[0].upper() + sentence[1:]


def what_if(
    spans: Iterable[SpanRow], place: str, factor: float, *, request: str | None = None, until: Until = "end"
) -> int:
    """Predict by how many ns a request would take longer (below 0: shorter) if `place` took `factor` times as long.

    `place` is a stage, a "stage/name" (the time in spans inside such a span does not count) or an edge, whose time is
    from a put's end to a get that waited for it. Without `request` it is the time from the first request's first span
    to the last request's end. All pieces are timed anew in the recorded order: each starts when all it had to wait for
    has ended, as long after the one that ended last as it was recorded. So the path may move to another stage.

    Limits: batches and the order of requests stay as recorded; a polling loop keeps its recorded delay; a request that
    began after another's end is taken to have waited for it, so arrivals by the clock move too; stages that share a
    processor do not make each other faster or slower. BadInput for an unknown place or request, or factor below 0.
    """
    if factor < 0:
        raise BadInput(f"what_if: factor must be 0 or more, not {factor:g}")
    rows = list(spans)
    order = Order([piece for piece in pieces_of(rows) if not piece.idle])
    if place not in order.places():
        raise BadInput(f"what_if: no {place!r} in the spans; there are {', '.join(sorted(order.places()))}")
    every: dict[str, list[SpanRow]] = defaultdict(list)
    for row in rows:
        every[row.request].append(row)
    order.close_loop({name: _end(own, order, name, "end") for name, own in every.items() if name})
    asked = [name for name in every if name] if request is None else [request]
    if not asked:
        raise BadInput("what_if: no spans of a request")
    last = max((_end(every[name], order, name, until) for name in asked), key=lambda index: order.pieces[index].end)
    first = min(order.first[name] for name in asked)
    starts, ends = _retimed(order, place, factor)
    return round(ends[last] - starts[first] - (order.pieces[last].end - order.pieces[first].start))


def _retimed(order: Order, place: str, factor: float) -> tuple[list[float], list[float]]:
    """Return starts and ends of all pieces; each keeps its recorded delay after what ended last."""
    starts: list[float] = []
    ends: list[float] = []
    for index, piece in enumerate(order.pieces):
        latest = order.latest(index)
        waits: list[float] = []
        for other in order.after[index]:
            delay: float = piece.start - order.pieces[other].end
            if other != latest:
                delay = min(0, delay)
            elif delay > 0 and piece.edge == place and other == order.put_of.get(index):
                delay *= factor
            if other < index:  # false only where the clocks of two hosts disagree by more than a put
                waits.append(ends[other] + delay)
        start = max(waits, default=piece.start)
        scale = factor if place in (piece.stage, f"{piece.stage}/{piece.name}") else 1
        starts.append(start)
        ends.append(start + (piece.end - piece.start) * scale)
    return starts, ends


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


def _end(own: Sequence[SpanRow], order: Order, request: str, until: Until) -> int:
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
