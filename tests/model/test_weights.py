"""Weights that can tell, and stages loaded alone."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from omnilab.errors import ModelNotFound
from omnilab.model.config import SIZES, config_dict, make_config
from omnilab.model.folder import resolve
from omnilab.model.weights import (
    RANDOM_WEIGHTS_FILE,
    WEIGHTS_FILE,
    build_stage,
    load_stage,
    thinker_embedding,
)
from tests.model.loop import Network, conversation, picture, tone

LOADABLE = ("tiny", "thin", "parity")


@pytest.mark.parametrize("stage", ["thinker", "talker", "code2wav"])
@pytest.mark.parametrize(
    ("size", "dtype"), [("tiny", torch.float32), ("tiny", torch.bfloat16), ("thin", torch.bfloat16)]
)
def test_a_stage_alone_equals_the_whole_model(size: str, dtype: torch.dtype, stage: str) -> None:
    """Catches swapped experts, renamed tensors, rotary tables cast to bfloat16, buffers left unset."""
    from transformers import Qwen3OmniMoeForConditionalGeneration

    whole = Qwen3OmniMoeForConditionalGeneration.from_pretrained(resolve(size), dtype=dtype)
    ours, theirs = load_stage(resolve(size), stage, device="cpu", dtype=dtype), getattr(whole, stage)
    for found, wanted in (
        (dict(ours.named_parameters()), dict(theirs.named_parameters())),
        (dict(ours.named_buffers()), dict(theirs.named_buffers())),
    ):
        assert found.keys() == wanted.keys() and found
        for name, tensor in wanted.items():
            assert found[name].dtype == tensor.dtype, name
            assert torch.equal(found[name], tensor), name


def test_a_stage_reads_what_transformers_saves(tmp_path: Path) -> None:
    """Catches a loader that understands our folders only, not sharded ones with an index."""
    from transformers import Qwen3OmniMoeForConditionalGeneration

    whole = Qwen3OmniMoeForConditionalGeneration.from_pretrained(resolve("tiny"), dtype=torch.float32)
    whole.save_pretrained(tmp_path, max_shard_size="1MB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    for stage in ("thinker", "talker", "code2wav"):
        ours = load_stage(tmp_path, stage, device="cpu", dtype=torch.float32)
        assert all(torch.equal(ours.get_parameter(n), p) for n, p in getattr(whole, stage).named_parameters())


def test_random_weights_need_no_file(tmp_path: Path) -> None:
    """Catches a full-size folder that wants weights, a fill that leaves a parameter unset, a seed without effect."""
    folder = tmp_path / "random"
    shutil.copytree(resolve("tiny"), folder)
    (folder / WEIGHTS_FILE).unlink()
    (folder / RANDOM_WEIGHTS_FILE).write_text("{}")
    first, again, other = (load_stage(folder, "talker", device="cpu", dtype=torch.bfloat16, seed=s) for s in (0, 0, 1))
    for name, parameter in first.named_parameters():
        assert parameter.isfinite().all(), name
        assert torch.equal(parameter, again.get_parameter(name)), name
    assert not torch.equal(first.get_parameter("codec_head.weight"), other.get_parameter("codec_head.weight"))
    assert resolve(str(folder)) == folder


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    """Catches a stage that runs on unset memory when the folder is incomplete."""
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "broken"
    shutil.copytree(resolve("tiny"), folder)
    tensors = load_file(folder / WEIGHTS_FILE)
    del tensors["talker.codec_head.weight"]
    save_file(tensors, folder / WEIGHTS_FILE)
    with pytest.raises(ModelNotFound, match=r"talker\.codec_head\.weight"):
        load_stage(folder, "talker", device="cpu", dtype=torch.float32)
    load_stage(folder, "code2wav", device="cpu", dtype=torch.float32)


@pytest.mark.parametrize("size", LOADABLE)
def test_speech_is_audible_and_varied(size: str, networks: Any) -> None:
    """Catches weights under which every test passes: silence, or one code for ever."""
    network: Network = networks(size)
    _, codes = network.speak(network.processor.process("Say something nice to me."), 12, 100, ignore_eos=True)
    samples = network.code2wav.decode_window(codes)
    assert codes.shape == (1, 16, 100)
    assert codes[0, 0].unique().numel() >= 30
    assert samples.square().mean().sqrt() > 0.005
    assert (samples.abs() >= 1).float().mean() < 0.001


def test_full_has_the_released_size() -> None:
    """Catches a full size that is not the released one; built without memory."""
    counts = {"thinker": 31_719_205_488, "talker": 3_324_596_480, "code2wav": 216_016_577}
    for stage, count in counts.items():
        module = build_stage(make_config("full"), stage, device=torch.device("meta"), dtype=torch.bfloat16)
        assert sum(parameter.numel() for parameter in module.parameters()) == count


def speech(
    network: Network, kind: str = "both", edit: Callable[[list[dict[str, Any]]], None] = lambda _: None, **kw: Any
) -> Any:
    """Return (text ids, codes) of a conversation after an edit."""
    messages = conversation(kind)
    edit(messages)
    return network.speak(network.processor.process(messages), 16, 30, ignore_eos=True, **kw)


def one_letter(messages: list[dict[str, Any]]) -> None:
    messages[-1]["content"][-1]["text"] = "What is thus?"


def one_pixel(messages: list[dict[str, Any]]) -> None:
    image = picture()
    image[20, 30] = 255 - image[20, 30]
    messages[-1]["content"][1]["image"] = image


def one_region(messages: list[dict[str, Any]]) -> None:
    samples, rate = tone()
    samples[4000:4400] *= -1
    messages[-1]["content"][0]["audio"] = (samples, rate)


@pytest.mark.parametrize("edit", [one_letter, one_pixel, one_region])
@pytest.mark.parametrize("size", LOADABLE)
def test_a_changed_prompt_changes_the_output(size: str, edit: Any, networks: Any) -> None:
    """Catches weights under which the gate is blind to a lost token, pixel or sound."""
    network: Network = networks(size)
    before, after = speech(network), speech(network, edit=edit)
    assert before[0] != after[0] or not torch.equal(before[1], after[1])


@pytest.mark.parametrize("size", LOADABLE)
def test_a_changed_row_changes_the_codes(size: str, networks: Any) -> None:
    """Catches weights under which the gate is blind to a broken prefill-only hidden states."""
    network: Network = networks(size)
    ids = network.processor.process(conversation("both")).ids
    position = ids.index(network.config.thinker_config.audio_token_id) + 3

    def change(rows: Tensor) -> Tensor:
        rows = rows.clone()
        rows[position] = rows[position].roll(1)
        return rows

    (tokens, codes), (same_tokens, other_codes) = speech(network), speech(network, change=change)
    assert tokens == same_tokens
    assert not torch.equal(codes, other_codes)


@pytest.mark.parametrize("size", LOADABLE)
def test_a_changed_code_or_speaker_changes_the_sound(size: str, networks: Any) -> None:
    """Catches weights under which the gate is blind to a wrong code in any group, or to the voice."""
    network: Network = networks(size)
    _, codes = speech(network, "text")
    samples = network.code2wav.decode_window(codes)
    for group in range(16):
        other = codes.clone()
        other[0, group, 3] = (other[0, group, 3] + 1) % network.code2wav.codebook_size
        assert (network.code2wav.decode_window(other) - samples).abs().max() > 1e-3
    assert not torch.equal(codes, speech(network, "text", speaker="aiden")[1])


@pytest.mark.parametrize("size", SIZES)
def test_configs_agree_with_themselves(size: str) -> None:
    """Catches sizes that transformers builds and then runs wrongly: groups, widths and code ids that disagree."""
    config = make_config(size)
    talker, text = config.talker_config, config.thinker_config.text_config
    assert (
        talker.num_code_groups == talker.code_predictor_config.num_code_groups == config.code2wav_config.num_quantizers
    )
    assert talker.thinker_hidden_size == text.hidden_size == config.thinker_config.vision_config.out_hidden_size
    assert talker.code_predictor_config.hidden_size == talker.text_config.hidden_size
    assert talker.code_predictor_config.vocab_size == config.code2wav_config.codebook_size
    assert talker.text_config.vocab_size == config.code2wav_config.codebook_size + 1024
    assert sum(text.rope_parameters["mrope_section"]) * 2 == text.head_dim
    assert talker.accept_hidden_layer <= text.num_hidden_layers
    assert config_dict(size)["model_type"] == "qwen3_omni_moe"


@pytest.mark.parametrize("size", ["tiny", "full"])
def test_the_thinkers_rows_can_be_had_alone(size: str, tmp_path: Path) -> None:
    """Catches a Talker that looks up other rows than the Thinker embeds: on disk, and made on the device."""
    source = resolve(size)
    if size == "full":  # as it is made, at a size that fits
        source = tmp_path / "made"
        shutil.copytree(resolve("tiny"), source)
        (source / WEIGHTS_FILE).unlink()
        (source / RANDOM_WEIGHTS_FILE).write_text("{}")
    thinker = load_stage(source, "thinker", device="cpu", dtype=torch.float32, seed=3)
    table = thinker_embedding(source, device="cpu", dtype=torch.float32, seed=3)
    (rows,) = (parameter for name, parameter in thinker.named_parameters() if name.endswith("embed_tokens.weight"))
    assert torch.equal(rows, table)
