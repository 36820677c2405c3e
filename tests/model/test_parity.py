"""The loop over our classes against transformers' own generate, on the same folder."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

from omnilab.model import sampling
from omnilab.model.inputs import PromptInputs
from tests.model.loop import Limits, Network, conversation

KINDS = ("text", "audio", "image", "both", "turns")


def generate(
    model: Any, inputs: PromptInputs, patch: pytest.MonkeyPatch, max_tokens: int, max_frames: int, **settings: Any
) -> tuple[list[int], Tensor, Tensor]:
    """Return transformers' text ids, codes [1, G, frames] and samples; n frames need n + 1 Talker tokens."""
    codes: list[Tensor] = []
    decode = type(model.code2wav).chunked_decode

    def spy(given: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        codes.append(given)
        return decode(model.code2wav, given, *args, **kwargs)

    patch.setattr(model.code2wav, "chunked_decode", spy)
    ids = torch.tensor([inputs.ids])
    names = ("input_features", "feature_attention_mask", "pixel_values", "image_grid_thw")
    features = {name: getattr(inputs, name) for name in names if getattr(inputs, name) is not None}
    defaults = {
        "thinker_eos_token_id": model.config.im_end_token_id,
        "thinker_do_sample": False,
        "talker_do_sample": False,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the penalty covers generated codes only: meant so
        sequence, samples = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            return_audio=True,
            thinker_max_new_tokens=max_tokens,
            talker_max_new_tokens=max_frames + 1,
            **features,
            **{**defaults, **settings},
        )
    return sequence[0, len(inputs.ids) :].tolist(), codes[0], samples


@pytest.mark.parametrize(
    ("size", "kind"), [*((size, kind) for size in ("tiny", "thin") for kind in KINDS), ("parity", "both")]
)
def test_greedy_equals_generate(size: str, kind: str, networks: Any, references: Any, monkeypatch: Any) -> None:
    """Catches wrong positions, projections, trailing text, deepstack, penalties: any fork of the data flow."""
    network: Network = networks(size)
    inputs = network.processor.process(conversation(kind))
    tokens, codes = network.speak(inputs, 10, 10)
    wanted_tokens, wanted_codes, _ = generate(references(size), inputs, monkeypatch, 10, 10)
    assert tokens == wanted_tokens
    assert codes.shape[2] >= 2
    assert torch.equal(codes, wanted_codes)


def test_greedy_equals_generate_when_the_text_ends_by_itself(networks: Any, references: Any, monkeypatch: Any) -> None:
    """Catches a spoken end token and a Talker that goes wrong once it has only pads left."""
    network: Network = networks("tiny")
    inputs = network.processor.process(conversation("text"))
    unended, _ = network.speak(inputs, 10, 1)
    end = unended[5]  # a random model ends where it likes; so say that this token is the end
    assert end not in unended[:5]
    monkeypatch.setattr(network.thinker, "eos_ids", (end,))
    tokens, codes = network.speak(inputs, 10, 12)
    wanted = generate(references("tiny"), inputs, monkeypatch, 10, 12, thinker_eos_token_id=end)
    assert tokens == unended[:6] == wanted[0]
    assert codes.shape[2] > len(tokens)
    assert torch.equal(codes, wanted[1])


@pytest.mark.parametrize("size", ["tiny", "thin"])
def test_sampled_equals_generate(size: str, networks: Any, references: Any, monkeypatch: Any) -> None:
    """Catches another order of warpers, another order of draws, noise of the wrong stage."""
    network: Network = networks(size)
    inputs = network.processor.process(conversation("both"))

    def generators() -> tuple[torch.Generator, torch.Generator]:
        return tuple(sampling.seeded_generator(3, "request", stage, "cpu") for stage in ("thinker", "talker"))

    first, second = generators()
    thinker, talker = Limits(0.8, 20, 0.9, first), Limits(0.9, 50, 1.0, second)
    tokens, codes = network.speak(inputs, 10, 10, thinker=thinker, talker=talker)
    first, second = generators()

    def multinomial(probabilities: Tensor, num_samples: int) -> Tensor:
        assert num_samples == 1
        generator = first if probabilities.shape[-1] == network.thinker.vocab_size else second
        noise = sampling.draw_exponential(generator, *probabilities.shape)
        return (probabilities / noise).argmax(-1, keepdim=True)

    monkeypatch.setattr(torch, "multinomial", multinomial)
    settings = {
        "thinker_do_sample": True, "thinker_temperature": 0.8, "thinker_top_k": 20, "thinker_top_p": 0.9,
        "talker_do_sample": True, "talker_temperature": 0.9, "talker_top_k": 50,
    }  # fmt: skip
    wanted_tokens, wanted_codes, _ = generate(references(size), inputs, monkeypatch, 10, 10, **settings)
    assert tokens == wanted_tokens
    assert torch.equal(codes, wanted_codes)
    greedy_tokens, _ = network.speak(inputs, 10, 1)
    assert tokens != greedy_tokens


def test_windows_equal_chunked_decode(networks: Any, references: Any) -> None:
    """Catches a wrong window, a wrong cut, another dtype: windows of 25 with 25 of context are bit-equal."""
    network: Network = networks("thin")
    vocoder = network.code2wav
    codes = torch.randint(0, vocoder.codebook_size, (1, 16, 60), generator=torch.Generator().manual_seed(0))
    pieces = []
    for start in range(0, 60, 25):
        context = min(start, 25)
        window = vocoder.decode_window(codes[..., start - context : start + 25])
        frames = min(25, 60 - start) + context
        assert window.shape == (1, frames * vocoder.samples_per_frame - vocoder.lost_samples)
        pieces.append(window[:, context * vocoder.samples_per_frame :])
    with torch.no_grad():
        wanted = references("thin").code2wav.chunked_decode(codes, 25, 25)
    assert torch.equal(torch.cat(pieces, 1), wanted[:, 0])
