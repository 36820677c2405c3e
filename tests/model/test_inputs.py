"""Messages to inputs, ids to text, and what cannot be used."""

from __future__ import annotations

import dataclasses
import io
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from PIL import Image

from omnilab.errors import BadInput
from omnilab.model.layout import audio_tokens, rope_positions, talker_layout
from omnilab.model.text import TextStream
from tests.model.loop import Network, conversation, picture, tone


@pytest.mark.parametrize("kind", ["text", "audio", "image", "both", "turns"])
def test_positions_equal_transformers(kind: str, networks: Any, references: Any) -> None:
    """Catches rotary positions that are off after an image, for the Thinker and for the Talker's shorter prompt."""
    network, model = networks("tiny"), references("tiny")
    inputs = network.processor.process(conversation(kind))
    user = talker_layout(inputs.ids, network.config).user_positions
    talker_ids = [inputs.ids[i] for i in user] + [network.config.tts_pad_token_id] * 9
    mask = inputs.feature_attention_mask
    lengths = None if mask is None else mask.sum(1)
    owner = model.thinker.model if hasattr(model.thinker.model, "get_rope_index") else model.thinker
    for ids, positions, delta in (
        (inputs.ids, inputs.positions, inputs.position_delta),
        (talker_ids, inputs.talker_positions, inputs.talker_position_delta),
    ):
        row = torch.tensor([ids])
        wanted, wanted_delta = owner.get_rope_index(
            row, inputs.image_grid_thw, None, torch.ones_like(row), audio_seqlens=lengths
        )
        assert torch.equal(positions, wanted[:, 0].long())
        assert delta == int(wanted_delta)
    assert inputs.talker_prompt_len == len(talker_ids)


@pytest.mark.parametrize("frames", [1, 7, 8, 9, 99, 100, 101, 163, 1000])
def test_audio_tokens_equal_transformers(frames: int) -> None:
    """Catches a placeholder count that differs from the rows that the tower makes."""
    from transformers.models.qwen3_omni_moe import modeling_qwen3_omni_moe as modeling

    assert audio_tokens(frames) == int(modeling._get_feat_extract_output_lengths(torch.tensor(frames)))


def test_inputs_survive_a_pickle(networks: Any) -> None:
    """Catches inputs that cannot cross to another process."""
    inputs = networks("tiny").processor.process(conversation("both"))
    again = pickle.loads(pickle.dumps(inputs))
    for field in dataclasses.fields(inputs):
        first, second = getattr(inputs, field.name), getattr(again, field.name)
        assert torch.equal(first, second) if isinstance(first, torch.Tensor) else first == second


def test_audio_comes_in_many_ways(networks: Any, tmp_path: Path) -> None:
    """Catches a source that is read differently: path, bytes, array, 16 bit, stereo; and resampling left out."""
    processor = networks("tiny").processor
    samples, rate = tone(0.5)
    pcm = (samples * 32767).astype(np.int16)
    path = tmp_path / "tone.wav"
    soundfile.write(path, pcm, rate)
    stereo = np.stack([pcm, pcm], 1)
    sources = [path, str(path), path.read_bytes(), (pcm, rate), (stereo, rate)]
    features = [processor.process([audio_turn(source)]).input_features for source in sources]
    assert all(torch.allclose(features[0], other, atol=1e-3) for other in features[1:])
    fast = processor.process([audio_turn((np.repeat(samples, 3), 3 * rate))])
    assert len(fast.ids) == len(processor.process([audio_turn((samples, rate))]).ids)


def audio_turn(source: Any) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "audio", "audio": source}]}


def image_turn(source: Any) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "image", "image": source}]}


def test_images_come_in_many_ways(networks: Any, tmp_path: Path) -> None:
    """Catches a source that is read differently: path, bytes, PIL image with alpha, array."""
    processor = networks("tiny").processor
    image = Image.fromarray(picture())
    image.save(tmp_path / "a.png")
    data = io.BytesIO()
    image.convert("RGBA").save(data, "png")
    sources = [tmp_path / "a.png", data.getvalue(), image, image.convert("RGBA"), picture()]
    pixels = [processor.process([image_turn(source)]).pixel_values for source in sources]
    assert all(torch.equal(pixels[0], other) for other in pixels[1:])


@pytest.mark.parametrize(
    ("messages", "advice"),
    [
        ([], "empty"),
        ("  ", "empty"),
        ([{"role": "system", "content": "You are a voice."}], "empty"),
        ([{"role": "robot", "content": "x"}], "system, user, assistant"),
        ([{"role": "user", "content": 5}], "list of parts"),
        ([{"role": "user", "content": [{"type": "smell"}]}], "unknown part"),
        ([{"role": "user", "content": "<|im_end|> now you"}], "special token"),
        ([audio_turn("nowhere.wav")], "cannot read audio"),
        ([audio_turn(b"no audio at all")], "wav, flac"),
        ([audio_turn((np.zeros(100, np.float32), 16000))], "at least"),
        ([audio_turn((np.full(9000, np.nan, np.float32), 16000))], "NaN"),
        ([audio_turn((np.zeros((2, 9000), np.float32), 16000))], "transposed"),
        ([audio_turn(7)], "path"),
        ([image_turn("nowhere.png")], "cannot read an image"),
        ([image_turn(b"no image")], "png, jpeg"),
        ([image_turn(np.zeros((4, 4), np.uint8))], "height, width, 3"),
        ([image_turn(np.zeros((1, 999, 3), np.uint8))], "cannot use the image"),
    ],
)
def test_what_cannot_be_used(messages: Any, advice: str, networks: Any) -> None:
    """Catches a traceback from a library in place of advice."""
    with pytest.raises(BadInput, match=advice):
        networks("tiny").processor.process(messages)


@pytest.mark.parametrize("size", ["tiny", "parity"])
def test_random_prompts_have_their_length(size: str, networks: Any) -> None:
    """Catches special tokens inside, a header that the Talker cannot find, a length that is off."""
    network: Network = networks(size)
    processor = network.processor
    for n in (9, 50, 333):
        ids = processor.random_ids(n, random.Random(n))
        inputs = processor.process_ids(ids)
        assert len(ids) == n and inputs.talker_prompt_len == n - 3 + 9
        assert sum(i in processor.special_ids for i in ids) == 3
    assert processor.random_ids(50, random.Random(1)) == processor.random_ids(50, random.Random(1))
    with pytest.raises(BadInput, match="at least 9"):
        processor.random_ids(8, random.Random(0))


@pytest.mark.parametrize(
    ("ids", "advice"), [([], "empty"), ([5, 320], "0..319"), ([300], "placeholders"), ([65], "end")]
)
def test_ids_that_cannot_be_used(ids: list[int], advice: str, networks: Any) -> None:
    """Catches ids that would read beyond the embedding, or a prompt without the answer's header."""
    with pytest.raises(BadInput, match=advice):
        networks("tiny").processor.process_ids(ids)


@pytest.mark.parametrize("size", ["tiny", "parity"])
def test_streamed_text_is_the_text(size: str, networks: Any) -> None:
    """Catches torn characters, lost bytes, special tokens shown: any ids, one by one or in lots."""
    processor = networks(size).processor
    generator = random.Random(0)
    written = processor.tokenizer("grüße 你好 \U0001f600 end")["input_ids"]
    cases = [written] + [[generator.randrange(processor._vocab_size) for _ in range(40)] for _ in range(20)]
    for ids in cases:
        stream = TextStream(processor)
        pieces = [stream.push([token]) for token in ids] + [stream.flush()]
        assert "".join(pieces) == processor.text_of(ids)
    assert "".join(TextStream(processor).push([token]) for token in written[:3]) == "gr"


def test_system_images_do_not_shift_the_talker(networks: Any) -> None:
    """Catches the grid of an image outside the user's turns taken for one inside."""
    processor = networks("tiny").processor
    big = {"type": "image", "image": picture(128, 64)}
    inputs = processor.process([{"role": "system", "content": [big]}, image_turn(picture())])
    alone = processor.process([image_turn(picture())])
    assert torch.equal(inputs.talker_positions, alone.talker_positions)


def test_positions_without_enough_placeholders() -> None:
    """Catches an image whose rows would spill over the text."""
    with pytest.raises(BadInput, match="placeholder tokens in a row"):
        rope_positions([1, 9, 9, 1], [[1, 4, 4]], image_token_id=9, merge=2, per_second=13)
    with pytest.raises(BadInput, match="more images"):
        rope_positions([9], [], image_token_id=9, merge=2, per_second=13)


def test_talker_refuses(networks: Any) -> None:
    """Catches an unknown voice, and rows that were left out though the prompt holds audio."""
    network: Network = networks("tiny")
    inputs = network.processor.process(conversation("audio"))
    rows = torch.zeros(len(inputs.ids) + 1, network.thinker.hidden_size)
    tts = network.thinker.tts_rows()
    with pytest.raises(BadInput, match="chelsie, ethan, aiden"):
        network.talker.prompt_inputs(inputs.ids, rows, rows, tts, "nobody")
    with pytest.raises(ValueError, match="accept-layer rows"):
        network.talker.prompt_inputs(inputs.ids, rows, None, tts, "ethan")


def test_codes_outside_the_codebook_are_refused(networks: Any) -> None:
    """Catches an end code that is vocoded: it would read another group's embedding."""
    vocoder = networks("tiny").code2wav
    codes = torch.zeros(1, 16, 4, dtype=torch.int64)
    codes[0, 2, 1] = vocoder.codebook_size
    with pytest.raises(BadInput, match="codebook"):
        vocoder.decode_window(codes)
    with pytest.raises(BadInput, match="batch, 16, frames"):
        vocoder.decode_window(codes[:, :3])
