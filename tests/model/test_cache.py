"""Requests that come in parts, join, leave and share a batch, against each alone."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor

from omnilab.errors import PromptTooLong
from omnilab.model.cache import bucket
from omnilab.model.thinker import Thinker
from tests.model.loop import Network, conversation


@pytest.mark.parametrize("part", [1, 7, 15, 16, 17])
@pytest.mark.parametrize("kind", ["both", "turns"])
def test_prefill_in_parts_equals_one_shot(kind: str, part: int, networks: Any) -> None:
    """Catches image features added to the wrong rows when a part begins or ends inside an image."""
    network: Network = networks("tiny")
    prompt = network.thinker.embed(network.processor.process(conversation(kind)))
    results = []
    for size in (1 << 30, part):
        slot, hidden, rows = network.prefill(prompt, size)
        network.thinker.leave(slot)
        results.append((hidden, rows))
    (hidden, rows), (hidden_parts, rows_parts) = results
    assert prompt.image_positions
    torch.testing.assert_close(rows_parts, rows, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(hidden_parts, hidden, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("part", [1, 7, 16])
def test_speech_from_parts_equals_one_shot(part: int, networks: Any) -> None:
    """Catches a Talker prompt that is cut at the wrong place or run at the wrong positions."""
    network: Network = networks("thin")
    inputs = network.processor.process(conversation("both"))
    tokens, codes = network.speak(inputs, 6, 6)
    tokens_parts, codes_parts = network.speak(inputs, 6, 6, part=part)
    assert tokens_parts == tokens
    assert torch.equal(codes_parts, codes)


def alone(thinker: Thinker, prompt: Tensor, new: int) -> list[int]:
    """Return the greedy ids of a prompt of ids [P] with nobody else around."""
    return batch(thinker, [prompt], [new], [0])[0]


def batch(thinker: Thinker, prompts: list[Tensor], news: list[int], starts: list[int]) -> list[list[int]]:
    """Return greedy ids of requests that come at their start step and take a slot when one is free."""
    tokens: list[list[int]] = [[] for _ in prompts]
    slots: dict[int, int] = {}
    step = 0
    while any(len(done) < new for done, new in zip(tokens, news, strict=True)):
        for index, prompt in enumerate(prompts):
            if not tokens[index] and step >= starts[index] and len(slots) < thinker.cache.num_slots:
                slots[index] = thinker.join()
                tokens[index].append(prefill(thinker, slots[index], prompt))
        running = [index for index in slots if len(tokens[index]) < news[index]]
        random.Random(step).shuffle(running)
        if running:
            rows = thinker.embed_tokens([tokens[index][-1] for index in running])
            positions = torch.tensor([len(prompts[index]) + len(tokens[index]) - 1 for index in running])
            hidden, _ = thinker.decode(rows, positions, torch.tensor([slots[index] for index in running]))
            for index, token in zip(running, thinker.logits(hidden).argmax(-1).tolist(), strict=True):
                tokens[index].append(token)
        for index in [index for index in slots if len(tokens[index]) >= news[index]]:
            thinker.leave(slots.pop(index))
        step += 1
    return tokens


def prefill(thinker: Thinker, slot: int, prompt: Tensor) -> int:
    """Run a text prompt in one go; return the first id."""
    from omnilab.model.thinker import EmbeddedPrompt

    positions = torch.arange(len(prompt)).expand(3, -1)
    embedded = EmbeddedPrompt(thinker.embed_tokens(prompt), positions, 0, (), ())
    hidden, _ = thinker.prefill(slot, embedded, 0, len(prompt))
    return int(thinker.logits(hidden[None]).argmax())


@pytest.mark.parametrize("size", ["tiny", "thin"])
def test_ragged_requests_equal_each_alone(size: str, networks: Any) -> None:
    """Catches a row that sees another's columns, a stale slot, a wrong column after growth, a swapped row."""
    network: Network = networks(size)
    generator = torch.Generator().manual_seed(7)
    prompts = [torch.randint(32, 127, (n,), generator=generator) for n in (5, 140, 33, 9, 257, 70)]
    news, starts = [12, 5, 9, 14, 4, 8], [0, 0, 2, 3, 1, 9]
    together = batch(network.thinker, prompts, news, starts)
    assert together == [alone(network.thinker, prompt, new) for prompt, new in zip(prompts, news, strict=True)]


def test_talker_rows_do_not_mix(networks: Any) -> None:
    """Catches a Talker row that reads its neighbour's slot, in a dense batch and in one with gaps."""
    talker = networks("tiny").talker
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randn(n, talker.hidden_size, generator=generator) for n in (11, 30, 20)]
    step = torch.randn(3, talker.hidden_size, generator=generator)
    wanted = []
    for prompt, row in zip(prompts, step, strict=True):
        slot = talker.join()
        talker.prefill(slot, prompt, torch.arange(len(prompt)).expand(3, -1))
        wanted.append(talker.decode(row[None], torch.tensor([len(prompt)]), [slot])[0])
        talker.leave(slot)
    for order in ([0, 1, 2], [2, 0], [1]):
        slots = {index: talker.join() for index in range(3)}
        for index, prompt in enumerate(prompts):
            talker.prefill(slots[index], prompt, torch.arange(len(prompt)).expand(3, -1))
        positions = torch.tensor([len(prompts[index]) for index in order])
        found = talker.decode(step[order], positions, [slots[index] for index in order])
        torch.testing.assert_close(found, torch.stack([wanted[index] for index in order]), atol=1e-4, rtol=1e-4)
        for slot in slots.values():
            talker.leave(slot)


def test_returned_rows_are_not_reused(networks: Any) -> None:
    """Catches rows that alias a buffer: the next step would overwrite what is being saved."""
    network: Network = networks("tiny")
    inputs = network.processor.process("hello")
    slot, hidden, rows = network.prefill(network.thinker.embed(inputs))
    kept = hidden.clone(), rows.clone()
    position = torch.tensor([len(inputs.ids)])
    first = network.thinker.decode(network.thinker.embed_tokens([65]), position, [slot])
    copies = [row.clone() for row in first]
    network.thinker.decode(network.thinker.embed_tokens([66]), position + 1, [slot])
    network.thinker.leave(slot)
    assert torch.equal(hidden, kept[0]) and torch.equal(rows, kept[1])
    assert all(torch.equal(row, copy) for row, copy in zip(first, copies, strict=True))


def test_nothing_stays_on_the_module(networks: Any) -> None:
    """Catches hooks and positions left behind, by which one request would change another's."""
    network: Network = networks("tiny")
    network.speak(network.processor.process(conversation("image")), 3, 3)
    assert all(not module._forward_hooks for module in network.thinker.module.modules())
    assert getattr(network.thinker.module, "rope_deltas", None) is None
    assert network.talker.module.rope_deltas is None


def test_slots_run_out_and_come_back(networks: Any) -> None:
    """Catches a slot given twice or lost."""
    thinker = networks("tiny").thinker
    slots = [thinker.join() for _ in range(thinker.cache.num_slots)]
    assert sorted(slots) == list(range(len(slots)))
    with pytest.raises(IndexError):
        thinker.join()
    thinker.leave(slots[1])
    with pytest.raises(ValueError, match="appears twice"):
        thinker.cache.plan([slots[0], slots[0]])
    with pytest.raises(ValueError, match="free already"):
        thinker.leave(slots[1])
    assert thinker.join() == slots[1]
    for slot in slots:
        thinker.leave(slot)


def test_a_prompt_too_long_says_so(networks: Any) -> None:
    """Catches a silent overflow of the cache."""
    thinker = networks("tiny").thinker
    slot = thinker.join()
    with pytest.raises(PromptTooLong, match="max_model_len"):
        thinker.cache.plan([slot], thinker.cache.max_len + 1)
    thinker.leave(slot)


def test_parts_must_follow_each_other(networks: Any) -> None:
    """Catches a part that is run twice or left out."""
    network: Network = networks("tiny")
    prompt = network.thinker.embed(network.processor.process("hello"))
    slot = network.thinker.join()
    with pytest.raises(ValueError, match="holds 0 tokens"):
        network.thinker.prefill(slot, prompt, 1, 3)
    network.thinker.leave(slot)


def test_buckets() -> None:
    """Catches an attention length that is too short, or longer than the cache."""
    assert [bucket(n, 4096) for n in (1, 128, 129, 200, 257, 385, 4000)] == [128, 128, 192, 256, 384, 512, 4096]
    assert bucket(100, 90) == 90
    assert all(n <= bucket(n, 10**6) <= max(128, 1.5 * n + 1) for n in range(1, 5000))
