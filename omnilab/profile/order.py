"""What waits for what: the recorded spans of a trial as a graph of pieces, which can be timed anew.

A piece is a stretch of a loop's innermost span. It starts after what it had to wait for:

- the piece before it in its loop, and the other of engine and runner, which take turns;
- the first piece of a step: also the chunk that the step took in;
- a `get`: also the `put` of its chunk, in the stage before;
- what the sender does: the `build` or `save` that handed it over. Only the next stage waits for the sender.

A step runs from one `schedule` to the next and served the requests that are named in it; one that names none was idle.
In a stage without `schedule` each piece is a step by itself, and one without a request served all.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from omnilab.record import SpanRow
from omnilab.trial import edge_of

CHUNK_LOOPS = ("send", "receive")
SAME_CHUNK = ("encode", "put", "accumulate")  # these follow what their loop did before for the same chunk
Loop = tuple[str, str]  # stage, thread


@dataclass(slots=True, eq=False)
class Piece:
    """A stretch of one span, in which no span inside it ran. Pieces of a loop do not overlap."""

    stage: str
    thread: str
    name: str
    request: str
    chunk: int
    start: int
    end: int
    step: int = 0  # of its stage
    serves: set[str] | None = None  # None: every request

    @property
    def edge(self) -> str:
        """The edge on which the piece's loop stands; "" for none."""
        return edge_of(self.stage, self.thread) or ""

    @property
    def idle(self) -> bool:
        """Did its step serve nobody?"""
        return self.serves is not None and not self.serves

    def served(self, request: str) -> bool:
        """Did its step serve the request?"""
        return self.serves is None or request in self.serves


def pieces_of(spans: Iterable[SpanRow]) -> list[Piece]:
    """Return the pieces of one trial's spans by their start."""
    loops: dict[Loop, list[SpanRow]] = defaultdict(list)
    for row in spans:
        loops[row.stage, row.thread].append(row)
    pieces = sorted((p for rows in loops.values() for p in _innermost(rows)), key=lambda p: (p.start, p.end))
    _number_steps(pieces)
    return pieces


class Order:
    """Pieces, by their start, and for each the indices of those it had to wait for."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self.pieces = pieces
        self.put_of: dict[int, int] = {}  # of a get
        self.first: dict[str, int] = {}  # piece of a request itself
        self._loops: dict[Loop, list[int]] = defaultdict(list)
        self._opening: dict[str, dict[int, int]] = defaultdict(dict)  # first piece of a step, by stage
        self._handed: dict[tuple[str, str, str, int], list[int]] = defaultdict(list)  # build, save, put of a chunk
        for index, piece in enumerate(pieces):
            self._enter(index, piece)
        self._ends = {loop: [pieces[index].end for index in indices] for loop, indices in self._loops.items()}
        self._opens: dict[Loop, list[int]] = {}  # of a stage and request
        self.after = self._after()

    def last(self, loop: Loop, by: int, below: int | None = None) -> int | None:
        """Return the piece of a loop that ended last, not after `by`, among those before the index `below`."""
        at = bisect_right(self._ends.get(loop, ()), by)
        indices = self._loops[loop] if at else []
        while at and below is not None and indices[at - 1] >= below:
            at -= 1
        return indices[at - 1] if at else None

    def latest(self, index: int) -> int | None:
        """Return the one of what a piece had to wait for that ended last."""
        return max(self.after[index], key=lambda other: self.pieces[other].end, default=None)

    def places(self) -> set[str]:
        """Return what can be made faster or slower: stages, "stage/name", edges."""
        names = {name for piece in self.pieces for name in (piece.stage, f"{piece.stage}/{piece.name}")}
        return names | {self.pieces[get].edge for get in self.put_of}

    def close_loop(self, ends: Mapping[str, int]) -> None:
        """Let each request wait for the one that ended last before it began. `ends` are pieces by request."""
        by_time = sorted((self.pieces[index].end, index) for index in ends.values())
        for request in ends:
            own = self.pieces[self.first[request]]
            begins = self._opening[own.stage][own.step]
            at = bisect_right(by_time, (self.pieces[begins].start, begins))
            if at:
                self.after[begins].append(by_time[at - 1][1])

    def _enter(self, index: int, piece: Piece) -> None:
        self.first.setdefault(piece.request, index)
        self._loops[piece.stage, piece.thread].append(index)
        self._opening[piece.stage].setdefault(piece.step, index)
        if piece.name in ("build", "save", "put"):
            chunk = -1 if piece.name == "save" else piece.chunk
            self._handed[piece.stage, piece.name, piece.request, chunk].append(index)

    def _after(self) -> list[list[int]]:
        after: list[list[int]] = []
        before: dict[Loop, int] = {}
        builds: dict[Loop, int] = defaultdict(int)  # on the sender, by stage and request
        taken: dict[tuple[str, str, int], int] = {}
        for index, piece in enumerate(self.pieces):
            loop = piece.stage, piece.thread
            previous = before.get(loop)
            waits = [] if previous is None else [previous]
            before[loop] = index
            after.append(waits)
            if piece.thread == "receive":
                taken[piece.stage, piece.request, piece.chunk] = index
            if previous is not None and piece.name in SAME_CHUNK and self._same_chunk(previous, index):
                continue
            if piece.thread == "send":
                key = piece.stage, piece.request
                waits += self._handing(index, builds[key])
                builds[key] += piece.name == "build"
            elif piece.thread == "receive":
                waits += self._steps(index, (other for other in self._loops if other[1] not in CHUNK_LOOPS))
                waits += self._put(index)
            elif piece.thread == "engine" or previous is None or self.pieces[previous].step != piece.step:
                waits += self._steps(index, (o for o in self._loops if o != loop and o[1] not in CHUNK_LOOPS))
        for (stage, request, _), index in taken.items():
            if (opened := self._opened_after(stage, request, index)) is not None:
                after[opened].append(index)
        return after

    def _same_chunk(self, one: int, other: int) -> bool:
        a, b = self.pieces[one], self.pieces[other]
        return (a.request, a.chunk) == (b.request, b.chunk)

    def _steps(self, index: int, loops: Iterable[Loop]) -> list[int]:
        """Return what ended last in each of the loops of the piece's stage."""
        piece = self.pieces[index]
        found = (self.last(loop, piece.start, index) for loop in loops if loop[0] == piece.stage)
        return [other for other in found if other is not None]

    def _handing(self, index: int, nth: int) -> list[int]:
        """Return what handed a piece of the sender its work: the nth save for the nth build, a build for an encode."""
        piece = self.pieces[index]
        if piece.name == "build":
            handed = self._handed[piece.stage, "save", piece.request, -1][nth : nth + 1]
        else:
            handed = self._handed[piece.stage, "build", piece.request, piece.chunk]
            handed = handed[bisect_left(handed, index) - 1 :][:1] if handed and handed[0] < index else []
        if handed and handed[0] < index:
            return handed
        return self._steps(index, (loop for loop in self._loops if loop[1] not in CHUNK_LOOPS))

    def _put(self, index: int) -> list[int]:
        piece = self.pieces[index]
        if piece.name != "get":
            return []
        producer = piece.edge.partition("->")[0]
        puts = self._handed[producer, "put", piece.request, piece.chunk]
        if puts:
            self.put_of[index] = puts[-1]
        return puts[-1:]

    def _opened_after(self, stage: str, request: str, index: int) -> int | None:
        """Return the first piece of the first step that served the request and began after a chunk was there."""
        key = stage, request
        if key not in self._opens:
            self._opens[key] = [other for other in self._opening[stage].values() if self._steps_for(other, request)]
        opens = self._opens[key]
        at = bisect_left(opens, self.pieces[index].end, key=lambda other: self.pieces[other].start)
        return next((other for other in opens[at:] if other > index), None)

    def _steps_for(self, index: int, request: str) -> bool:
        piece = self.pieces[index]
        return piece.thread not in CHUNK_LOOPS and piece.served(request)


def _innermost(rows: Sequence[SpanRow]) -> list[Piece]:
    """Cut the spans of one loop, which lie in each other, into pieces."""
    pieces: list[Piece] = []
    under_way: list[SpanRow] = []
    now = 0

    def cut(row: SpanRow, until: int) -> None:
        nonlocal now
        if now < until or row.start_ns == row.end_ns:
            pieces.append(Piece(row.stage, row.thread, row.name, row.request, row.chunk, now, until))
        now = max(now, until)

    def end(by: float) -> None:
        while under_way and under_way[-1].end_ns <= by:
            row = under_way.pop()
            cut(row, row.end_ns)

    for row in sorted(rows, key=lambda row: (row.start_ns, -row.end_ns)):
        end(row.start_ns)
        if under_way:
            cut(under_way[-1], row.start_ns)
        under_way.append(row)
        now = row.start_ns
    end(math.inf)
    return pieces


def _number_steps(pieces: Sequence[Piece]) -> None:
    scheduled: dict[str, list[int]] = defaultdict(list)
    for piece in pieces:
        if piece.name == "schedule":
            scheduled[piece.stage].append(piece.start)
    named: dict[tuple[str, int], set[str]] = defaultdict(set)
    for index, piece in enumerate(pieces):
        if piece.thread in CHUNK_LOOPS or piece.stage not in scheduled:
            piece.step, piece.serves = -1 - index, {piece.request} if piece.request else None
            continue
        piece.step = bisect_right(scheduled[piece.stage], piece.start)
        piece.serves = named[piece.stage, piece.step]
        if piece.request:
            piece.serves.add(piece.request)
