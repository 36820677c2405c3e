"""Spans and counters of one loop, kept outside every toggle.

A loop (engine, sender, receiver, runner) owns one `Recorder`. Code anywhere below writes to the recorder of the loop
that is stepping on this thread, so that one thread may run many loops (inline) and still tell them apart. Rings are
preallocated; what wraps around is counted and said. Times are `time.monotonic_ns`: one clock for all of a host.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

SPAN_NAMES = (
    "build", "encode", "put", "wait", "get", "accumulate", "merge", "update_states", "forward", "sample", "vocode",
    "pickle", "unpickle", "transport", "schedule", "save", "embed", "copy", "events",
)  # fmt: skip
_NAME_ID = {name: index for index, name in enumerate(SPAN_NAMES)}
RING = 1 << 16


class SpanRow(NamedTuple):
    """One span; times in nanoseconds of the host's monotonic clock."""

    stage: str
    thread: str
    name: str
    request: str
    chunk: int
    start_ns: int
    end_ns: int


class CounterRow(NamedTuple):
    """One counter of a stage, counted by the loop `thread`."""

    stage: str
    thread: str
    counter: str
    value: int


class Recording(NamedTuple):
    """What was recorded since the last collection."""

    spans: list[SpanRow]
    counters: list[CounterRow]
    spans_lost: int


class Recorder:
    """Spans and counters of one loop. Written by one thread at a time."""

    def __init__(self, stage: str, thread: str, ring: int = RING) -> None:
        self.stage, self.thread = stage, thread
        self.counts: Counter[str] = Counter()
        # written to once, so that its pages are there from the start: a growing ring would look like a leak
        self._rows: NDArray[np.int64] = np.full((ring, 5), -1, dtype=np.int64)
        self._requests: dict[str, int] = {}
        self._used = 0

    def add(self, name: str, start_ns: int, end_ns: int, request: str = "", chunk: int = -1) -> None:
        """Record one span; overwrites the oldest when the ring is full."""
        index = self._requests.setdefault(request, len(self._requests))
        self._rows[self._used % len(self._rows)] = (_NAME_ID[name], index, chunk, start_ns, end_ns)
        self._used += 1

    def collect(self) -> Recording:
        """Return everything recorded so far and start anew."""
        kept = min(self._used, len(self._rows))
        first = self._used % len(self._rows) if self._used > len(self._rows) else 0
        requests = list(self._requests)
        spans = [
            SpanRow(self.stage, self.thread, SPAN_NAMES[name], requests[request], chunk, start, end)
            for name, request, chunk, start, end in np.roll(self._rows[:kept], -first, axis=0).tolist()
        ]
        counters = [CounterRow(self.stage, self.thread, name, value) for name, value in sorted(self.counts.items())]
        lost = self._used - kept
        self._used = 0
        self._requests.clear()
        self.counts.clear()
        return Recording(spans, counters, lost)


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
    """Time a block under a name of SPAN_NAMES in the current loop."""

    __slots__ = ("chunk", "name", "request", "start")

    def __init__(self, name: str, request: str = "", chunk: int = -1) -> None:
        self.name, self.request, self.chunk = name, request, chunk

    def __enter__(self) -> None:
        self.start = time.monotonic_ns()

    def __exit__(self, *_: Any) -> None:
        if (recorder := _current.recorder) is not None:
            recorder.add(self.name, self.start, time.monotonic_ns(), self.request, self.chunk)
