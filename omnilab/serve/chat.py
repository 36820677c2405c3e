"""Answers of /v1/chat/completions: the stream that vLLM-Omni's 0.16 and 0.30 clients and OpenAI's read, and the whole.

In a stream the top-level `modality` says what a chunk is; `content` is text, or a whole file of sound in base64. The
opener comes with the first tokens, the reason of the end in a chunk of its own that has no modality.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec

from omnilab.serve import audio
from omnilab.serve.asked import Asked
from omnilab.serve.errors import ApiError
from omnilab.serve.service import Accepted
from omnilab.speech import AudioChunk, Finished, Speech, TextDelta

AUDIO_KEPT_S = 24 * 3600  # what `expires_at` says; nothing is kept


class Chat:
    """One answer's writer."""

    def __init__(self, asked: Asked, accepted: Accepted, model: str, request_id: str | None) -> None:
        """`request_id` is the client's own, if it gave one."""
        self._asked, self._accepted = asked, accepted
        self._told = 0  # text tokens that the client knows of
        self._head = {
            "id": f"chatcmpl-{request_id or secrets.token_hex(8)}", "object": "chat.completion.chunk",
            "created": int(time.time()), "model": model,
        }  # fmt: skip

    async def chunks(self) -> AsyncGenerator[bytes]:
        """Yield server-sent events. A failure after the first is one of them; before it, ApiError."""
        began = False
        try:
            async with aclosing(self._accepted.events()) as events:
                async for event in events:
                    for chunk in self._chunks(event, began):
                        began = True
                        yield _event(chunk)
        except ApiError as error:
            if not began:
                raise
            yield _event(error.body())
        yield b"data: [DONE]\n\n"

    async def whole(self) -> AsyncGenerator[bytes]:
        """Yield the answer in one piece."""
        async with aclosing(self._accepted.events()) as events:
            async for event in events:
                if isinstance(event, Finished):
                    message = await asyncio.to_thread(self._message, event.speech)
                    choice = {"index": 0, "message": message, "logprobs": None}
                    choice["finish_reason"] = event.speech.finish_reason
                    tail = {"usage": self._usage(), "metrics": self._accepted.measured()}
                    yield msgspec.json.encode({**self._head, "object": "chat.completion", "choices": [choice], **tail})

    def _chunks(self, event: Any, began: bool) -> list[dict[str, Any]]:
        """Return what an event is to this client; what it did not ask for is nothing."""
        if isinstance(event, TextDelta):
            if not self._asked.text:
                return []
            opener = [] if began else [self._chunk({"role": "assistant", "content": ""}, "text", 0)]
            self._told += len(event.token_ids)
            return [*opener, self._chunk({"content": event.text}, "text", self._told)]
        if isinstance(event, AudioChunk):
            if not self._asked.audio:
                return []
            data = audio.encoded(event.audio, event.sample_rate, self._asked.kind)
            chunk = self._chunk({"role": "assistant", "content": audio.base64_of(data)}, "audio", 0)
            described = audio.described(event.audio, event.sample_rate, self._asked.kind)
            chunk["choices"][0]["audio_metadata"] = described
            return [chunk]
        return self._end(event.speech)

    def _end(self, speech: Speech) -> list[dict[str, Any]]:
        measured = self._accepted.measured()
        end = self._chunk({}, None, self._accepted.output_tokens, speech.finish_reason) | {"metrics": measured}
        usage = {**self._head, "choices": [], "usage": self._usage(), "metrics": measured}
        return [end, usage] if self._asked.usage else [end]

    def _chunk(
        self, delta: dict[str, Any], modality: str | None, tokens: int, reason: str | None = None
    ) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        chunk: dict[str, Any] = {**self._head, "choices": [choice]}
        if modality is not None:
            chunk["modality"] = modality
        if self._asked.usage_always:
            chunk["usage"] = self._usage(tokens)
        return chunk

    def _usage(self, tokens: int | None = None) -> dict[str, int]:
        before, after = self._accepted.prompt_tokens, self._accepted.output_tokens if tokens is None else tokens
        return {"prompt_tokens": before, "completion_tokens": after, "total_tokens": before + after}

    def _message(self, speech: Speech) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": speech.text if self._asked.text else None}
        if self._asked.audio:
            if not len(speech.audio):
                raise ApiError(400, "Audio generation completed but no audio was produced.")
            data = audio.encoded(speech.audio, speech.sample_rate, self._asked.kind)
            message["audio"] = {
                "id": f"audio-{secrets.token_hex(8)}", "data": audio.base64_of(data), "transcript": speech.text,
                "expires_at": int(time.time()) + AUDIO_KEPT_S,
            }  # fmt: skip
        return message


def _event(chunk: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(chunk) + b"\n\n"
