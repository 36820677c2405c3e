"""Audio packets as samples. Done when the stream has ended: what takes time here is in no measured time."""

from __future__ import annotations

import base64
import binascii
import io
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from omnilab.client.reading import Packet

BARE = ("pcm", "pcm16")
PCM_RATE = 24_000  # Hz of samples without a header whose chunk does not say


class Unreadable(Exception):
    """A packet that is no sound; the message is for the record."""


def samples_of(packets: Sequence[Packet], bare: bool = False) -> tuple[list[NDArray[np.float32]], int]:
    """Return mono samples [n] in -1..1 of each packet, and their rate in Hz. `bare`: 16-bit numbers were asked for.

    A packet is a whole file. Raises Unreadable for one that is none, or whose rate is not the first one's.
    """
    found: list[NDArray[np.float32]] = []
    rate = 0
    for number, packet in enumerate(packets):
        samples, own = _decoded(number, packet, bare)
        if rate and own != rate:
            raise Unreadable(f"audio packet {number} has {own} Hz, those before {rate}")
        rate = own
        found.append(samples)
    return found, rate


def _decoded(number: int, packet: Packet, bare: bool) -> tuple[NDArray[np.float32], int]:
    try:
        data = base64.b64decode(packet.data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Unreadable(f"audio packet {number} is not base64: {error}") from None
    headed = data[:4] in (b"RIFF", b"fLaC", b"OggS") or data[:3] == b"ID3"
    if not headed and (bare or packet.format in BARE):
        if len(data) % 2:
            raise Unreadable(f"audio packet {number} has {len(data)} bytes: no whole number of 16-bit samples")
        numbers = np.frombuffer(data, dtype="<i2")
        return numbers.astype(np.float32) / np.float32(32768), packet.sample_rate or PCM_RATE
    import soundfile

    try:
        samples, rate = soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)
    except (soundfile.SoundFileError, RuntimeError) as error:
        raise Unreadable(f"audio packet {number} cannot be read ({error})") from None
    mono = samples[:, 0] if samples.shape[1] == 1 else samples.mean(1)
    return np.ascontiguousarray(mono, dtype=np.float32), int(rate)
