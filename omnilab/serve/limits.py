"""What a request may weigh and what it may make the server open. All of it is checked before anything is decoded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Sizes are of one request; times in seconds."""

    body_bytes: int = 32 * MIB
    media_bytes: int = 24 * MIB  # of one sound or image, as a file
    media_parts: int = 8
    audio_s: float = 300.0  # of one sound
    audio_samples: int = 30_000_000  # of one sound, over all its channels
    image_pixels: int = 16_000_000  # of one image
    body_within_s: float = 30.0  # for a client to send its body
    fetch_within_s: float = 20.0  # for an allowed host to send a file
    read_within_s: float = 60.0  # for a client to read what it is sent


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """What of a request may be opened beside data URIs: https of these hosts, files below these folders."""

    hosts: frozenset[str] = frozenset()  # "host", or "host:port" for another port than 443
    folders: tuple[Path, ...] = ()
