"""Seam `vocode`: how codes become samples chunk by chunk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from omnilab.seams import CODES, NEW_FRAMES, Payload, WindowDecoder


class WindowedVocode:
    """Baseline: each chunk is decoded in a window with frames of left context, whose samples are then cut.

    A window of n frames gives 1920 n - 555 samples (the transposed convolutions trim both sides: 23 ms of look-ahead), and
    the cut takes 1920 a context frame, so every seam between chunks loses 555 samples: the first chunk has 47,445 where
    later ones should have 48,000 and have 47,445 too. This is `chunked_decode` of transformers, sample for sample.
    """

    def __init__(self, left_context: int) -> None:
        self._left_context = left_context

    def build(self, frames: Sequence[tuple[int, ...]], start: int, end: int) -> Payload:
        """Lists of ints, codebook by codebook, as the released engine sends them."""
        window = frames[max(0, start - self._left_context) : end] if end > start else []
        return {CODES: [code for codebook in zip(*window, strict=True) for code in codebook], NEW_FRAMES: end - start}

    def decode(self, network: WindowDecoder, state: Any, payload: Payload) -> tuple[Tensor, Any]:
        """Decode the window and cut its context; no state."""
        if not payload[NEW_FRAMES]:
            return torch.zeros(0), None
        codes = torch.tensor(payload[CODES]).view(1, network.num_code_groups, -1)
        context = codes.shape[-1] - payload[NEW_FRAMES]
        return network.decode_window(codes)[0, context * network.samples_per_frame :], None
