"""Sampling against transformers' own processors and torch's own draws."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor
from transformers.generation.logits_process import (
    RepetitionPenaltyLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from omnilab.model import sampling

GRID = list(itertools.product([0.3, 0.9, 1.0, 1.7], [0, 1, 5, 50, 500], [0.05, 0.5, 0.8, 0.95, 1.0]))


def theirs(logits: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
    """Apply transformers' warpers as generate does: only those that are asked for."""
    ids = torch.empty(len(logits), 0, dtype=torch.int64)
    if temperature != 1:
        logits = TemperatureLogitsWarper(temperature)(ids, logits)
    if top_k:
        logits = TopKLogitsWarper(top_k)(ids, logits)
    return TopPLogitsWarper(top_p)(ids, logits) if top_p < 1 else logits


def columns(settings: list[tuple[float, int, float]]) -> tuple[Tensor, Tensor, Tensor]:
    temperature, top_k, top_p = zip(*settings, strict=True)
    return torch.tensor(temperature), torch.tensor(top_k), torch.tensor(top_p)


@pytest.mark.parametrize("ties", [False, True])
def test_limits_equal_transformers(ties: bool) -> None:
    """Catches another order of warpers, off-by-one in top-k and top-p, other treatment of ties; every row its own."""
    logits = 3 * torch.randn(len(GRID), 200, generator=torch.Generator().manual_seed(0))
    logits = logits.round() if ties else logits
    found = sampling.limit(logits, *columns(GRID))
    for row, settings in enumerate(GRID):
        wanted = theirs(logits[row : row + 1], *settings)[0]
        if ties and settings[2] < 1:  # which of equal ids top-p drops is the sort's choice
            assert found[row].isfinite().sum() == wanted.isfinite().sum(), settings
        else:
            assert torch.equal(found[row], wanted), settings


def test_pick_equals_multinomial() -> None:
    """Catches noise that is not torch's, and a race that is not the draw."""
    logits = 3 * torch.randn(1, 300, generator=torch.Generator().manual_seed(0))
    first, second = (sampling.seeded_generator(1, "a", "talker", "cpu") for _ in range(2))
    for settings in GRID:
        wanted = torch.multinomial(theirs(logits, *settings).softmax(-1), 1, generator=first)[0]
        found = sampling.pick(logits, sampling.draw_exponential(second, 1, 300), *columns([settings]))
        assert torch.equal(found, wanted), settings


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    """Catches limits of one row applied to another; temperature 0 is greedy beside sampled rows."""
    settings = [(0.0, 0, 1.0), (0.8, 5, 0.9), (1.0, 0, 0.5), (0.0, 3, 0.2)]
    logits = torch.randn(4, 100, generator=torch.Generator().manual_seed(3))
    noise = sampling.draw_exponential(torch.Generator().manual_seed(4), 4, 100)
    together = sampling.pick(logits, noise, *columns(settings))
    for row, setting in enumerate(settings):
        assert sampling.pick(logits[row : row + 1], noise[row : row + 1], *columns([setting])) == together[row]
    assert torch.equal(together[[0, 3]], logits[[0, 3]].argmax(-1))


def test_penalty_and_suppression_equal_transformers() -> None:
    """Catches a penalty of the wrong sign for negative logits, and ids left to be sampled."""
    logits = torch.randn(1, 50, generator=torch.Generator().manual_seed(0))
    ids = torch.tensor([[3, 7, 7, 20]])
    seen = torch.zeros(1, 50, dtype=torch.bool).index_fill(1, ids[0], True)
    found = sampling.apply_penalties(logits, seen, torch.tensor([1.3]))
    assert torch.equal(found, RepetitionPenaltyLogitsProcessor(1.3)(ids, logits.clone()))
    wanted = SuppressTokensLogitsProcessor([1, 49], device="cpu")(ids, logits)
    assert torch.equal(sampling.suppress(logits, torch.tensor([1, 49])), wanted)


def test_generators_are_of_a_request_and_a_stage() -> None:
    """Catches shared random numbers, and Python's hash, which differs in every process."""
    keys = [(0, "a", "thinker"), (0, "a", "talker"), (0, "b", "thinker"), (1, "a", "thinker"), (0, "a", "thinker")]
    seeds = [sampling.seeded_generator(*key, "cpu").initial_seed() for key in keys]
    assert len(set(seeds)) == 4 and seeds[0] == seeds[-1]
    assert seeds[0] == 2729109636054540048
