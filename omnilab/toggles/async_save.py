"""Toggle: build each payload on the sender thread, not on the engine thread.

Before vllm-omni#1378 the engine thread built the payload of every step and only the put ran on the sender thread;
since then the engine thread enqueues a snapshot. Encoding and the put are on the sender thread on both sides. What
moves is small (the join of the prefill's rows, once; copies of id lists; flattening of codes): expect little of one
request.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from omnilab.seams import BuildChunk, LiveRequest, MakeSave, Payload, PutChunk, Snapshot
from omnilab.toggle import Toggle


class PutInBackground:
    """Baseline: the engine thread builds, the sender thread encodes and puts."""

    def __init__(self, build: BuildChunk, put: PutChunk) -> None:
        self._build, self._put = build, put
        self._built: deque[tuple[Snapshot, int, Payload]] = deque()

    def save(self, live: LiveRequest, rows: Any) -> None:
        """Build the chunk now and queue it."""
        snapshot = Snapshot.of(live, rows)
        payload = self._build(snapshot)
        if payload is not None:
            self._built.append((snapshot, snapshot.outbox.take_id(), payload))

    def drain(self) -> bool:
        """Put the oldest built chunk."""
        if not self._built:
            return False
        self._put(*self._built.popleft())
        return True


class BuildInBackground:
    """Optimized: the engine thread only queues a snapshot; the sender thread builds, encodes and puts."""

    def __init__(self, build: BuildChunk, put: PutChunk) -> None:
        self._build, self._put = build, put
        self._snapshots: deque[Snapshot] = deque()

    def save(self, live: LiveRequest, rows: Any) -> None:
        """Queue a snapshot: taken here, for the live request goes on changing."""
        self._snapshots.append(Snapshot.of(live, rows))

    def drain(self) -> bool:
        """Build the chunk of the oldest snapshot and put it. The id is taken after the build: no chunk, no gap."""
        if not self._snapshots:
            return False
        snapshot = self._snapshots.popleft()
        payload = self._build(snapshot)
        if payload is not None:
            self._put(snapshot, snapshot.outbox.take_id(), payload)
        return True


class SaveInline:
    """Everything on the engine thread, the put too: what vLLM-Omni 0.14 shipped."""

    def __init__(self, build: BuildChunk, put: PutChunk) -> None:
        self._build, self._put = build, put

    def save(self, live: LiveRequest, rows: Any) -> None:
        """Build the chunk and put it, now."""
        snapshot = Snapshot.of(live, rows)
        payload = self._build(snapshot)
        if payload is not None:
            self._put(snapshot, snapshot.outbox.take_id(), payload)

    def drain(self) -> bool:
        """Nothing is ever left to send."""
        return False


TOGGLE: Toggle[MakeSave] = Toggle(
    name="async_save",
    seam="save",
    baseline=PutInBackground,
    optimized=BuildInBackground,
    claim="the engine thread no longer builds payloads; its next step starts earlier",
)
