"""Slot KV cache: requests join and leave a running batch over transformers' text models.

One buffer [slots + 1, kv heads, length, head dim] per layer and side; the last slot is junk that padding rows write to.
Lengths live on the host, so a step reads nothing back from the device. The text model is called through `forward`
alone, with a 4-D mask, explicit positions and an object that has `update`; nothing stays on the module.

Shapes: B rows, n new tokens a row, L attention length, H hidden size.
"""

from __future__ import annotations

import heapq
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from omnilab.errors import PromptTooLong

SMALLEST_BUCKET = 128


def bucket(needed: int, longest: int) -> int:
    """Return the attention length to run with: the next of 128, 192, 256, 384, 512, ..., at most `longest`."""
    length = SMALLEST_BUCKET
    while length < needed:
        length = length * 3 // 2 if length & (length - 1) == 0 else length * 4 // 3
    return min(length, longest)


def cache_keyword(module: torch.nn.Module) -> str:
    """Return the name under which a transformers module takes its cache: it changed between 5.17 and 5.24."""
    return "cache" if "cache" in inspect.signature(type(module).forward).parameters else "past_key_values"


@dataclass(frozen=True, slots=True)
class Step:
    """Tensors of one forward. Shapes depend on rows, tokens a row and `length` alone, so a graph can hold them."""

    slots: Tensor  # [B] slot of each row
    columns: Tensor  # [B, n] cache column of each new token
    length: int  # L
    first_slot: int | None  # rows are consecutive slots from here: attend to a view instead of a gathered copy

    def mask(self) -> Tensor:
        """Return [B, 1, n, L]: True where a column may be attended to."""
        seen = torch.arange(self.length, device=self.columns.device) <= self.columns[..., None]
        return seen[:, None]


class SlotCache:
    """Fixed slots with a length each; buffers grow with the longest request, up to `max_len` tokens."""

    def __init__(self, config: Any, slots: int, max_len: int, *, dtype: torch.dtype, device: torch.device) -> None:
        self.num_slots = slots
        self.max_len = max_len
        self.device = device
        self.lengths = [0] * (slots + 1)
        self.junk_slot = slots
        self._dtype = dtype
        self._heads = config.num_key_value_heads
        self._head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self._free = list(range(slots))
        self.allocated = 0  # columns
        self.keys: list[Tensor] = [torch.empty(0)] * config.num_hidden_layers
        self.values: list[Tensor] = [torch.empty(0)] * config.num_hidden_layers
        self.reserve(min(SMALLEST_BUCKET, max_len))

    def join(self) -> int:
        """Take the lowest free slot, so that batches stay dense; IndexError when none is left."""
        slot = heapq.heappop(self._free)
        self.lengths[slot] = 0
        return slot

    def leave(self, slot: int) -> None:
        """Give a slot back. Its columns stay masked until they are written again."""
        if slot in self._free:
            raise ValueError(f"slot {slot} is free already")
        heapq.heappush(self._free, slot)

    def reserve(self, columns: int) -> None:
        """Make room for so many tokens a slot. Growing replaces the buffers: reserve before capturing a graph."""
        if columns <= self.allocated:
            return
        columns = min(max(columns, 2 * self.allocated), self.max_len)
        shape = (self.num_slots + 1, self._heads, columns, self._head_dim)
        # A normal tensor even under inference_mode: a later step outside of it must be able to write.
        with torch.inference_mode(False), torch.no_grad():
            for side in (self.keys, self.values):
                for layer, old in enumerate(side):
                    # Zeros, never empty: a masked column still enters as 0 * value, and 0 * NaN is NaN.
                    new = torch.zeros(shape, dtype=self._dtype, device=self.device)
                    if self.allocated:
                        new[:, :, : self.allocated] = old
                    side[layer] = new
        self.allocated = columns

    def advance(self, slots: Sequence[int], new_tokens: int = 1, *, length: int = 0) -> tuple[list[int], int]:
        """Count `new_tokens` more of each slot; return the columns they begin at and the attention length to run with.

        `length` 0 is the bucket of the longest row. Rows may repeat the junk slot. PromptTooLong when a row outgrows
        `max_len`; nothing is counted then.
        """
        real = [slot for slot in slots if slot != self.junk_slot]
        if len(set(real)) != len(real):
            raise ValueError(f"a slot appears twice in {list(slots)}")
        starts = [0 if slot == self.junk_slot else self.lengths[slot] for slot in slots]
        needed = max(starts) + new_tokens
        if needed > self.max_len:
            raise PromptTooLong(
                f"{needed} tokens do not fit into max_model_len = {self.max_len}: raise it or ask for less"
            )
        length = length or bucket(needed, self.max_len)
        if length < needed:
            raise ValueError(f"attention length {length} is less than the {needed} tokens of the longest row")
        self.reserve(length)
        for slot, start in zip(slots, starts, strict=True):
            self.lengths[slot] = start + new_tokens
        return starts, length

    def plan(self, slots: Sequence[int], new_tokens: int = 1, *, length: int = 0) -> Step:
        """Plan `new_tokens` more for each slot, as `advance` counts them."""
        starts, length = self.advance(slots, new_tokens, length=length)
        columns = torch.tensor(starts)[:, None] + torch.arange(new_tokens)
        dense = all(slot == slots[0] + row for row, slot in enumerate(slots))
        rows = torch.tensor(slots)
        return Step(self._put(rows), self._put(columns), length, slots[0] if dense else None)

    def hold(self, slots: Tensor, columns: Tensor, length: int) -> Step:
        """Plan one token a row over tensors of the caller's, which a graph may hold: their contents may change later.

        Row i attends to slot i, a view, and writes to slots[i] at columns[i]: its own slot, or the junk slot for a row
        that is padding. `length` must cover every column.
        """
        return Step(slots, columns[:, None], length, 0)

    def _put(self, host: Tensor) -> Tensor:
        return host if self.device.type == "cpu" else host.pin_memory().to(self.device, non_blocking=True)


class BoundCache:
    """A SlotCache for one forward: the one method that decoder layers call, and loud ones for what they must not."""

    is_compileable = True

    def __init__(self, cache: SlotCache, step: Step) -> None:
        self._cache = cache
        self._step = step

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write [B, heads, n, D] at each row's own columns; return what to attend to, [B, heads, L, D]."""
        cache = self._cache
        return self._side(cache.keys[layer_idx], keys), self._side(cache.values[layer_idx], values)

    def _side(self, buffer: Tensor, new: Tensor) -> Tensor:
        step = self._step
        buffer[step.slots[:, None], :, step.columns] = new.transpose(1, 2).to(buffer.dtype)
        if step.first_slot is not None:
            return buffer[step.first_slot : step.first_slot + new.shape[0], :, : step.length]
        # Narrow before the gather: only L columns are copied.
        return buffer[:, :, : step.length].index_select(0, step.slots)

    def _refuse(self, *_: Any, **__: Any) -> int:
        # Asked for only without a 4-D mask or positions; guessing would be silently wrong.
        raise RuntimeError("pass position_ids and a 4-D mask with a slot cache")

    get_seq_length = get_query_offset = get_mask_sizes = get_max_length = _refuse


class CachedBody:
    """A text model (Thinker's or Talker's) behind its slot cache."""

    def __init__(self, body: Any, *, max_num_seqs: int, max_model_len: int) -> None:
        self.body = body
        weight = next(body.parameters())
        self.device, self.dtype = weight.device, weight.dtype
        self.cache = SlotCache(body.config, max_num_seqs, max_model_len, dtype=self.dtype, device=self.device)
        self._keyword = cache_keyword(body)

    def run(self, inputs: Tensor, positions: Tensor, step: Step, **extra: Any) -> Tensor:
        """Run inputs [B, n, H] at positions [3, B, n]; return post-norm hidden states [B, n, H]. Capturable."""
        return self.body(
            inputs_embeds=inputs,
            position_ids=positions,
            attention_mask=step.mask(),
            use_cache=False,
            **{self._keyword: BoundCache(self.cache, step)},
            **extra,
        ).last_hidden_state

    def plan_decode(self, slots: Sequence[int] | Tensor) -> Step:
        """Plan one token for each of slots [B], which are on the host."""
        return self.cache.plan(slots.tolist() if isinstance(slots, Tensor) else list(slots))

    def text_positions(self, positions: Tensor) -> Tensor:
        """Spread positions [B] of one text token a row over the three axes: [3, B, 1]."""
        return positions.to(self.device, non_blocking=True)[None, :, None].expand(3, -1, -1)
