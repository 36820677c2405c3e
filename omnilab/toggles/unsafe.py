"""Mistakes that reviewers of vllm-omni#1378 feared, or that happened later, each as an occupant of its seam.

They exist so that the checks can be seen to catch them: tests/races/test_unsafe.py runs each and expects to fail. No
recipe and no toggle uses them. The seams leave no room for some: payloads are flat, so that no merge can replace a
nested dict; a put that fails is seen by the stage, not by `save`, so that `LosesFailedPut` plays the transport too;
rows and samples are owned once they leave a runner, so that `OneStagingBuffer` brings the buffer that is used again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from omnilab.seams import (
    CODES,
    EMBEDDINGS,
    FIRST_ROW,
    NEW_FRAMES,
    BuildChunk,
    LiveRequest,
    Payload,
    Phase,
    PutChunk,
    RequestBatch,
    Snapshot,
    ThinkerRows,
    WindowDecoder,
)
from omnilab.toggles.async_save import BuildInBackground, PutInBackground
from omnilab.toggles.idle_skip import update_always
from omnilab.toggles.prefill_only_hidden_states import EveryChunk, PrefillOnly
from omnilab.toggles.stateful_vocode import WindowedVocode


# save --------------------------------------------------------------------------------------------------------------
class ReadsLiveLate(BuildInBackground):
    """The live request is read when the chunk is built: it has gone on by then, and may have finished."""

    def __init__(self, build: BuildChunk, put: PutChunk) -> None:
        super().__init__(build, put)
        self._waiting: deque[tuple[LiveRequest, Any]] = deque()

    def save(self, live: LiveRequest, rows: Any) -> None:
        """Queue the request itself."""
        self._waiting.append((live, rows))

    def drain(self) -> bool:
        """Take the snapshot only now."""
        if self._waiting:
            self._snapshots.append(Snapshot.of(*self._waiting.popleft()))
        return super().drain()


class DropsTerminal(BuildInBackground):
    """Clean-up of a request that has finished takes what it has not sent yet out of the queue, the end with it."""

    def save(self, live: LiveRequest, rows: Any) -> None:
        """Queue a snapshot, or clean up."""
        super().save(live, rows)
        if live.finished:
            unsent = [snapshot for snapshot in self._snapshots if snapshot.outbox is not live.outbox]
            self._snapshots = deque(unsent)


class LosesFailedPut(PutInBackground):
    """A put that fails is swallowed, and the next chunk gets its id: no hang, but one row or frame is gone.

    Chunk 1 of each request fails, once.
    """

    def drain(self) -> bool:
        """Put the oldest built chunk."""
        if not self._built:
            return False
        snapshot, chunk_id, payload = self._built.popleft()
        outbox = snapshot.outbox
        if chunk_id == 1 and not snapshot.finished and not outbox.state.get("has_failed"):
            outbox.state["has_failed"] = True
            outbox.next_chunk_id -= 1
            behind = [(s, i - (s.outbox is outbox), p) for s, i, p in self._built]
            self._built = deque(behind)
            return True
        self._put(snapshot, chunk_id, payload)
        return True


class TakesIdFirst(BuildInBackground):
    """The chunk id is taken before the build, which may have nothing to send: a gap, and the reader waits for ever."""

    def drain(self) -> bool:
        """Build the oldest snapshot's chunk under an id taken before."""
        if not self._snapshots:
            return False
        snapshot = self._snapshots.popleft()
        chunk_id = snapshot.outbox.take_id()
        if (payload := self._build(snapshot)) is not None:
            self._put(snapshot, chunk_id, payload)
        return True


class NewestFirst(BuildInBackground):
    """Several savers share a queue without order: a later step's chunk may be built before an earlier one's."""

    def drain(self) -> bool:
        """Build and put the newest."""
        self._snapshots.rotate(1)
        return super().drain()


class NoEndWithoutData(PutInBackground):
    """A step that ends the request and has no rows of its own sends nothing: the mark of the end never leaves."""

    def save(self, live: LiveRequest, rows: Any) -> None:
        """Skip a step without rows."""
        if getattr(rows, "codes", True):
            super().save(live, rows)


class TailNotFlushed(PutInBackground):
    """The end leaves without the tail that had gathered: the last frames are never heard."""

    def save(self, live: LiveRequest, rows: Any) -> None:
        """Build the chunk, and empty it when it is the last."""
        super().save(live, rows)
        if live.finished and self._built and CODES in (payload := self._built[-1][2]):
            payload |= {CODES: [], NEW_FRAMES: 0}


class OneStagingBuffer(BuildInBackground):
    """Rows wait in a staging buffer that the next step writes to before they have been sent."""

    def __init__(self, build: BuildChunk, put: PutChunk) -> None:
        super().__init__(build, put)
        self._buffers: dict[str, Tensor] = {}

    def save(self, live: LiveRequest, rows: Any) -> None:
        """Queue a snapshot of views."""
        if isinstance(rows, ThinkerRows) and rows.phase is Phase.DECODE:
            staged = {name: self._staged(name, getattr(rows, name)) for name in ("embeddings", "hidden_states")}
            rows = replace(rows, **staged)
        super().save(live, rows)

    def _staged(self, name: str, rows: Tensor) -> Tensor:
        buffer = self._buffers.setdefault(name, torch.empty_like(rows))
        return buffer.copy_(rows)


# thinker_payload ---------------------------------------------------------------------------------------------------
class PhaseFromRowCount(PrefillOnly):
    """One row means decode: the last part of a prefill may have one row too, and loses its layer-24 row."""

    def build(self, state: dict[str, Any], snapshot: Snapshot) -> Payload | None:
        """Guess the phase."""
        phase = Phase.DECODE if len(snapshot.rows.embeddings) == 1 else Phase.PREFILL
        return super().build(state, replace(snapshot, rows=replace(snapshot.rows, phase=phase)))


class PhaseFromOutputs(PrefillOnly):
    """Output means decode: the step that ends the prefill has its token already."""

    def build(self, state: dict[str, Any], snapshot: Snapshot) -> Payload | None:
        """Guess the phase."""
        phase = Phase.DECODE if snapshot.num_outputs else Phase.PREFILL
        return super().build(state, replace(snapshot, rows=replace(snapshot.rows, phase=phase)))


class FirstRowOfTheStep(EveryChunk):
    """The row of a step is taken for that of the token it made: one off, so every row is read a step late."""

    def build(self, state: dict[str, Any], snapshot: Snapshot) -> Payload | None:
        """Misplace the rows."""
        payload = super().build(state, snapshot)
        if payload is not None:
            payload[FIRST_ROW] += 1
        return payload


# accumulate, attach, merge -----------------------------------------------------------------------------------------
def first_row_of_newest(held: Payload | None, chunk: Payload) -> Payload:
    """Rows are appended, but where they start follows the newest chunk: old rows are read for new ones."""
    rows = [payload[EMBEDDINGS] for payload in (held, chunk) if payload is not None and EMBEDDINGS in payload]
    return {**chunk, EMBEDDINGS: torch.cat(rows)}


def attach_until_end(held: Payload, fresh: bool, finished: bool) -> Payload | None:
    """The chunk that says finished is taken for an empty mark: its own data is never looked at."""
    return None if finished else held


def merge_once(state: Payload | None, payload: Payload) -> Payload:
    """A request that has its state keeps it: updates are dropped without a word."""
    return dict(payload) if state is None else state


# idle_step ---------------------------------------------------------------------------------------------------------
def skip_finished_too(batch: RequestBatch, scheduled: Mapping[str, Payload], finished: Iterable[str]) -> None:
    """An idle step returns at once: the ids of requests that have ended, which it carries, are lost."""
    if scheduled:
        update_always(batch, scheduled, finished)


def free_unscheduled(batch: RequestBatch, scheduled: Mapping[str, Payload], finished: Iterable[str]) -> None:
    """A request that waits for its next chunk is taken for one that has gone."""
    for request_id in batch.ids() - scheduled.keys():
        batch.free(request_id)
    update_always(batch, scheduled, finished)


# first_chunk, vocode -----------------------------------------------------------------------------------------------
class KeepsContext(WindowedVocode):
    """The samples of the left context are not cut: speech stutters at every border."""

    def decode(self, network: WindowDecoder, state: Any, payload: Payload) -> tuple[Tensor, Any]:
        """Decode the window and take all of it for new."""
        context = len(payload[CODES]) // network.num_code_groups - payload[NEW_FRAMES]
        return super().decode(network, state, {**payload, NEW_FRAMES: payload[NEW_FRAMES] + context})
