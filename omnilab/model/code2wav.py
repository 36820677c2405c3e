"""Code2Wav: codes to samples, a window at a time or a run of frames after another.

Shapes: B rows, G code groups, n frames, C hidden width, D head size, W frames of the transformer's sliding window.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from omnilab.errors import BadInput
from omnilab.model.cache import cache_keyword
from omnilab.model.config import ModelConfig

# Steps that the convolutions of one level look back: kernels of 7, in the decoder's blocks with dilations of 1, 3, 9.
_PLAIN, _BLOCK = 6, 6 * (1 + 3 + 9)


class WindowCache:
    """A cache for one forward, as transformers' layers ask it: keys and values of the last W - 1 frames."""

    is_compileable = True

    def __init__(self, past: Past | None, window: int) -> None:
        self._past, self._window = past, window
        self.held = 0 if past is None else past[0][0].shape[2]
        self.kept: list[tuple[Tensor, Tensor]] = []

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Return keys and values [1, heads, held + n, D] to attend to, and keep the last W - 1 of them."""
        if self._past is not None:
            before = self._past[layer_idx]
            keys, values = torch.cat([before[0], keys], dim=2), torch.cat([before[1], values], dim=2)
        first = max(0, keys.shape[2] - self._window + 1)
        # Copies: a view would keep the whole of what it was cut from.
        self.kept.append((keys[:, :, first:].clone(), values[:, :, first:].clone()))
        return keys, values

    def mask(self, new: int, device: torch.device) -> Tensor:
        """Return [1, 1, n, held + n]: True where a frame may be attended to, itself and the W - 1 before it."""
        back = torch.arange(self.held, self.held + new, device=device)[:, None] - torch.arange(
            self.held + new, device=device
        )
        return ((back >= 0) & (back < self._window))[None, None]

    def _refuse(self, *_: Any, **__: Any) -> int:
        # Asked for only without a 4-D mask or positions; guessing would be silently wrong.
        raise RuntimeError("pass position_ids and a 4-D mask with a window cache")

    get_seq_length = get_query_offset = get_mask_sizes = get_max_length = _refuse


Past = list[tuple[Tensor, Tensor]]  # keys and values [1, heads, at most W - 1, D] of each layer


class Code2Wav:
    """The vocoder. A window of n frames gives n * samples_per_frame - lost_samples samples."""

    def __init__(self, module: nn.Module, config: ModelConfig) -> None:
        self.module: Any = module
        sizes = config.code2wav_config
        rates = list(sizes.upsample_rates)
        self.num_code_groups: int = sizes.num_quantizers
        self.codebook_size: int = sizes.codebook_size
        self.samples_per_frame: int = math.prod(rates) * math.prod(sizes.upsampling_ratios)
        # Each upsampling block of the decoder trims its kernel on both sides and so drops one input step's worth of
        # its output; later blocks multiply that. It is a look-ahead: those samples depend on frames yet to come.
        self.lost_samples: int = sum(math.prod(rates[i:]) for i in range(len(rates)))
        self.convolution_context: int = _frames_looked_back(-self.lost_samples, rates, sizes.upsampling_ratios)
        self.window: int = sizes.sliding_window
        self.device = next(module.parameters()).device
        self._keyword = cache_keyword(module.pre_transformer)  # pyright: ignore[reportArgumentType]

    @torch.no_grad()
    def decode_window(self, codes: Tensor) -> Tensor:
        """Decode codes [B, G, n] to samples [B, n * samples_per_frame - lost_samples] in -1..1, float32 or better.

        BadInput for codes outside the codebook: an embedding would read another group's rows, or crash a GPU.
        """
        return _at_least_float32(self.module(self._checked(codes))[:, 0])

    @torch.no_grad()
    def attend(self, codes: Tensor, start: int, past: Past | None) -> tuple[Tensor, Past]:
        """Run the transformer on codes [1, G, n] of the frames from `start` on, after what `past` holds.

        Returns hidden states [1, n, C] and the past of the next call: of at most W - 1 frames, sharing nothing with the
        one given. Nothing stays on the module. BadInput as for `decode_window`.
        """
        module, codes = self.module, self._checked(codes)
        new, cache = codes.shape[-1], WindowCache(past, self.window)
        hidden = module.pre_transformer(
            inputs_embeds=module.code_embedding(codes + module.code_offset).mean(1),
            position_ids=torch.arange(start, start + new, device=self.device)[None],
            attention_mask=cache.mask(new, self.device),
            use_cache=False,
            **{self._keyword: cache},
        ).last_hidden_state
        return hidden, cache.kept

    @torch.no_grad()
    def synthesize(self, hidden: Tensor) -> Tensor:
        """Run the convolutions on hidden states [B, n, C]: the other half of `decode_window`, same result."""
        samples = hidden.permute(0, 2, 1)
        for block in [*(block for blocks in self.module.upsample for block in blocks), *self.module.decoder]:
            samples = block(samples)
        return _at_least_float32(samples.clamp(min=-1, max=1)[:, 0])

    def _checked(self, codes: Tensor) -> Tensor:
        """Return codes on the device as int64; BadInput when they are no codes."""
        if codes.ndim != 3 or codes.shape[1] != self.num_code_groups or codes.shape[2] == 0:
            raise BadInput(f"codes must be [batch, {self.num_code_groups}, frames], not {list(codes.shape)}")
        low, high = (int(edge) for edge in codes.aminmax())
        if low < 0 or high >= self.codebook_size:
            raise BadInput(
                f"codes from {low} to {high} do not fit the codebook of {self.codebook_size}: drop the end code"
            )
        return codes.to(self.device, torch.int64)


def _frames_looked_back(first_sample: int, rates: Sequence[int], ratios: Sequence[int]) -> int:
    """Return how many frames before frame 0 the convolutions read for a sample, counted from the start of frame 0.

    From the sample back to the frames: each level subtracts what its kernels look back and divides by its upsampling.
    """
    place = first_sample - _PLAIN
    for rate in reversed(rates):
        place = (place - _BLOCK) // rate
    place -= _PLAIN
    for ratio in reversed(ratios):
        place = (place - _PLAIN) // ratio
    return -place


def _at_least_float32(samples: Tensor) -> Tensor:
    return samples.to(torch.promote_types(samples.dtype, torch.float32))
