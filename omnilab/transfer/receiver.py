"""The receiving end of an edge: takes wanted chunks from the connector, accumulates them, tells the engine."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from omnilab.errors import RequestFailed, StageFailed, Timeout
from omnilab.record import Recorder, count, recording, span
from omnilab.seams import Accumulate, Payload
from omnilab.transfer.connector import Connector
from omnilab.transfer.encoding import Buffer, decode, nbytes


@dataclass(slots=True, eq=False)
class Inlet:
    """What the receiving side keeps for one request. Written by the receiver; the engine only closes it."""

    request_id: str
    next_chunk_id: int = 0
    held: Payload | None = None
    closed: bool = False
    deadline: float = 0.0
    last_error: Exception | None = None


class Receiver:
    """One thread's loop, R; `want` and `take` are called by the engine's."""

    def __init__(
        self,
        *,
        stage: str,
        producer: str,
        connector: Connector,
        accumulate: Accumulate,
        recorder: Recorder,
        timeout_s: float,
        arrived: Callable[[], None],
        failed: Callable[[RequestFailed], None],
    ) -> None:
        self._stage, self._producer = stage, producer
        self._connector, self._accumulate = connector, accumulate
        self._recorder, self._timeout_s = recorder, timeout_s
        self._ring, self._failed = arrived, failed
        self._pending: deque[Inlet] = deque()
        self._arrived: deque[tuple[Inlet, Payload]] = deque()

    @property
    def pending(self) -> bool:
        """Are there chunks that have been asked for and have not come?"""
        return bool(self._pending)

    def want(self, inlet: Inlet) -> None:
        """Ask for the next chunk of a request; its deadline starts now."""
        inlet.deadline = time.monotonic() + self._timeout_s
        self._pending.append(inlet)
        self._connector.bell.ring()

    def take(self) -> tuple[Inlet, Payload] | None:
        """Return a request whose chunk has come, with all it holds; None when there is none."""
        return self._arrived.popleft() if self._arrived else None

    def step(self) -> bool:
        """Poll each wanted chunk once; return whether any came or failed."""
        with recording(self._recorder):
            worked = False
            for _ in range(len(self._pending)):
                inlet = self._pending.popleft()
                if inlet.closed:
                    continue
                if self._receive(inlet):
                    worked = True
                else:
                    self._pending.append(inlet)
            if self._pending and not worked:
                count("empty_passes")
            return worked

    def entries(self) -> int:
        """How many entries of live requests are held; a closed inlet goes with the next pass."""
        arrived = [inlet for inlet, _ in list(self._arrived)]
        return sum(not inlet.closed for inlet in [*list(self._pending), *arrived])

    def _receive(self, inlet: Inlet) -> bool:
        started = time.monotonic_ns()
        try:
            buffer = self._connector.get(inlet.request_id, inlet.next_chunk_id)
        except Exception as error:  # a transport may fail once: tried again until the deadline
            inlet.last_error, buffer = error, None
        if buffer is None:
            return self._expired(inlet)
        try:
            self._take_in(inlet, buffer, started)
        except Exception as error:  # the chunk is consumed: it cannot come again
            self._fail(inlet, StageFailed, f"could not take chunk {inlet.next_chunk_id} in: {error!r}")
        return True

    def _take_in(self, inlet: Inlet, buffer: Buffer, started_ns: int) -> None:
        chunk = decode(buffer)
        chunk_id, size = inlet.next_chunk_id, nbytes([buffer])
        self._recorder.add("get", started_ns, time.monotonic_ns(), inlet.request_id, chunk_id, size)
        count("chunks_received")
        with span("accumulate", inlet.request_id, chunk_id):
            held = self._accumulate(inlet.held, chunk)
        _count_copies(held, chunk)
        inlet.held = held
        inlet.next_chunk_id += 1
        self._arrived.append((inlet, held))
        self._ring()

    def _expired(self, inlet: Inlet) -> bool:
        if time.monotonic() < inlet.deadline:
            return False
        cause = f"; the last error was {inlet.last_error!r}" if inlet.last_error else ""
        self._fail(
            inlet,
            Timeout,
            f"waited {self._timeout_s:g} s for chunk {inlet.next_chunk_id} of the {self._producer}{cause}. "
            "Raise timeout_s if the stage is only slow",
        )
        return True

    def _fail(self, inlet: Inlet, kind: type[RequestFailed], what: str) -> None:
        inlet.closed = True
        message = f"{self._stage}: {what} (request {inlet.request_id})"
        self._failed(kind(message, stage=self._stage, request=inlet.request_id))


def _count_copies(held: Payload, chunk: Payload) -> None:
    """Count what accumulation copied: values that are neither the chunk's own nor scalars."""
    for key, value in held.items():
        if value is chunk.get(key):
            continue
        if isinstance(value, Tensor):
            count("bytes_accumulated", value.nbytes)
        elif isinstance(value, list):
            count("ids_accumulated", len(value))
