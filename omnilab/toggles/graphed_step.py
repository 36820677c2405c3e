"""Seam `decode_step`: how one decode step of a Thinker or Talker is run."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from omnilab.seams import DecodeModel, Draws, Step, Tail


def eager_step(model: DecodeModel, cache: Any, tail: Tail, max_batch: int) -> Step:
    """Baseline: kernel by kernel."""

    def step(inputs: Tensor, positions: Tensor, slots: Tensor, draws: Draws) -> Any:
        return tail(model.decode(inputs, positions, slots), slots, draws)

    return step
