"""Residual codes in one function, against transformers' loop on the same weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from omnilab.model.folder import resolve
from omnilab.model.predictor import CodePredictor
from omnilab.model.sampling import pick
from omnilab.model.weights import load_stage
from omnilab.seams import Draws
from omnilab.toggles.fused_predictor import TOGGLE, draw, predict_in_loop

TEMPERATURES: dict[str, Callable[[int], list[float]]] = {
    "greedy": lambda rows: [0.0] * rows,
    "sampled": lambda rows: [0.9] * rows,
    "mixed": lambda rows: [0.9 * (row % 2) for row in range(rows)],
}


@cache
def predictor(size: str) -> CodePredictor:
    """Load a size's Talker once."""
    torch.set_num_threads(1)
    return CodePredictor(load_stage(resolve(size), "talker", device="cpu", dtype=torch.float32))


def draws(net: CodePredictor, temperatures: list[float], generator: torch.Generator) -> Draws:
    """Draw for one frame of rows with these temperatures."""
    none, rows = torch.empty(0), len(temperatures)
    shape = (net.num_code_groups - 1, rows, net.codebook_size)
    sampled = any(temperature > 0 for temperature in temperatures)
    noise = torch.empty(shape).exponential_(generator=generator) if sampled else none
    return Draws(not sampled, none, noise, torch.tensor(temperatures), none, none, none, none)


def frame(net: CodePredictor, kind: str, rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Draws]:
    """Return hidden states, first codes and draws of a random frame."""
    width = net.talker_embedding.weight.shape[1]
    hidden = torch.randn(rows, width, generator=generator).to(net.talker_embedding.weight.dtype)
    codes = torch.randint(0, net.codebook_size, (rows,), generator=generator)
    return hidden, codes, draws(net, TEMPERATURES[kind](rows), generator)


@pytest.mark.parametrize("rows", [1, 3, 8])
@pytest.mark.parametrize(("kind", "frames"), [("greedy", 200), ("sampled", 32), ("mixed", 24)])
@pytest.mark.parametrize("size", ["tiny", "thin"])
def test_codes_are_the_loops(size: str, kind: str, frames: int, rows: int) -> None:
    """Wrong arithmetic: a rotation or a cache column off by one, rows mixed, noise of another group or row."""
    net = predictor(size)
    loop, fused = TOGGLE.baseline(net, 8), TOGGLE.optimized(net, 8)
    generator = torch.Generator().manual_seed(rows)
    seen: set[int] = set()
    for _ in range(-(-frames // rows)):
        given = frame(net, kind, rows, generator)
        codes, sums = loop(*given)
        fused_codes, fused_sums = fused(*given)
        assert torch.equal(fused_codes, codes)
        torch.testing.assert_close(fused_sums, sums, atol=1e-5, rtol=0)
        seen |= set(codes[:, -1].tolist())
    assert len(seen) > 10  # degenerate weights would hide anything


def test_a_frame_leaves_nothing_to_the_next() -> None:
    """State: keys of the last frame, or of a larger batch, that the next frame reads."""
    net, generator = predictor("tiny"), torch.Generator().manual_seed(0)
    fused = TOGGLE.optimized(net, 8)
    given = frame(net, "sampled", 2, generator)
    first = fused(*given)
    kept = [part.clone() for part in first]
    fused(*frame(net, "greedy", 8, generator))
    assert all(torch.equal(part, copy) for part, copy in zip(first, kept, strict=True))
    assert all(torch.equal(again, copy) for again, copy in zip(fused(*given), kept, strict=True))


@pytest.mark.parametrize("kind", ["greedy", "sampled"])
def test_bfloat16_is_rounded_as_transformers_rounds(kind: str) -> None:
    """Dtype: a norm or a logit in another precision; ties, of which bfloat16 is full, in another order."""
    generator = torch.Generator().manual_seed(3)
    talker: Any = load_stage(resolve("thin"), "talker", device="cpu", dtype=torch.bfloat16)
    with torch.no_grad():
        for weight in talker.code_predictor.parameters():
            if weight.ndim == 1:  # norms: with weights of 1 it would not matter when they are applied
                weight.mul_(torch.rand(weight.shape, generator=generator) + 0.5)
    net = CodePredictor(talker)
    loop, fused = TOGGLE.baseline(net, 3), TOGGLE.optimized(net, 3)
    same = total = 0
    for _ in range(20):
        given = frame(net, kind, 3, generator)
        codes, sums = loop(*given)
        fused_codes, fused_sums = fused(*given)
        assert fused_sums.dtype is sums.dtype is torch.bfloat16
        same, total = same + int((codes == fused_codes).sum()), total + codes.numel()
    assert same == total


@pytest.mark.parametrize("size", [40, 50, 57, 64, 2048])
@pytest.mark.parametrize("spread", [0.1, 1.0, 6.0])
def test_draw_is_the_samplers(size: int, spread: float) -> None:
    """Sampling: top-k or top-p cut elsewhere than `sampling.pick` cuts, or noise of another id."""
    generator = torch.Generator().manual_seed(size)
    logits = torch.randn(200, size, generator=generator) * spread
    noise = torch.empty(200, size).exponential_(generator=generator)
    assert torch.equal(draw(logits, noise, 50, 0.8), reference(logits, noise, 50, 0.8))


def test_draw_at_the_edge_of_top_p() -> None:
    """Edge: `<` for `<=`, or 1 - top_p in another precision, where the mass below an id is 0.2 to the last bit."""
    edge = 1 - torch.tensor(0.8)
    second = torch.log(edge / 0.8) + torch.arange(-20, 21) * 1.2e-7
    third = torch.linspace(-16, -11, 99)  # shifts the sums by less than a bit
    logits = torch.full((len(second), len(third), 8), -torch.inf)
    logits[:, :, 2], logits[:, :, 5], logits[:, :, 7] = 0.0, second[:, None], third
    logits = logits.flatten(0, 1)
    below = logits.sort(dim=-1).values.softmax(-1).cumsum(-1)[:, -2]
    assert (below == edge).any()
    assert (below < edge).any()
    assert (below > edge).any()
    noise = torch.ones_like(logits)
    noise[:, 5] = 1e-6  # wins whenever it is not cut
    found = draw(logits, noise, 50, 0.8)
    assert torch.equal(found, reference(logits, noise, 50, 0.8))
    assert torch.equal(found, torch.where(below <= edge, 2, 5))


def test_ties_with_the_last_candidate_stay() -> None:
    """Edge: ids as likely as the 50th dropped, which in bfloat16 happens all the time."""
    logits = torch.full((6, 400), -9.0)
    logits[:, 100:149] = 1.0
    logits[:, 200:206] = 0.5  # the 50th to the 55th
    noise = torch.ones_like(logits)
    for row in range(6):
        noise[row, 200 + row] = 1e-6
    assert draw(logits, noise, 50, 1.0).tolist() == list(range(200, 206))
    assert torch.equal(draw(logits, noise, 50, 1.0), reference(logits, noise, 50, 1.0))


def reference(logits: Tensor, noise: Tensor, top_k: int, top_p: float) -> Tensor:
    """Sample as the loop does."""
    one = torch.ones(len(logits))
    return pick(logits, noise, one, (one * top_k).long(), one * top_p)


def test_the_loop_makes_a_cache_a_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    """Straw man: the fused side uses transformers' cache, or the baseline does not."""
    net, made = predictor("tiny"), []
    new_cache = net.new_cache
    monkeypatch.setattr(net, "new_cache", lambda: made.append(1) or new_cache())
    given: Any = frame(net, "greedy", 1, torch.Generator().manual_seed(0))
    TOGGLE.optimized(net, 1)(*given)
    assert not made
    predict_in_loop(net, 1)(*given)
    assert made == [1]
