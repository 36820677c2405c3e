"""What is sent: OpenAI's and vLLM-Omni's fields, media as data URIs, random texts, and the prompts of files."""

import base64
import hashlib
import io
import json

import numpy as np
import pytest
import soundfile
from PIL import Image
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from omnilab import Prompt, Sampling, Workload
from omnilab.client import Server
from omnilab.client.asking import body_of
from omnilab.client.datasets import Dataset, warm_up
from omnilab.client.random_text import open_tokenizer, random_texts
from omnilab.errors import BadInput
from omnilab.model.folder import resolve


def sent(prompt, sampling=None, modalities=("text", "audio"), **extra):
    sampling = sampling or Sampling()
    return json.loads(body_of(prompt, sampling, model="m", modalities=modalities, extra_body=extra))


def test_the_plain_request():
    body = sent(Prompt(text="Hi", system="Be brief."), Sampling(max_text_tokens=9, temperature=0.0, seed=4))
    assert body["messages"] == [
        {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
    ]
    assert (body["model"], body["stream"], body["modalities"]) == ("m", True, ["text", "audio"])
    assert (body["max_tokens"], body["temperature"], body["seed"], body["ignore_eos"]) == (9, 0.0, 4, False)
    assert not {"sampling_params_list", "audio", "top_k"} & set(body)
    assert "temperature" not in sent(Prompt(text="Hi"))
    assert sent(Prompt(text="Hi"), Sampling(speaker="aiden"))["audio"] == {"voice": "aiden"}
    assert sent(Prompt(text="Hi"), temperature=0.5, top_p=0.9)["temperature"] == 0.5


def test_a_fixed_audio_length_names_every_stage():
    stages = sent(Prompt(text="Hi"), Sampling(max_text_tokens=9, max_frames=30, ignore_eos=True, seed=4))
    thinker, talker, _ = stages["sampling_params_list"]
    assert thinker == {"temperature": 0.0, "max_tokens": 9, "ignore_eos": True, "seed": 4}
    assert (talker["max_tokens"], talker["ignore_eos"], talker["temperature"], talker["top_k"]) == (30, True, 0.9, 50)
    greedy = sent(Prompt(text="Hi"), Sampling(max_frames=30, temperature=0.0, top_k=7))["sampling_params_list"]
    assert (greedy[1]["temperature"], greedy[1]["top_k"]) == (0.0, 7)


def test_media_are_data_uris(tmp_path):
    samples = np.linspace(-0.5, 0.5, 160, dtype=np.float32)
    pixels = np.arange(27, dtype=np.uint8).reshape(3, 3, 3)
    soundfile.write(tmp_path / "a.flac", samples, 16_000)
    sound, image, _ = sent(Prompt(text="?", audio=(samples, 16_000), image=pixels))["messages"][0]["content"]
    head, data = sound["audio_url"]["url"].split(",")
    heard, rate = soundfile.read(io.BytesIO(base64.b64decode(data)), dtype="float32")
    assert (head, rate, heard.tolist()) == ("data:audio/wav;base64", 16_000, samples.tolist())
    seen = Image.open(io.BytesIO(base64.b64decode(image["image_url"]["url"].split(",")[1])))
    assert np.asarray(seen).tolist() == pixels.tolist()
    (part,) = sent(Prompt(audio=tmp_path / "a.flac"))["messages"][0]["content"]
    kind, data = part["audio_url"]["url"].split(",")
    assert "flac" in kind
    assert base64.b64decode(data) == (tmp_path / "a.flac").read_bytes()
    with pytest.raises(BadInput, match=r"none\.wav"):
        sent(Prompt(audio=tmp_path / "none.wav"))


WORDS = [*(f"w{i}" for i in range(7)), "<s>", *(f"w{i}" for i in range(8, 100)), "[UNK]"]


def write_tokenizer(folder, merged=()):
    """Words w0 to w99 and a special token; of a `merged` pair, texts are split into one token where ids were two."""
    vocabulary = {word: i for i, word in enumerate(WORDS)}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if merged:
        made.normalizer = normalizers.Replace(" ".join(merged), merged[0])
    made.add_special_tokens([AddedToken("<s>", special=True)])
    folder.mkdir(exist_ok=True)
    made.save(str(folder / "tokenizer.json"))
    return folder


def test_random_texts_are_consecutive_ids_from_a_drawn_start(tmp_path):
    folder = write_tokenizer(tmp_path / "words")
    allowed = [i for i in range(101) if i != 7]
    starts = np.random.default_rng(7).integers(0, 101, 3).tolist()
    expected = [
        " ".join(WORDS[allowed[(start + index + j) % 100]] for j in range(5)) for index, start in enumerate(starts)
    ]
    assert random_texts([5, 5, 5], 7, folder) == expected
    assert random_texts([5, 5, 5], 8, folder) != expected


def test_a_text_is_filled_up_to_its_length(tmp_path):
    """Ids that become fewer when their text is read again are followed by random ones."""
    known = open_tokenizer(write_tokenizer(tmp_path / "merging", merged=("w20", "w21")))
    for seed in range(30):
        (text,) = random_texts([60], seed, tmp_path / "merging")
        assert len(known.encode(text, add_special_tokens=False).ids) == 60


def test_without_a_tokenizer_they_are_common_words():
    (text,) = random_texts([50], 3, None)
    assert len(text.split()) == 50
    bodies = [json.loads(body) for body in Server("h", "m").bodies(Workload.random(2, input_len=6, output_len=3))]
    said = [body["messages"][0]["content"][0]["text"] for body in bodies]
    assert [len(text.split()) for text in said] == [6, 6]
    assert said[0] != said[1]


def test_warm_up_asks_other_things_of_the_same_shape():
    items = [
        Prompt(random_tokens=9),
        Prompt(text="one two three", audio=(np.zeros(20, np.float32), 8000)),
        Prompt(messages=[{"role": "user", "content": "four words are here"}]),
    ]
    asked = Workload.prompts(items, Sampling(max_text_tokens=5))
    random, sound, turn, again = warm_up(asked, 4).requests
    assert random.prompt.random_tokens == again.prompt.random_tokens == 9
    seeds = {one.prompt.random_seed for one in (random, again, asked.requests[0])}
    assert len(seeds) == 3
    assert len(str(sound.prompt.text).split()) == 3
    assert sound.prompt.text != "one two three"
    assert isinstance(sound.prompt.audio, tuple)
    assert sound.prompt.audio[0].shape == (20,)
    assert sound.prompt.audio[0].any()
    assert len(str(turn.prompt.text).split()) == 4
    assert turn.prompt.messages is None
    assert {one.sampling.max_text_tokens for one in (random, sound, turn)} == {5}


def test_random_audio():
    found = Dataset(name="random-audio", num_prompts=2, input_len=4, audio_s=0.5, seed=3).workload(Sampling())
    first, second = (item.prompt for item in found.requests)
    assert isinstance(first.audio, tuple) and isinstance(second.audio, tuple)
    assert first.audio[0].shape == (8000,)
    assert not np.array_equal(first.audio[0], second.audio[0])
    assert len(str(first.text).split()) == 4


SHARED = {"conversations": [{"from": "gpt", "value": "no"}, {"from": "human", "value": "Why?"}, {"from": "gpt"}]}


def test_conversations_and_lines(tmp_path):
    good = {"conversations": [{"from": "human", "value": "Why?"}, {"from": "gpt", "value": "So."}]}
    other = {"conversations": [{"from": "gpt", "value": "x"}, {"from": "user", "value": "How?"}]}
    (tmp_path / "a.json").write_text(json.dumps([good, other]))
    (tmp_path / "a.jsonl").write_text(f"{json.dumps(good)}\n\n{json.dumps(other)}\n")
    (tmp_path / "b.jsonl").write_text('{"text": "One?"}\n{"text": "Two?", "max_text_tokens": 3}\n')
    asked = {name: Dataset(name=str(tmp_path / name)).workload(Sampling()) for name in ("a.json", "a.jsonl", "b.jsonl")}
    texts = {name: [item.prompt.text for item in found.requests] for name, found in asked.items()}
    assert texts == {"a.json": ["Why?", "How?"], "a.jsonl": ["Why?", "How?"], "b.jsonl": ["One?", "Two?"]}
    assert asked["b.jsonl"].requests[1].sampling.max_text_tokens == 3
    assert len(Dataset(name=str(tmp_path / "a.json"), num_prompts=1).workload(Sampling()).requests) == 1


@pytest.mark.parametrize(
    "text, said",
    [
        (json.dumps([SHARED]), "an entry is not"),
        ("[1]", "an entry is not"),
        ("[", "cannot be read"),
        ("[]", "no conversation"),
        ('{"text": 3}', "line 1"),
        ("{}", "line 1"),
        ("", "no prompts"),
    ],
)
def test_files_that_cannot_be_used(tmp_path, text, said):
    (tmp_path / "x.jsonl").write_text(text)
    with pytest.raises(BadInput, match=said):
        Dataset(name=str(tmp_path / "x.jsonl")).workload(Sampling())


def test_the_prompts_of_a_seed_are_those_of_vllm():
    """Hash of 20 prompts of 32 tokens that vLLM 0.30's own RandomDataset made of `tiny`'s tokenizer and seed 5."""
    texts = random_texts([32] * 20, 5, resolve("tiny"))
    found = hashlib.sha256(json.dumps(texts).encode()).hexdigest()
    assert found == "9920d5ae8ec5b736b7c15a62da84c3258eb99e54ade66f2d9625ad17cf6f7136"
