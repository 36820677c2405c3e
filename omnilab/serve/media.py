"""Sounds and images of a request: their bytes, and what is in them. ApiError 400 says what was wrong.

Nothing is opened that is not allowed, and sizes are looked up in headers before samples and pixels are made.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import io
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, unquote, urlsplit

import numpy as np
from numpy.typing import NDArray

from omnilab.serve.errors import ApiError
from omnilab.serve.limits import Allowed, Limits

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGES = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
MOST_CHANNELS = 8


def from_base64(text: str, limits: Limits, param: str) -> bytes:
    """Return the bytes of base64 text; its length is looked at first."""
    if len(text) > 4 * (limits.media_bytes // 3 + 1):
        raise ApiError(400, f"a file is larger than {limits.media_bytes:,} bytes, the most that is taken", param)
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ApiError(400, f"this is not base64: {error}", param) from None


async def opened(url: str, allowed: Allowed, limits: Limits, param: str) -> bytes:
    """Return the bytes that a URL names: data always, https and file where they are allowed."""
    if url.startswith("data:"):
        head, comma, data = url.partition(",")
        if not comma or not head.endswith(";base64"):
            raise ApiError(400, "a data URI must read data:TYPE;base64,DATA", param)
        return from_base64(data, limits, param)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ApiError(400, f"this is no URL: {error}", param) from None
    if parts.scheme == "https" and _host(parts, port) in allowed.hosts and "@" not in parts.netloc:
        return await _fetched(url, limits, param)
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return await asyncio.to_thread(_read, unquote(parts.path), allowed, limits, param)
    raise ApiError(400, "this URL is not opened: send a data URI, or let the server allow its host or folder", param)


def sound_of(data: bytes, limits: Limits, param: str) -> tuple[NDArray[np.float32], int]:
    """Return the samples [n] or [n, channels] of a file's bytes, and their rate in Hz."""
    import soundfile

    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            seconds = file.frames / file.samplerate
            if seconds > limits.audio_s or file.frames * file.channels > limits.audio_samples:
                raise ApiError(400, f"the sound is {seconds:,.1f} s long; {limits.audio_s:g} s are taken", param)
            if file.channels > MOST_CHANNELS:
                raise ApiError(400, f"the sound has {file.channels} channels; {MOST_CHANNELS} are taken", param)
            return np.asarray(file.read(dtype="float32"), dtype=np.float32), file.samplerate
    except (soundfile.SoundFileError, RuntimeError, ValueError, ZeroDivisionError) as error:
        said = f"the sound cannot be read ({error}): give a wav, flac, ogg or mp3 file"
        raise ApiError(400, said, param) from None


def image_of(data: bytes, limits: Limits, param: str) -> Image:
    """Return the RGB image of a file's bytes."""
    from PIL import Image as pillow

    try:
        with pillow.open(io.BytesIO(data), formats=IMAGES) as image:
            width, height = image.size
            if width * height > limits.image_pixels:
                said = f"the image has {width} x {height} pixels; {limits.image_pixels:,} are taken"
                raise ApiError(400, said, param)
            return image.convert("RGB")
    except ApiError:
        raise
    except (pillow.DecompressionBombError, pillow.DecompressionBombWarning):
        raise ApiError(400, f"the image has too many pixels; {limits.image_pixels:,} are taken", param) from None
    except Exception as error:  # decoders of damaged files raise whatever they meet
        said = f"the image cannot be read ({type(error).__name__}): give a png, jpeg, webp, gif or bmp file"
        raise ApiError(400, said, param) from None


def _host(parts: SplitResult, port: int | None) -> str:
    host = (parts.hostname or "").lower()
    return host if port in (None, 443) else f"{host}:{port}"


async def _fetched(url: str, limits: Limits, param: str) -> bytes:
    import httpx

    data = bytearray()
    try:
        async with (
            asyncio.timeout(limits.fetch_within_s),
            httpx.AsyncClient(trust_env=False, follow_redirects=False) as client,
            client.stream("GET", url) as answer,
        ):
            if answer.status_code != 200:
                raise ApiError(400, f"the URL was answered with status {answer.status_code}", param)
            async for piece in answer.aiter_bytes():
                data += piece
                if len(data) > limits.media_bytes:
                    raise ApiError(400, f"the URL gives more than {limits.media_bytes:,} bytes", param)
    except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
        raise ApiError(400, f"the URL cannot be read: {type(error).__name__}", param) from None
    return bytes(data)


def _read(path: str, allowed: Allowed, limits: Limits, param: str) -> bytes:
    refused = ApiError(400, "this file is not opened: it is in no folder that the server allows, or is no file", param)
    try:
        real = Path(path).resolve(strict=True)
        if not any(real.is_relative_to(folder.resolve()) for folder in allowed.folders):
            raise refused
        found: Any = real.stat()
        if not stat.S_ISREG(found.st_mode):
            raise refused
        if found.st_size > limits.media_bytes:
            raise ApiError(400, f"the file is larger than {limits.media_bytes:,} bytes", param)
        return real.read_bytes()
    except (OSError, ValueError, RuntimeError):
        raise refused from None
