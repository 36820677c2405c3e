"""Toggle: let the rows of a decode chunk replace those held, instead of appending to all that has come.

The runner keeps what it has merged, and a Talker step reads one new row; what the receiver holds is what is pickled to
the runner with each step. Later releases of vLLM-Omni (0.18, #1656) do this by keys that override.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from omnilab.seams import FIRST_ROW, Accumulate, Payload
from omnilab.toggle import Toggle


def concatenate(held: Payload | None, chunk: Payload) -> Payload:
    """Baseline: append the chunk's rows and lists to those held; a key the chunk lacks is dropped.

    Each call copies all it holds, so a request of n chunks costs the square of n.
    """
    return {key: _joined(key, (held or {}).get(key), value) for key, value in chunk.items()}


def override(held: Payload | None, chunk: Payload) -> Payload:
    """Optimized: hold the newest chunk only. A chunk says itself where its rows belong."""
    return chunk


def _joined(key: str, held: Any, value: Any) -> Any:
    if held is None:
        return value
    if isinstance(value, Tensor):
        return torch.cat([held, value])
    if isinstance(value, list):
        return held + value
    return held if key == FIRST_ROW else value


TOGGLE: Toggle[Accumulate] = Toggle(
    name="override_rows",
    seam="accumulate",
    baseline=concatenate,
    optimized=override,
    claim="a Talker step's host work no longer depends on how long prompt and answer are",
)
