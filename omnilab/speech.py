"""What a pipeline gives back: events as they come, and the whole."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from omnilab import show


@dataclass(frozen=True, slots=True, repr=False)
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

    @property
    def seconds(self) -> float:
        """Seconds of audio."""
        return len(self.audio) / self.sample_rate

    def __repr__(self) -> str:
        """Return one line."""
        text = self.text if len(self.text) <= 60 else self.text[:57] + "..."
        return f"<Speech {text!r}, {len(self.token_ids)} tokens, {self.seconds:.2f} s, {self.finish_reason}>"

    def _repr_html_(self) -> str:
        """Return text, player and waveform as HTML."""
        facts = (
            f"{len(self.token_ids)} text tokens, {len(self.codes)} frames, {self.seconds:.2f} s; {self.finish_reason}"
        )
        player, drawn = show.player(self.audio, self.sample_rate), show.waveform(self.audio, self.sample_rate)
        return show.frame(show.line(self.text), player, drawn, show.line(facts, soft=True))


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


class EventStream(Iterator[Event]):
    """The events of one request. `close`, or dropping it at any moment, aborts the request if it is not done."""

    def __init__(self, events: Generator[Event], give_up: Callable[[], None]) -> None:
        self._events, self._give_up = events, give_up

    def __next__(self) -> Event:
        return next(self._events)

    def close(self) -> None:
        """Take no more. A generator that was never started knows nothing of its end: hence both."""
        self._events.close()
        self._give_up()

    def __del__(self) -> None:
        self.close()
