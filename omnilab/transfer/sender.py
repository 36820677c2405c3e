"""The sending end of an edge: builds chunks by the recipe's `save`, encodes them, puts them on the connector."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from torch import Tensor

from omnilab.errors import RequestFailed, StageFailed
from omnilab.record import Recorder, count, recording, span
from omnilab.seams import (
    FINISHED,
    HIDDEN_STATES,
    NUM_OUTPUTS,
    LiveRequest,
    MakeSave,
    Payload,
    Snapshot,
)
from omnilab.transfer.connector import Connector
from omnilab.transfer.encoding import encode, nbytes

Builder: TypeAlias = Callable[[dict[str, Any], Snapshot], Payload | None]


class Sender:
    """One thread's loop, S; `save` is called by the engine's.

    An error in a build or a put ends the request it belongs to, and closes its outbox: nothing of it leaves any more.
    """

    def __init__(
        self,
        *,
        stage: str,
        connector: Connector,
        builder: Builder,
        make_save: MakeSave,
        recorder: Recorder,
        saved: Callable[[], None],
        failed: Callable[[RequestFailed], None],
    ) -> None:
        self._stage, self._connector, self._builder = stage, connector, builder
        self._recorder, self._saved, self._failed = recorder, saved, failed
        self._occupant = make_save(self._build, self._put)

    def save(self, live: LiveRequest, rows: Any) -> None:
        """Take the rows of a step (engine thread)."""
        with span("save", live.request_id):
            self._occupant.save(live, rows)
        self._saved()

    def step(self) -> bool:
        """Send at most one chunk; return whether there was work."""
        with recording(self._recorder):
            return self._occupant.drain()

    def _build(self, snapshot: Snapshot) -> Payload | None:
        outbox = snapshot.outbox
        if outbox.closed:
            return None
        try:
            with span("build", outbox.request_id, outbox.next_chunk_id):
                payload = self._builder(outbox.state, snapshot)
        except Exception as error:
            self._fail(snapshot, f"could not build chunk {outbox.next_chunk_id}: {error!r}")
            return None
        if payload is None and snapshot.finished:
            payload = {}  # the end always leaves, also with nothing to say
        if payload is not None:
            payload[FINISHED], payload[NUM_OUTPUTS] = snapshot.finished, snapshot.num_outputs
            count("chunks_built")
        return payload

    def _put(self, snapshot: Snapshot, chunk_id: int, payload: Payload) -> None:
        outbox = snapshot.outbox
        try:
            with span("encode", outbox.request_id, chunk_id):
                buffers = encode(payload)
                size = nbytes(buffers)
            with outbox.lock:
                if outbox.closed:
                    return
                with span("put", outbox.request_id, chunk_id, size):
                    taken = self._connector.put(outbox.request_id, chunk_id, buffers)
                outbox.closed = snapshot.finished or not taken
        except Exception as error:
            self._fail(snapshot, f"could not put chunk {chunk_id}: {error!r}")
            return
        if taken:
            _count_chunk(chunk_id, payload, size)
        else:
            count("chunks_refused")

    def _fail(self, snapshot: Snapshot, what: str) -> None:
        snapshot.outbox.closed = True
        request = snapshot.outbox.request_id
        self._failed(StageFailed(f"{self._stage}: {what} (request {request})", stage=self._stage, request=request))


def _count_chunk(chunk_id: int, payload: Payload, size: int) -> None:
    count("chunks_put")
    count("bytes_put", size)
    rows = payload.get(HIDDEN_STATES)
    which = "chunk_0" if chunk_id == 0 else "later_chunks"
    if isinstance(rows, Tensor):
        count(f"hidden_rows_in_{which}", len(rows))
    count(f"ids_in_{which}", sum(len(value) for value in payload.values() if isinstance(value, list)))
