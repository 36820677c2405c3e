"""Samples as files: WAV, FLAC, MP3 and Opus through soundfile, and bare PCM of 16 bits."""

from __future__ import annotations

import binascii
import io
import struct
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Container(NamedTuple):
    """How soundfile names a format, and what HTTP calls it."""

    major: str
    minor: str
    media_type: str


CONTAINERS = {
    "wav": Container("WAV", "PCM_16", "audio/wav"),
    "flac": Container("FLAC", "PCM_16", "audio/flac"),
    "mp3": Container("MP3", "MPEG_LAYER_III", "audio/mpeg"),
    "opus": Container("OGG", "OPUS", "audio/ogg"),
}
BARE = ("pcm16", "pcm")  # two names of one thing
FORMATS = (*CONTAINERS, *BARE)
# MP3 and Opus begin and end with padding: pieces of them, played one after the other, have gaps.
STREAMED = ("wav", "flac", *BARE)
WAV_HEADER_BYTES = 44


def pcm16(samples: NDArray[np.float32]) -> NDArray[np.int16]:
    """Return samples in -1..1 as 16-bit numbers; louder ones are clipped."""
    return np.rint(np.clip(samples, -1.0, 1.0) * 32767.0).astype("<i2")


def encoded(samples: NDArray[np.float32], rate: int, kind: str) -> bytes:
    """Return mono samples [n] at `rate` Hz as a whole file of one of FORMATS."""
    numbers = pcm16(samples)
    if kind in BARE:
        return numbers.tobytes()
    if kind == "wav":
        return wav_header(rate, numbers.nbytes) + numbers.tobytes()
    import soundfile

    container, file = CONTAINERS[kind], io.BytesIO()
    soundfile.write(file, numbers, rate, format=container.major, subtype=container.minor)
    return file.getvalue()


def wav_header(rate: int, num_bytes: int | None) -> bytes:
    """Return the header of a mono WAV of so many bytes of samples; None: unknown, as streams write it."""
    size = 0xFFFFFFFF if num_bytes is None else num_bytes
    riff = size if num_bytes is None else WAV_HEADER_BYTES - 8 + num_bytes
    form = struct.pack("<IHHIIHH", 16, 1, 1, rate, 2 * rate, 2, 16)
    return b"RIFF" + struct.pack("<I", riff) + b"WAVEfmt " + form + b"data" + struct.pack("<I", size)


def base64_of(data: bytes) -> str:
    """Return base64 text."""
    return binascii.b2a_base64(data, newline=False).decode("ascii")


def media_type(kind: str) -> str:
    """Return the HTTP type of one of FORMATS."""
    return CONTAINERS[kind].media_type if kind in CONTAINERS else "audio/pcm"


def described(samples: NDArray[Any], rate: int, kind: str) -> dict[str, Any]:
    """Return what vLLM-Omni says beside a chunk of audio."""
    return {"format": kind, "sample_rate_hz": rate, "frame_count": len(samples), "channels": 1}
