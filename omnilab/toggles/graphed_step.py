"""Toggle: launch a decode step as one CUDA graph instead of kernel by kernel.

A step of the released Thinker is thousands of kernels of a few microseconds; launched one by one, the host is slower
than the device. A graph replays fixed addresses and shapes, so a step needs its inputs in fixed buffers, a batch padded
to a bucket, an attention length out of a few, and a tail (sampling, residual codes) that reads nothing back.

Shapes: B rows of the step, S rows of its bucket, H input width, V vocabulary, G code groups, Vc codebook size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from omnilab.errors import ToggleUnavailable
from omnilab.seams import DecodeModel, Draws, MakeDecodeStep, Step, StepCache, Tail
from omnilab.toggle import Toggle


def eager_step(model: DecodeModel, cache: StepCache, tail: Tail, max_batch: int) -> Step:
    """Baseline: kernel by kernel."""

    def step(inputs: Tensor, positions: Tensor, slots: Tensor, draws: Draws) -> Any:
        return tail(model.decode(inputs, positions, slots), slots, draws)

    return step


def graphed_step(model: DecodeModel, cache: StepCache, tail: Tail, max_batch: int) -> Step:
    """Optimized: a CUDA graph for each shape, captured when it first occurs. ToggleUnavailable on other devices."""
    if model.device.type != "cuda":
        raise ToggleUnavailable(f"graphed_step needs cuda: this stage is on {model.device.type}; use eager_step there")
    return FixedStep(model, cache, tail, max_batch, CudaCapture(model.device))


Run: TypeAlias = Callable[[], tuple[Tensor, ...]]


class Capture(Protocol):
    """Records what a function does on the device, to be done again on the same tensors."""

    def __call__(self, function: Run) -> Run:
        """Run `function` some times to warm up, record it, return its replay: the same output tensors every time."""
        ...


class CudaCapture:
    """Captures CUDA graphs over one pool of memory: they never run at the same time, and outputs are copied at once."""

    _WARM_UPS = 3  # libraries choose kernels and allocate workspaces in their first runs, which no capture may see

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = None  # of the first graph

    def __call__(self, function: Run) -> Run:
        """Warm up on a stream of its own, as torch asks, and capture."""
        with torch.cuda.device(self._device):
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(self._WARM_UPS):
                    function()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            # Threads of the stage other than this one may go on allocating.
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                outputs = function()
        self._pool = self._pool or graph.pool()

        def replay() -> tuple[Tensor, ...]:
            graph.replay()
            return outputs

        return replay


class FixedStep:
    """A step over buffers that never move: row i is cache slot i, and what is captured does not depend on who is in it.

    The bucket is the smallest that holds the highest slot; slots are given lowest first, so it is that of the batch
    unless requests have left. Rows of the bucket that are nobody's this time are padding: they write to the junk slot.
    """

    def __init__(self, model: DecodeModel, cache: StepCache, tail: Tail, max_batch: int, capture: Capture) -> None:
        # Growing would move the buffers that graphs hold.
        cache.reserve(cache.max_len)
        self._model, self._cache, self._tail, self._capture = model, cache, tail, capture
        self._buckets = _buckets(max_batch)
        self._buffers = _Buffers(model, cache.junk_slot, max_batch)
        self._replays: dict[tuple[int, int, bool], Run] = {}

    @torch.no_grad()
    def __call__(self, inputs: Tensor, positions: Tensor, slots: Tensor, draws: Draws) -> tuple[Tensor, ...]:
        """Run one step: inputs [B, H], positions [B] and slots [B] on the host. Outputs are copies, rows as given."""
        rows = slots.tolist()
        columns, length = self._cache.advance(rows)
        bucket = next(size for size in self._buckets if size > max(rows))
        key = (bucket, length, draws.all_greedy)
        if key not in self._replays:
            self._replays[key] = self._captured(bucket, length, draws)
        index = self._buffers.fill(bucket, inputs, positions.tolist(), rows, columns, draws)
        return tuple(output.index_select(0, index) for output in self._replays[key]())

    def _captured(self, bucket: int, length: int, draws: Draws) -> Run:
        """Capture over padding alone: running it to warm up must not count as a step of any request."""
        buffers = self._buffers
        buffers.hold(draws)
        buffers.pad(bucket)
        planned = self._cache.hold(buffers.slots[:bucket], buffers.columns[:bucket], length)
        held = buffers.draws(bucket, draws.all_greedy)

        def function() -> tuple[Tensor, ...]:
            decoded = self._model.decode_planned(buffers.inputs[:bucket], buffers.positions[:bucket], planned)
            return self._tail(decoded, buffers.slots[:bucket], held)

        return self._capture(function)


def _buckets(max_batch: int) -> list[int]:
    """Return 1, 2, 4, 8, ... and `max_batch`."""
    return [1 << power for power in range(max_batch.bit_length()) if 1 << power < max_batch] + [max_batch]


_NO_LIMITS = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "repetition_penalty": 1.0, "no_end": False}


class _Buffers:
    """What a captured step reads. Made for the largest bucket; smaller ones use the first rows."""

    def __init__(self, model: DecodeModel, junk_slot: int, max_batch: int) -> None:
        self._device, self._junk_slot, self._max_batch = model.device, junk_slot, max_batch
        # Normal tensors even under inference_mode: a later step outside of it must be able to write.
        with torch.inference_mode(False):
            self.inputs = torch.zeros(max_batch, model.hidden_size, dtype=model.dtype, device=model.device)
            # one tensor, so that one copy from the host fills them
            self._places = torch.zeros(4, max_batch, dtype=torch.int64, device=model.device)
            limits = {
                name: torch.tensor([value] * max_batch, device=model.device) for name, value in _NO_LIMITS.items()
            }
            none = torch.empty(0, device=model.device)
            self._draws = Draws(all_greedy=False, first=none, residual=none, **limits)
        self.slots, self.columns, self.positions, self._index = self._places

    def hold(self, draws: Draws) -> None:
        """Make room for noise of the shapes of `draws`, if it has any and there is none yet."""
        held = self._draws
        with torch.inference_mode(False):
            if draws.first.numel() and not held.first.numel():
                held.first = torch.ones(self._max_batch, *draws.first.shape[1:], device=self._device)
            if draws.residual.numel() and not held.residual.numel():
                groups, _, size = draws.residual.shape
                held.residual = torch.ones(groups, self._max_batch, size, device=self._device)

    def draws(self, bucket: int, all_greedy: bool) -> Draws:
        """Return the draws that a captured step of the bucket reads: views of the buffers."""
        held = self._draws
        limits = {name: getattr(held, name)[:bucket] for name in _NO_LIMITS}
        residual = held.residual[:, :bucket] if held.residual.numel() else held.residual
        return Draws(all_greedy=all_greedy, first=held.first[:bucket], residual=residual, **limits)

    def pad(self, bucket: int) -> None:
        """Make every row of the bucket padding: zeros, greedy, at column 0 of the junk slot."""
        self._place([self._junk_slot] * bucket, [0] * bucket, [0] * bucket, [0] * bucket)
        self.inputs[:bucket].zero_()
        for name, value in _NO_LIMITS.items():
            getattr(self._draws, name)[:bucket].fill_(value)

    def fill(
        self, bucket: int, inputs: Tensor, positions: list[int], rows: list[int], columns: list[int], draws: Draws
    ) -> Tensor:
        """Put the step of the requests in slots `rows` [B] into the bucket; return `rows` on the device.

        The other rows keep the inputs of whoever was there last: they write to the junk slot and nobody reads them.
        """
        slots, starts, turns = [self._junk_slot] * bucket, [0] * bucket, [0] * bucket
        for row, column, position in zip(rows, columns, positions, strict=True):
            slots[row], starts[row], turns[row] = row, column, position
        self._place(slots, starts, turns, rows + [0] * (bucket - len(rows)))
        index, held = self._index[: len(rows)], self._draws
        self.inputs.index_copy_(0, index, inputs.to(self._device, self.inputs.dtype))
        for name in _NO_LIMITS:
            buffer: Tensor = getattr(held, name)
            buffer.index_copy_(0, index, getattr(draws, name).to(buffer.dtype))
        if not draws.all_greedy:
            held.first.index_copy_(0, index, draws.first)
            if draws.residual.numel():
                held.residual.index_copy_(1, index, draws.residual)
        return index

    def _place(self, slots: list[int], columns: list[int], positions: list[int], index: list[int]) -> None:
        host = torch.tensor([slots, columns, positions, index])
        if self._device.type == "cuda":
            # Pinned memory is a step's own: the copy may still be running when the next one is made.
            host = host.pin_memory()
        self._places[:, : len(slots)].copy_(host, non_blocking=True)


TOGGLE: Toggle[MakeDecodeStep] = Toggle(
    name="graphed_step",
    seam="decode_step",
    baseline=eager_step,
    optimized=graphed_step,
    claim="a decode step costs the device's time, not the host's: thousands of launches become one",
    needs="cuda",
)
