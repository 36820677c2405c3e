"""Audio and images as users give them, made into what the feature extractors take. BadInput says what was wrong."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from omnilab.errors import BadInput

if TYPE_CHECKING:
    from PIL.Image import Image

AudioSource: TypeAlias = "str | os.PathLike[str] | bytes | bytearray | memoryview | tuple[Any, int]"
ImageSource: TypeAlias = "str | os.PathLike[str] | bytes | bytearray | memoryview | Image | NDArray[np.uint8]"

SHORTEST_AUDIO_S = 0.1  # the spectrogram and the tower's three halvings need some frames


def load_audio(source: AudioSource, rate: int) -> NDArray[np.float32]:
    """Return mono float32 samples [n] at `rate` Hz from a file, its bytes, or (samples [n] or [n, channels], rate)."""
    if isinstance(source, tuple):
        samples, given_rate = _checked_samples(source)
    else:
        samples, given_rate = _read_audio(source)
    if samples.ndim == 2:
        samples = samples.mean(axis=1)
    if not np.isfinite(samples).all():
        raise BadInput("the audio holds NaN or infinite samples: clean it first")
    if len(samples) < SHORTEST_AUDIO_S * given_rate:
        raise BadInput(f"the audio is {len(samples) / given_rate:.3f} s long: give at least {SHORTEST_AUDIO_S} s")
    if given_rate != rate:
        import soxr

        samples = soxr.resample(samples, given_rate, rate)
    return np.ascontiguousarray(samples, dtype=np.float32)


def _checked_samples(source: tuple[Any, int]) -> tuple[NDArray[np.float32], int]:
    if len(source) != 2:
        raise BadInput("audio as a tuple must be (samples, sampling rate)")
    samples, rate = np.asarray(source[0]), int(source[1])
    if samples.dtype.kind == "i":  # whole numbers are PCM, as wav files hold them
        samples = samples / -float(np.iinfo(samples.dtype).min)
    if samples.dtype.kind != "f" or samples.ndim not in (1, 2) or rate <= 0:
        raise BadInput(
            f"audio samples must be float or signed integers, [n] or [n, channels], with a rate in Hz; "
            f"not {samples.dtype} {list(samples.shape)} at {rate}"
        )
    if samples.ndim == 2 and samples.shape[0] < samples.shape[1]:
        raise BadInput(f"audio samples {list(samples.shape)} look transposed: give [n, channels]")
    return samples.astype(np.float32), rate


def _read_audio(source: Any) -> tuple[NDArray[np.float32], int]:
    import soundfile

    if not isinstance(source, str | os.PathLike | bytes | bytearray | memoryview):
        raise BadInput(f"audio must be a path, bytes of a file, or (samples, rate); not {type(source).__name__}")
    is_bytes = isinstance(source, bytes | bytearray | memoryview)
    label = "the bytes given" if is_bytes else os.fspath(source)
    try:
        samples, rate = soundfile.read(io.BytesIO(source) if is_bytes else label, dtype="float32", always_2d=False)
    except (OSError, RuntimeError, TypeError) as error:
        raise BadInput(f"cannot read audio from {label}: {error}; give a wav, flac, ogg or mp3 file") from error
    return np.asarray(samples, dtype=np.float32), rate


def load_image(source: ImageSource) -> Image:
    """Return an RGB image from a file, its bytes, a PIL image, or a uint8 array [height, width, 3]."""
    from PIL import Image as pillow

    if isinstance(source, pillow.Image):
        return source.convert("RGB")
    if isinstance(source, np.ndarray):
        if source.dtype != np.uint8 or source.ndim != 3 or source.shape[2] != 3:
            raise BadInput(f"an image array must be uint8 [height, width, 3], not {source.dtype} {list(source.shape)}")
        return pillow.fromarray(source, "RGB")
    if not isinstance(source, str | os.PathLike | bytes | bytearray | memoryview):
        raise BadInput(
            f"an image must be a path, bytes of a file, a PIL image or an array; not {type(source).__name__}"
        )
    is_bytes = isinstance(source, bytes | bytearray | memoryview)
    label = "the bytes given" if is_bytes else os.fspath(source)
    try:
        with pillow.open(io.BytesIO(source) if is_bytes else label) as image:
            return image.convert("RGB")
    except (OSError, ValueError, pillow.DecompressionBombError) as error:
        raise BadInput(f"cannot read an image from {label}: {error}; give a png, jpeg or webp file") from error
