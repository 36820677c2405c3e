"""One question and how long and how random its answer may be. Light: numpy only."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from omnilab.errors import BadInput

FRAMES_PER_TOKEN = 2.94  # 2,646 frames for 900 text tokens, as in the public run of the change
SPARE_FRAMES = 25  # one chunk more than that before speech without an end is cut off

Audio: TypeAlias = "str | Path | tuple[NDArray[Any], int]"  # a file, or mono samples in -1..1 and their rate in Hz
Message: TypeAlias = Mapping[str, Any]  # {"role": ..., "content": text or parts}


@dataclass(frozen=True, slots=True)
class Prompt:
    """One question: `text`, `messages` or `random_tokens`; `audio` and `image` go with either of the first, or alone.

    `image` is a path, a PIL image or an array [height, width, 3] of bytes. `random_tokens` asks for so many random
    text token ids, drawn from `random_seed` alone. Raises BadInput when nothing or more than one thing is asked.
    """

    text: str | None = None
    messages: Sequence[Message] | None = None
    system: str | None = None
    audio: Audio | None = None
    image: Any = None
    random_tokens: int | None = None
    random_seed: int = 0

    def __post_init__(self) -> None:
        given = [name for name in ("text", "messages", "random_tokens") if getattr(self, name) is not None]
        has_media = self.audio is not None or self.image is not None
        if len(given) > 1:
            raise BadInput(f"prompt: give one of text, messages and random_tokens, not {' and '.join(given)}")
        if not given and not has_media:
            raise BadInput("prompt: empty; give text, messages, random_tokens, audio or image")
        if self.text is not None:
            _check_text(self.text)
        if self.messages is not None:
            _check_messages(self.messages)
        if self.random_tokens is not None:
            at_least("random_tokens", self.random_tokens, 1)
            if has_media or self.system is not None:
                raise BadInput("prompt: random_tokens goes with neither audio nor image nor system")

    def as_messages(self) -> list[dict[str, Any]]:
        """Return chat messages with content parts of type text, audio or image; media come before the last text."""
        if self.random_tokens is not None:
            raise BadInput("prompt: random tokens are ids, not messages; see Prompt.random_ids")
        turns = [{"role": turn["role"], "content": _parts(turn["content"])} for turn in self.messages or ()]
        if not turns:
            turns = [{"role": "user", "content": _parts(self.text) if self.text is not None else []}]
        media: list[dict[str, Any]] = []
        if self.audio is not None:
            media.append({"type": "audio", "audio": self.audio})
        if self.image is not None:
            media.append({"type": "image", "image": self.image})
        turns[-1]["content"] = media + turns[-1]["content"]
        system = [] if self.system is None else [{"role": "system", "content": _parts(self.system)}]
        return system + turns

    def random_ids(self, allowed: int | Sequence[int]) -> list[int]:
        """Draw `random_tokens` ids below `allowed`, or out of it; the same seed gives the same ids everywhere."""
        count = at_least("random_tokens", self.random_tokens, 1)
        generator = np.random.Generator(np.random.PCG64(self.random_seed))
        if isinstance(allowed, int):
            return generator.integers(0, allowed, count).tolist()
        return np.asarray(allowed)[generator.integers(0, len(allowed), count)].tolist()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Lengths and sampling of one request.

    `max_frames` None: `frame_limit` follows from the text. `temperature` None: the released defaults of each stage;
    0: greedy everywhere, residual codes too. `ignore_eos`: both ends run to their limits, so that work is fixed.
    """

    max_text_tokens: int = 256
    max_frames: int | None = None
    ignore_eos: bool = False
    temperature: float | None = None
    top_k: int | None = None
    speaker: str = "ethan"
    seed: int | None = None

    def __post_init__(self) -> None:
        at_least("max_text_tokens", self.max_text_tokens, 1)
        for name, least in (("max_frames", 1), ("top_k", 0), ("seed", 0)):
            if getattr(self, name) is not None:
                at_least(name, getattr(self, name), least)
        if self.temperature is not None and not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise BadInput(f"temperature: must be 0 (greedy) or more, not {self.temperature}")
        if not self.speaker:
            raise BadInput("speaker: empty")

    @property
    def frame_limit(self) -> int:
        """Most audio frames of the request: `max_frames`, or what the text can need and 25 more."""
        if self.max_frames is not None:
            return self.max_frames
        return math.ceil(FRAMES_PER_TOKEN * self.max_text_tokens) + SPARE_FRAMES


def at_least(name: str, value: Any, least: int) -> int:
    """Return a whole number of at least `least`; BadInput names it otherwise."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise BadInput(f"{name}: must be a whole number, not {value!r}")
    if value < least:
        raise BadInput(f"{name}: must be {least} or more, not {value}")
    return int(value)


def one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    """Raise BadInput for a value that is not known."""
    if value not in known:
        raise BadInput(f"{name} {value!r} is unknown: use one of {', '.join(known)}")


def _check_text(text: Any) -> None:
    if not isinstance(text, str):
        raise BadInput(f"prompt: text must be a string, not {type(text).__name__}")
    if not text.strip():
        raise BadInput("prompt: empty text")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadInput(f"prompt: the text is no Unicode at {error.start}: half of a surrogate pair") from None


def _check_messages(messages: Sequence[Message]) -> None:
    if not messages:
        raise BadInput("prompt: empty messages")
    for turn in messages:
        if not isinstance(turn, Mapping) or not turn.get("role") or not turn.get("content"):
            raise BadInput("prompt: a message needs a role and a content that is not empty")
    if messages[-1]["role"] != "user":
        raise BadInput("prompt: the last message must be the user's")


def _parts(content: Any) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else [dict(part) for part in content]
