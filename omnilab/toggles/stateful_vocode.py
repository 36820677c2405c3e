"""Toggle: decode each chunk after the last one's state instead of in a window of its own.

A window starts anew: its transformer has not seen the frames before its left context (25 frames, where the layers
together look back hundreds), and its transposed convolutions trim 555 samples off its end, which the next window does
not bring. So windows add up neither to the one-shot decode nor to its length, and most frames are decoded twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from omnilab.seams import CODES, NEW_FRAMES, MakeVocode, Payload, WindowDecoder
from omnilab.toggle import Toggle


class WindowedVocode:
    """Baseline: each chunk is decoded in a window with frames of left context, whose samples are then cut.

    A window of n frames gives 1920 n - 555 samples (the transposed convolutions trim both sides: 23 ms of look-ahead),
    and the cut takes 1920 a context frame, so every seam between chunks loses 555 samples: the first chunk has 47,445,
    later ones should have 48,000 and have 47,445 too. This is `chunked_decode` of transformers, sample for sample.
    """

    def __init__(self, left_context: int) -> None:
        self._left_context = left_context

    def build(self, frames: Sequence[tuple[int, ...]], start: int, end: int) -> Payload:
        """Lists of ints, codebook by codebook, as the released engine sends them."""
        return _chunk(frames[max(0, start - self._left_context) : end] if end > start else [], end - start)

    def decode(self, network: WindowDecoder, state: Any, payload: Payload) -> tuple[Tensor, Any]:
        """Decode the window and cut its context; no state."""
        if not payload[NEW_FRAMES]:
            return torch.zeros(0), None
        codes = _codes(network, payload)
        context = codes.shape[-1] - payload[NEW_FRAMES]
        return network.decode_window(codes)[0, context * network.samples_per_frame :], None


@dataclass(frozen=True, slots=True)
class _State:
    """What a request's decoded frames leave behind: as much after 10 seconds as after 10 minutes."""

    num_frames: int
    past: Any  # of the transformer: at most its window
    hidden: Tensor  # [1, at most convolution_context, C] of the last frames


class StatefulVocode:
    """Optimized: new frames only, after the transformer's past and a few frames of context for the convolutions.

    Every sample is final when it leaves. The 555 that the next frame decides come with the next chunk: n frames have
    given 1920 n - 555 samples, however they came, and they are the one-shot decode's.
    """

    def __init__(self, left_context: int) -> None:
        """Take the windows' left context, as any occupant must; there are no windows."""

    def build(self, frames: Sequence[tuple[int, ...]], start: int, end: int) -> Payload:
        """The new frames alone, laid out as the baseline's."""
        return _chunk(frames[start:end], end - start)

    def decode(self, network: WindowDecoder, state: _State | None, payload: Payload) -> tuple[Tensor, _State | None]:
        """Decode the new frames after `state`, which stays as it is: decoding again gives the same."""
        if not payload[NEW_FRAMES]:
            return torch.zeros(0), state
        codes = _codes(network, payload)
        start, past = (state.num_frames, state.past) if state else (0, None)
        hidden, past = network.attend(codes, start, past)
        skipped = 0
        if state:
            # from where the last chunk ended: as many samples before these frames as the look-ahead then lacked
            skipped = state.hidden.shape[1] * network.samples_per_frame - network.lost_samples
            hidden = torch.cat([state.hidden, hidden], dim=1)
        samples = network.synthesize(hidden)[0, skipped:]
        context = hidden[:, -network.convolution_context :].clone()  # a view would keep all of it
        return samples, _State(start + codes.shape[-1], past, context)


def _chunk(frames: Sequence[tuple[int, ...]], new_frames: int) -> Payload:
    return {CODES: [code for codebook in zip(*frames, strict=True) for code in codebook], NEW_FRAMES: new_frames}


def _codes(network: WindowDecoder, payload: Payload) -> Tensor:
    return torch.tensor(payload[CODES]).view(1, network.num_code_groups, -1)


TOGGLE: Toggle[MakeVocode] = Toggle(
    name="stateful_vocode",
    seam="vocode",
    baseline=WindowedVocode,
    optimized=StatefulVocode,
    claim="chunks join without a click into the one-shot decode, for 35 frames of work a chunk instead of 50",
    exact=frozenset({"tokens", "codes"}),  # samples are the one-shot decode's, which the baseline's are not
    tolerance=90.0,
)
