"""Seam `first_chunk`: how many frames a codec chunk waits for."""

from __future__ import annotations


def full_first_chunk(chunk_id: int, chunk_frames: int) -> int:
    """Baseline: every chunk is full, the first one too."""
    return chunk_frames
