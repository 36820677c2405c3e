"""Seam `accumulate`: what the receiver makes of a chunk and of what it holds already."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from omnilab.seams import FIRST_ROW, Payload


def concatenate(held: Payload | None, chunk: Payload) -> Payload:
    """Baseline: append the chunk's rows and lists to those held; a key the chunk lacks is dropped.

    Each call copies all it holds, so a request of n chunks costs the square of n.
    """
    return {key: _joined(key, (held or {}).get(key), value) for key, value in chunk.items()}


def _joined(key: str, held: Any, value: Any) -> Any:
    if held is None:
        return value
    if isinstance(value, Tensor):
        return torch.cat([held, value])
    if isinstance(value, list):
        return held + value
    return held if key == FIRST_ROW else value
