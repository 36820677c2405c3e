"""Random numbers of a batched step: each request draws from a generator of its own.

Neither its neighbours nor its slot change what a request draws: numbers come request by request and are then stacked.
"""

from __future__ import annotations

import torch
from torch import Tensor

from omnilab.engine.messages import StageRequest
from omnilab.model.sampling import draw_exponential, seeded_generator
from omnilab.seams import Draws


class DrawsMaker:
    """Makes the draws of one stage. `residual` is (groups - 1, codebook size), or None for the Thinker."""

    def __init__(self, stage: str, device: torch.device, vocab_size: int, residual: tuple[int, int] | None) -> None:
        self._stage, self._device, self._vocab_size, self._residual = stage, device, vocab_size, residual
        self._generators: dict[str, torch.Generator] = {}

    def join(self, request: StageRequest) -> None:
        """Start a request's generator."""
        if request.sampling.temperature > 0:
            self._generators[request.request_id] = seeded_generator(
                request.sampling.seed, request.noise_key, self._stage, self._device
            )

    def leave(self, request_id: str) -> None:
        """Forget a request."""
        self._generators.pop(request_id, None)

    def entries(self) -> int:
        """How many per-request entries are held."""
        return len(self._generators)

    def make(self, requests: list[StageRequest]) -> Draws:
        """Draw for one step of these requests, in the order of the batch's rows."""
        samplings = [request.sampling for request in requests]
        all_greedy = all(s.temperature <= 0 for s in samplings)
        empty = torch.empty(0, device=self._device)
        first, residual = empty, empty
        if not all_greedy:
            drawn = [self._draw(request) for request in requests]
            first = torch.stack([f for f, _ in drawn])
            residual = torch.stack([r for _, r in drawn], dim=1) if self._residual else empty
        return Draws(
            all_greedy=all_greedy,
            first=first,
            residual=residual,
            temperature=self._tensor([s.temperature for s in samplings]),
            top_k=self._tensor([s.top_k for s in samplings]),
            top_p=self._tensor([s.top_p for s in samplings]),
            repetition_penalty=self._tensor([s.repetition_penalty for s in samplings]),
            no_end=self._tensor([s.ignore_eos for s in samplings]),
        )

    def _draw(self, request: StageRequest) -> tuple[Tensor, Tensor]:
        generator = self._generators.get(request.request_id)
        groups, size = self._residual or (0, 0)
        if generator is None:  # a greedy row among sampled ones
            ones = torch.ones(self._vocab_size, device=self._device)
            return ones, torch.ones(groups, size, device=self._device)
        first = draw_exponential(generator, self._vocab_size)
        # one call a group, as transformers draws: one call for all would give other numbers
        parts = [draw_exponential(generator, size) for _ in range(groups)]
        return first, torch.stack(parts) if parts else torch.empty(0, device=self._device)

    def _tensor(self, values: list[float] | list[int] | list[bool]) -> Tensor:
        return torch.tensor(values, device=self._device)
