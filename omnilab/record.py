"""Spans and counters of one loop, kept outside every toggle.

A loop (engine, sender, receiver, runner) owns one `Recorder`. Code anywhere below writes to the recorder of the loop
that is stepping on this thread, so that one thread may run many loops (inline) and still tell them apart. Rings are
preallocated; of the spans that a full ring overwrites, number and time are kept by name, so that sums stay exact. Times
are `time.monotonic_ns`: one clock for all of a host.
"""

from __future__ import annotations

import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

SPAN_NAMES = (
    "build", "encode", "put", "wait", "get", "accumulate", "merge", "update_states", "forward", "sample", "vocode",
    "pickle", "unpickle", "transport", "schedule", "save", "embed", "copy", "events",
)  # fmt: skip
_NAME_ID = {name: index for index, name in enumerate(SPAN_NAMES)}
RING = 1 << 16
MOST_REQUESTS = 1 << 14  # whose spans are told apart between two collections
_ROW = struct.Struct("6q")  # name, request, chunk, start_ns, end_ns, num_bytes


class SpanRow(NamedTuple):
    """One span; times in nanoseconds of the host's monotonic clock, `num_bytes` of the chunk that was put or got."""

    stage: str
    thread: str
    name: str
    request: str
    chunk: int
    start_ns: int
    end_ns: int
    num_bytes: int = -1


class CounterRow(NamedTuple):
    """One counter of a stage, counted by the loop `thread`."""

    stage: str
    thread: str
    counter: str
    value: int


class LostRow(NamedTuple):
    """Spans of one name that a full ring overwrote: how many, and their time together."""

    stage: str
    thread: str
    name: str
    number: int
    ns: int


class Recording(NamedTuple):
    """What was recorded since the last collection."""

    spans: list[SpanRow]
    counters: list[CounterRow]
    lost: list[LostRow]


class Recorder:
    """Spans and counters of one loop. Written by one thread at a time. With `spans` False it keeps counters alone.

    A loop that idles a thousand times a second would soon overwrite the work before it: spans of idle steps have a ring
    of their own. A step is held apart until it is known which kind it was.
    """

    def __init__(self, stage: str, thread: str, ring: int = RING) -> None:
        self.stage, self.thread = stage, thread
        self.spans = True
        self.counts: Counter[str] = Counter()
        self._work, self._idle = _Ring(ring), _Ring(max(1, ring // 4))
        self._held: list[tuple[int, ...]] | None = None
        self._requests: dict[str, int] = {}

    def add(
        self, name: str, start_ns: int, end_ns: int, request: str = "", chunk: int = -1, num_bytes: int = -1
    ) -> None:
        """Record one span; overwrites the oldest of its kind when the ring is full."""
        if not self.spans:
            return
        index = self._requests.get(request)
        if index is None:
            index = self._new_index(request)
        row = (_NAME_ID[name], index, chunk, start_ns, end_ns, num_bytes)
        if self._held is None:
            self._work.put(row)
        else:
            self._held.append(row)

    def _new_index(self, request: str) -> int:
        if len(self._requests) >= MOST_REQUESTS:  # a server is never asked for its spans: it keeps sums alone
            self.release(idle=False)
            for ring in (self._work, self._idle):
                ring.fold()
            self._requests.clear()
        return self._requests.setdefault(request, len(self._requests))

    def hold(self) -> bool:
        """Keep what is recorded from now on apart, until `release`. False where that is done already."""
        if self._held is not None:
            return False
        self._held = []
        return True

    def release(self, *, idle: bool) -> None:
        """Say of what was held whether it was an idle step; nothing happens where nothing is held."""
        held, self._held = self._held or (), None
        for row in held:
            (self._idle if idle else self._work).put(row)

    def collect(self) -> Recording:
        """Return everything recorded so far, by when it ended, and start anew."""
        self.release(idle=False)
        counters = [CounterRow(self.stage, self.thread, name, value) for name, value in sorted(self.counts.items())]
        requests, rings = list(self._requests), (self._work, self._idle)
        rows = sorted((row for ring in rings for row in ring.take()), key=lambda row: row[4])  # each is in this order
        spans = [
            SpanRow(self.stage, self.thread, SPAN_NAMES[name], requests[request], *rest)
            for name, request, *rest in rows
        ]
        lost = [
            LostRow(self.stage, self.thread, name, sum(n for n, _ in sums), sum(ns for _, ns in sums))
            for number, name in enumerate(SPAN_NAMES)
            if (sums := [ring.lost[number] for ring in rings if number in ring.lost])
        ]
        for table in (self._requests, self.counts, *(ring.lost for ring in rings)):
            table.clear()
        return Recording(spans, counters, lost)


class _Ring:
    """The last rows of many, and how many of each name were overwritten, with their time."""

    def __init__(self, size: int) -> None:
        # written to once, so that its pages are there from the start: a growing ring would look like a leak
        self._size, self._rows = size, bytearray(b"\xff" * (size * _ROW.size))
        self._used = 0
        self.lost: dict[int, tuple[int, int]] = {}

    def put(self, row: tuple[int, ...]) -> None:
        """Add a row."""
        at = self._used % self._size * _ROW.size
        if self._used >= self._size:
            self._lose(_ROW.unpack_from(self._rows, at))
        _ROW.pack_into(self._rows, at, *row)
        self._used += 1

    def fold(self) -> None:
        """Keep of all rows their number and time alone."""
        for row in self.take():
            self._lose(row)

    def _lose(self, row: Sequence[int]) -> None:
        name, _, _, start_ns, end_ns, _ = row
        number, ns = self.lost.get(name, (0, 0))
        self.lost[name] = number + 1, ns + end_ns - start_ns

    def take(self) -> list[list[int]]:
        """Return the rows, the oldest first, and start anew; `lost` stays until it is cleared."""
        rows = np.frombuffer(self._rows, dtype=np.int64).reshape(self._size, -1)[: self._used]
        if self._used > self._size:
            rows = np.roll(rows, -(self._used % self._size), axis=0)
        self._used = 0
        return rows.tolist()


class _Current(threading.local):
    recorder: Recorder | None = None


_current = _Current()


@contextmanager
def recording(recorder: Recorder) -> Iterator[Recorder]:
    """Make `recorder` the one that spans and counters on this thread go to."""
    before, _current.recorder = _current.recorder, recorder
    try:
        yield recorder
    finally:
        _current.recorder = before


def current() -> Recorder | None:
    """Recorder of the loop that is stepping on this thread; None outside every loop."""
    return _current.recorder


def count(name: str, value: int = 1) -> None:
    """Add to a counter of the current loop."""
    if (recorder := _current.recorder) is not None and value:
        recorder.counts[name] += value


class span:
    """Time a block under a name of SPAN_NAMES in the current loop, where that records spans."""

    __slots__ = ("chunk", "name", "num_bytes", "recorder", "request", "start")

    def __init__(self, name: str, request: str = "", chunk: int = -1, num_bytes: int = -1) -> None:
        self.name, self.request, self.chunk, self.num_bytes = name, request, chunk, num_bytes

    def __enter__(self) -> None:
        self.recorder = recorder if (recorder := _current.recorder) is not None and recorder.spans else None
        if self.recorder is not None:
            self.start = time.monotonic_ns()

    def __exit__(self, *_: Any) -> None:
        if (recorder := self.recorder) is not None:
            recorder.add(self.name, self.start, time.monotonic_ns(), self.request, self.chunk, self.num_bytes)


def span_cost_ns(spans: int = 2_000) -> float:
    """Measure what one span costs here, in ns: the least of five batches, for what disturbs only adds."""
    costs = []
    with recording(Recorder("thinker", "engine", ring=spans)):
        for _ in range(5):
            began = time.monotonic_ns()
            for number in range(spans):
                with span("forward", "request-0", number):
                    pass
            costs.append((time.monotonic_ns() - began) / spans)
    return min(costs)
