"""What a stream of chat chunks says: when text and audio came, how much of each, and how it ended.

Read after the end. `modality` tells text from audio; without one, `delta.audio` is audio and `delta.content` text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from omnilab.client.events import Event, events_of
from omnilab.client.wire import Fault, Reply

REFUSED = (429, 503)
SHOWN = 500  # characters of a server's message


class _Sound(msgspec.Struct):
    data: str | None = None


class _Described(msgspec.Struct):
    format: str | None = None
    sample_rate_hz: int | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    audio: _Sound | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None
    audio_metadata: _Described | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    modality: str | None = None
    usage: _Usage | None = None
    metrics: dict[str, Any] | None = None
    error: Any = None


@dataclass(frozen=True, slots=True)
class Packet:
    """Audio as it was sent: base64, and what the chunk says of it."""

    at_ns: int
    data: str
    format: str | None
    sample_rate: int | None


@dataclass(slots=True)
class Reading:
    """One stream, times in nanoseconds of the reply's clock."""

    text_ns: list[int] = field(default_factory=list)  # of every event with new tokens ...
    text_counts: list[int] = field(default_factory=list)  # ... and how many
    text_chunks_ns: list[int] = field(default_factory=list)  # of every text chunk, an empty opener too
    packets: list[Packet] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    metrics: dict[str, Any] = field(default_factory=dict)
    last_ns: int | None = None  # of the last chunk, usage included, [DONE] not
    ended: bool = False  # [DONE] or a finish reason has come ...
    done: bool = False  # ... or [DONE]
    fault: Fault | None = None

    @property
    def output_tokens(self) -> int:
        """Text tokens: what the server counted, or else what came."""
        told = self.metrics.get("num_tokens_out")
        return max(self.completion_tokens, told if isinstance(told, int) else 0) or sum(self.text_counts)

    @property
    def input_tokens(self) -> int:
        """Prompt tokens as the server counted them; 0 where it did not say."""
        told = self.metrics.get("num_tokens_in")
        return self.prompt_tokens or (told if isinstance(told, int) else 0)

    @property
    def finish_reason(self) -> str | None:
        """`length` when any part met its limit, or else the last that was given."""
        return "length" if "length" in self.reasons else self.reasons[-1] if self.reasons else None


def read(reply: Reply) -> Reading:
    """Read a reply; its `fault` says what was wrong, that of the wire first."""
    reading = Reading()
    if reply.status is not None and reply.status != 200:
        kind = "refused" if reply.status in REFUSED else "http"
        reading.fault = Fault(kind, f"status {reply.status}: {_message(b''.join(data for _, data in reply.pieces))}")
        return reading
    if reply.fault is None and not reply.content_type.startswith("text/event-stream"):
        said = _message(b"".join(data for _, data in reply.pieces))
        reading.fault = Fault("unreadable", f"not a stream but {reply.content_type or 'no type'}: {said}")
        return reading
    for event in events_of(reply.pieces):
        _take(reading, event)
        if reading.fault is not None:
            break
    if reply.fault is not None and (reading.fault is None or reading.fault.kind == "unreadable"):
        reading.fault = reply.fault  # half an event is what a cut leaves
    if reading.fault is None and not (reading.ended if reply.framed else reading.done):
        mark = "neither [DONE] nor a finish reason" if reply.framed else "no [DONE], and HTTP said no length"
        reading.fault = Fault("cut", f"the stream ended with {mark}")
    return reading


def expect(reading: Reading, modalities: Sequence[str]) -> Fault | None:
    """Return the fault of an answer that lacks what was asked for."""
    lacks = [] if reading.text_ns or any(reading.texts) or "text" not in modalities else ["text"]
    lacks += [] if reading.packets or "audio" not in modalities else ["audio"]
    return Fault("empty", f"status 200, but no {' and no '.join(lacks)}") if lacks else None


_CHUNKS = msgspec.json.Decoder(_Chunk)


def _take(reading: Reading, event: Event) -> None:
    if event.data.strip() == b"[DONE]":
        reading.ended = reading.done = True
        return
    try:
        chunk = _CHUNKS.decode(event.data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        reading.fault = Fault("unreadable", f"an event is no chat chunk ({error}): {_shown(event.data)}")
        return
    if chunk.error is not None:
        reading.fault = Fault("error", _told(chunk.error))
        return
    reading.last_ns = event.at_ns
    if chunk.metrics:
        reading.metrics = chunk.metrics
    new = _count(reading, chunk)
    for choice in chunk.choices or ():
        _take_choice(reading, event.at_ns, chunk, choice, new)


def _count(reading: Reading, chunk: _Chunk) -> int | None:
    """Return by how many completion tokens a chunk's usage goes beyond those before it; None without usage."""
    if chunk.usage is None:
        return None
    reading.prompt_tokens = chunk.usage.prompt_tokens or reading.prompt_tokens
    before = reading.completion_tokens
    reading.completion_tokens = max(before, chunk.usage.completion_tokens or 0)
    return reading.completion_tokens - before


def _take_choice(reading: Reading, at_ns: int, chunk: _Chunk, choice: _Choice, new: int | None) -> None:
    if choice.finish_reason is not None:
        reading.reasons.append(choice.finish_reason)
        reading.ended = True
    delta = choice.delta or _Delta()
    guess = "audio" if delta.audio is not None else "text" if delta.content is not None else None
    kind = chunk.modality or guess  # a chunk that only ends the answer is neither
    if kind == "audio":
        data = delta.content or (delta.audio.data if delta.audio else None)
        if data:
            about = choice.audio_metadata or _Described()
            reading.packets.append(Packet(at_ns, data, about.format, about.sample_rate_hz))
    elif kind == "text":
        ids, content = choice.token_ids or [], delta.content or ""
        reading.token_ids += ids
        reading.texts.append(content)
        reading.text_chunks_ns.append(at_ns)
        count = new if new is not None else len(ids) or int(bool(content))
        if count > 0:
            reading.text_ns.append(at_ns)
            reading.text_counts.append(count)


def _message(body: bytes) -> str:
    """Return what an answer that is no stream says."""
    try:
        said = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _shown(body)
    return _told(said["error"]) if isinstance(said, dict) and "error" in said else _shown(body)


def _told(error: Any) -> str:
    said = error.get("message") if isinstance(error, dict) else error
    return str(said or error)[:SHOWN]


def _shown(data: bytes) -> str:
    return " ".join(data[:SHOWN].decode("utf-8", "replace").split())[:SHOWN] or "(nothing)"
