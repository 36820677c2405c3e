"""Toggle: send the first frames of an answer as soon as there are four, then in full chunks.

Seam `first_chunk`: how many frames a codec chunk waits for. Windows of a windowed decode move with it, so samples stay
equal only where `vocode` keeps state.
"""

from __future__ import annotations

from omnilab.seams import FirstChunk
from omnilab.toggle import Toggle

FIRST_FRAMES = 4


def full_first_chunk(chunk_id: int, chunk_frames: int) -> int:
    """Baseline: every chunk is full, the first one too."""
    return chunk_frames


def small_first_chunk(chunk_id: int, chunk_frames: int) -> int:
    """Optimized: four frames first."""
    return min(FIRST_FRAMES, chunk_frames) if chunk_id == 0 else chunk_frames


TOGGLE: Toggle[FirstChunk] = Toggle(
    name="small_first_chunk",
    seam="first_chunk",
    baseline=full_first_chunk,
    optimized=small_first_chunk,
    claim="the first audio comes 21 frames earlier; everything after it is unchanged",
    exact=frozenset({"tokens", "codes"}),
)
