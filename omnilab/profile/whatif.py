"""What another speed of stages, spans or edges would change: a trial's spans timed anew, in their recorded order.

What waits for what is in `omnilab.profile.order`.

Limits: batches and the order of requests stay as recorded; a polling loop keeps its recorded delay; a request that
began after another's end is taken to have waited for it, so arrivals by the clock move too; stages that share a
processor do not make each other faster or slower; work stays on its thread; what was not recorded cannot be scaled.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from omnilab.errors import BadInput
from omnilab.profile.order import Order, Piece, pieces_of
from omnilab.profile.path import Until, end_of, rows_by_request
from omnilab.record import SpanRow

LEAST_MS = 1.0  # a place that takes less in a whole trial limits no prediction


def what_if(
    spans: Iterable[SpanRow], factors: Mapping[str, float], *, request: str | None = None, until: Until = "end"
) -> int:
    """Predict by how many ns a request would take longer (below 0: shorter) if each place took `factors` times as long.

    A place is a stage, a "stage/name" (which goes before its stage; the time in spans inside such a span does not
    count) or an edge, whose time is from a put's end to a get that waited for it. Without `request` it is the time from
    the first request's first span to the last request's end. All pieces are timed anew in the recorded order: each
    starts when all it had to wait for has ended, as long after the one that ended last as it was recorded. So the path
    may move to another stage. BadInput for an unknown place or request, or a factor below 0.
    """
    return Recorded(spans).at(factors).change(request, until)


class Own(NamedTuple):
    """Where time was spent: a span's name in a loop of a stage."""

    stage: str
    thread: str
    name: str

    @property
    def place(self) -> str:
        """What `what_if` calls it."""
        return f"{self.stage}/{self.name}"


def own_ns(pieces: Iterable[Piece]) -> dict[Own, int]:
    """Return the time in spans, without the spans inside them, of steps that served a request."""
    sums: dict[Own, int] = defaultdict(int)
    for piece in pieces:
        if not piece.idle:
            sums[Own(piece.stage, piece.thread, piece.name)] += piece.end - piece.start
    return dict(sums)


class Recorded:
    """One trial's spans in their order, made once and timed anew as often as asked."""

    def __init__(self, spans: Iterable[SpanRow], pieces: Sequence[Piece] | None = None) -> None:
        """Take the rows of one trial, of all its requests, and their `pieces_of` where these are known."""
        rows = list(spans)
        known = pieces_of(rows) if pieces is None else pieces
        self.order = Order([piece for piece in known if not piece.idle])
        self._every = rows_by_request(rows)
        self.requests = [name for name in self._every if name]
        self.order.close_loop({name: self.end(name, "end") for name in self.requests})

    def end(self, request: str, until: Until) -> int:
        """Return the index of the piece with which a request ends; BadInput when there is none."""
        return end_of(self._every.get(request, ()), self.order, request, until)

    def at(self, factors: Mapping[str, float]) -> Retimed:
        """Time all pieces anew; BadInput for an unknown place or a factor below 0."""
        places = self.order.places() if factors else set()
        for place, factor in factors.items():
            if factor < 0:
                raise BadInput(f"what_if: factor of {place!r} must be 0 or more, not {factor:g}")
            if place not in places:
                raise BadInput(f"what_if: no {place!r} in the spans; there are {', '.join(sorted(places))}")
        return Retimed(self, *_retimed(self.order, factors))


class Retimed:
    """A trial at other speeds."""

    def __init__(self, recorded: Recorded, starts: list[float], ends: list[float]) -> None:
        self._recorded, self._starts, self._ends = recorded, starts, ends

    def change(self, request: str | None = None, until: Until = "end") -> int:
        """Return what `what_if` does."""
        order = self._recorded.order
        asked = self._recorded.requests if request is None else [request]
        if not asked:
            raise BadInput("what_if: no spans of a request")
        last = max((self._recorded.end(name, until) for name in asked), key=lambda index: order.pieces[index].end)
        first = min(order.first[name] for name in asked)
        before = order.pieces[last].end - order.pieces[first].start
        return round(self._ends[last] - self._starts[first] - before)


def _retimed(order: Order, factors: Mapping[str, float]) -> tuple[list[float], list[float]]:
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
            elif delay > 0 and other == order.put_of.get(index):
                delay *= factors.get(piece.edge, 1)
            if other < index:  # false only where the clocks of two hosts disagree by more than a put
                waits.append(ends[other] + delay)
        start = max(waits, default=piece.start)
        scale = factors.get(f"{piece.stage}/{piece.name}", factors.get(piece.stage, 1))
        starts.append(start)
        ends.append(start + (piece.end - piece.start) * scale)
    return starts, ends


def factors_of(before: Mapping[Own, int], after: Mapping[Own, int]) -> tuple[dict[str, float], set[str]]:
    """Return by place how many times as long it took, and in words what no factor can say."""
    sums = [_by_place(before), _by_place(after)]
    factors = {place: sums[1].get(place, 0) / ns for place, ns in sums[0].items() if ns}
    limits = {
        f"{place} is new ({ns / 1e6:,.1f} ms a trial)"
        for place, ns in sums[1].items()
        if ns >= LEAST_MS * 1e6 and not sums[0].get(place)
    }
    loops = [_main_loop(before), _main_loop(after)]
    for place in sums[0].keys() & sums[1].keys():
        if loops[0][place] != loops[1][place] and min(sums[0][place], sums[1][place]) >= LEAST_MS * 1e6:
            limits.add(f"{place} moved from the loop {loops[0][place]} to {loops[1][place]}")
    return factors, limits


def _by_place(own: Mapping[Own, int]) -> dict[str, int]:
    sums: dict[str, int] = defaultdict(int)
    for where, ns in own.items():
        sums[where.place] += ns
    return dict(sums)


def _main_loop(own: Mapping[Own, int]) -> dict[str, str]:
    largest: dict[str, tuple[int, str]] = {}
    for where, ns in own.items():
        largest[where.place] = max((ns, where.thread), largest.get(where.place, (-1, "")))
    return {place: thread for place, (_, thread) in largest.items()}
