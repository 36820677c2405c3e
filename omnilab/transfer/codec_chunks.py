"""Builder of the edge Talker -> Code2Wav: gathers frames and cuts them into chunks."""

from __future__ import annotations

from typing import Any

from omnilab.seams import FirstChunk, Payload, Snapshot, Vocode


class CodecChunks:
    """A chunk leaves when it is full, and with whatever there is at the end."""

    def __init__(self, vocode: Vocode, first_chunk: FirstChunk, chunk_frames: int) -> None:
        self._vocode, self._first_chunk, self._chunk_frames = vocode, first_chunk, chunk_frames

    def __call__(self, state: dict[str, Any], snapshot: Snapshot) -> Payload | None:
        """Add the step's frame, if it gave one; return a chunk when one is due."""
        frames: list[tuple[int, ...]] = state.setdefault("frames", [])
        if snapshot.rows.codes:
            frames.append(snapshot.rows.codes)
        sent = state.setdefault("sent", 0)
        wanted = self._first_chunk(state.setdefault("chunks", 0), self._chunk_frames)
        if len(frames) - sent < wanted and not snapshot.finished:
            return None
        payload = self._vocode.build(frames, sent, len(frames))
        state["sent"], state["chunks"] = len(frames), state["chunks"] + 1
        return payload
