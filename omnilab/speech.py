"""What a pipeline gives back: events as they come, and the whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Speech:
    """An answer. `codes` [frames, groups], `audio` [samples] in -1..1 at `sample_rate` Hz.

    `finish_reason` is "stop", or "length" when text or speech met its limit.
    """

    text: str
    token_ids: list[int]
    codes: NDArray[np.int64]
    audio: NDArray[np.float32]
    sample_rate: int
    finish_reason: str


@dataclass(frozen=True, slots=True)
class TextDelta:
    """New text, whole characters only: it may be empty although tokens have come."""

    text: str
    token_ids: list[int]


@dataclass(frozen=True, slots=True)
class AudioChunk:
    """New samples [n] in -1..1; those before are not repeated."""

    audio: NDArray[np.float32]
    sample_rate: int


@dataclass(frozen=True, slots=True)
class Finished:
    """The end, with everything."""

    speech: Speech


Event: TypeAlias = TextDelta | AudioChunk | Finished
