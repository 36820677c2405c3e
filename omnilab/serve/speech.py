"""Answers of /v1/audio/speech: a file, or samples as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from omnilab.serve import audio
from omnilab.serve.asked import Asked
from omnilab.serve.errors import ApiError
from omnilab.serve.service import Accepted
from omnilab.speech import AudioChunk, Finished


async def spoken(asked: Asked, accepted: Accepted) -> AsyncGenerator[bytes]:
    """Yield a file in one piece; streamed, the header of a WAV of unknown length (or none) and samples."""
    began = False
    async with aclosing(accepted.events()) as events:
        async for event in events:
            if isinstance(event, AudioChunk) and asked.stream:
                if not began and asked.kind == "wav":
                    yield audio.wav_header(event.sample_rate, None)
                began = True
                yield audio.pcm16(event.audio).tobytes()
            elif isinstance(event, Finished):
                speech = event.speech
                if not len(speech.audio):
                    raise ApiError(400, "Audio generation completed but no audio was produced.")
                if not asked.stream:
                    yield await asyncio.to_thread(audio.encoded, speech.audio, speech.sample_rate, asked.kind)
