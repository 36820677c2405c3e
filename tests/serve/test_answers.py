"""What clients get: OpenAI's own, streaming and not, and the stream that vLLM-Omni's clients read."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import wave
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile
from openai import AsyncOpenAI, OpenAI

from omnilab.pipeline import Pipeline
from omnilab.speech import Speech
from tests.serve.served import Running

SAY: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Where do rivers begin?"}]}
SHORT = {"max_tokens": 12, "seed": 7}
TONE = (np.sin(np.arange(8000) / 9) * 9000).astype("<i2")


@pytest.fixture(scope="module")
def expected(pipe: Pipeline) -> Speech:
    """The same request in process."""
    return pipe.speak("Where do rivers begin?", max_text_tokens=12, seed=7)


@pytest.fixture
def openai(server: Running, http: httpx.Client) -> OpenAI:
    """OpenAI's client."""
    return OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def pcm(data: str) -> np.ndarray:
    """The samples of one base64 WAV, read strictly."""
    with wave.open(io.BytesIO(base64.b64decode(data))) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (24_000, 1, 2)
        return np.frombuffer(file.readframes(file.getnframes()), "<i2")


def heard(speech: Speech) -> np.ndarray:
    """An answer's samples as 16-bit numbers."""
    return np.rint(np.clip(speech.audio, -1, 1) * 32767).astype("<i2")


def events(text: str) -> list[dict[str, Any]]:
    """The messages of a stream, whose framing is checked."""
    assert text.endswith("data: [DONE]\n\n")
    blocks = text.removesuffix("data: [DONE]\n\n").split("\n\n")
    assert blocks.pop() == "" and all(block.startswith("data: {") and "\n" not in block for block in blocks)
    return [json.loads(block[6:]) for block in blocks]


def stream(http: httpx.Client, **body: Any) -> list[dict[str, Any]]:
    """The messages of one streamed answer."""
    reply = http.post("/v1/chat/completions", json={**SAY, **SHORT, "stream": True, **body})
    assert reply.status_code == 200 and reply.headers["content-type"].startswith("text/event-stream")
    return events(reply.text)


def said(chunks: list[dict[str, Any]]) -> str:
    """The text of a stream."""
    return "".join(c["choices"][0]["delta"]["content"] for c in chunks if c.get("modality") == "text")


def spoken(chunks: list[dict[str, Any]]) -> np.ndarray:
    """The samples of a stream."""
    return np.concatenate([pcm(c["choices"][0]["delta"]["content"]) for c in chunks if c.get("modality") == "audio"])


@pytest.mark.parametrize("modalities", [None, ["text"], ["audio"], ["text", "audio"]])
def test_a_whole_answer_of_the_official_client(openai: OpenAI, expected: Speech, modalities: Any) -> None:
    """One choice, with what was asked for and nothing else; the same answer as in process."""
    extra = {} if modalities is None else {"modalities": modalities}
    answer: Any = openai.chat.completions.create(**SAY, **SHORT, **extra)
    (choice,) = answer.choices
    assert choice.index == 0 and choice.finish_reason == "length" and answer.usage.completion_tokens == 12
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 12 > 12
    wants_text, wants_audio = (modalities is None or name in modalities for name in ("text", "audio"))
    assert choice.message.content == (expected.text if wants_text else None)
    if wants_audio:
        sound = choice.message.audio
        assert np.array_equal(pcm(sound.data), heard(expected))
        assert sound.transcript == expected.text and sound.id.startswith("audio-") and sound.expires_at > 1e9
    else:
        assert choice.message.audio is None


def test_a_stream_of_the_official_client(openai: OpenAI, expected: Speech) -> None:
    """Text and sound come in the order of the protocol; the end says why, once."""
    options: Any = {"include_usage": True}
    answer: Any = openai.chat.completions.create(**SAY, **SHORT, stream=True, stream_options=options)
    chunks = [chunk.model_dump() for chunk in answer]
    assert said(chunks) == expected.text and np.array_equal(spoken(chunks), heard(expected))
    reasons = [c["choices"][0]["finish_reason"] for c in chunks if c["choices"]]
    assert reasons == [None] * (len(reasons) - 1) + ["length"]
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] == 12
    assert len({chunk["id"] for chunk in chunks}) == 1


def test_the_asynchronous_client(server: Running, http: httpx.Client, expected: Speech) -> None:
    """Several at once, streamed and whole, text alone."""

    async def ask() -> list[str]:
        async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            whole = client.chat.completions.create(**SAY, **SHORT, modalities=["text"])

            async def streamed() -> str:
                parts: Any = await client.chat.completions.create(**SAY, **SHORT, modalities=["text"], stream=True)
                return "".join([c.choices[0].delta.content or "" async for c in parts])

            answer, *texts = await asyncio.gather(whole, streamed(), streamed())
            return [answer.choices[0].message.content or "", *texts]

    assert asyncio.run(ask()) == [expected.text] * 3


def test_continuous_usage_counts_every_token(http: httpx.Client) -> None:
    """vLLM-Omni 0.30 counts tokens by usage, 0.16 by `metrics.num_tokens_out`: both are there."""
    chunks = stream(http, stream_options={"include_usage": True, "continuous_usage_stats": True})
    counts = [c["usage"]["completion_tokens"] for c in chunks if c.get("modality") == "text"]
    assert counts == list(range(13))  # the opener, then a token each
    assert {c["usage"]["completion_tokens"] for c in chunks if c.get("modality") == "audio"} == {0}
    assert [c["metrics"]["num_tokens_out"] for c in chunks[-2:]] == [12, 12]
    assert "modality" not in chunks[-2] and chunks[-1]["metrics"]["queue_ms"] >= 0


def test_text_alone_asks_nothing_of_the_talker(http: httpx.Client, expected: Speech) -> None:
    """No audio, the same text, and nothing spoken in the metrics."""

    def spoken_lines() -> list[str]:
        return [line for line in http.get("/metrics").text.splitlines() if line.startswith("vllm_omni:audio_frames")]

    before = spoken_lines()
    chunks = stream(http, modalities=["text"])
    assert said(chunks) == expected.text and {c.get("modality") for c in chunks} == {"text", None}
    assert "audio_s" not in chunks[-1]["metrics"] and spoken_lines() == before


def test_sound_alone_streams_no_text(http: httpx.Client, expected: Speech) -> None:
    """The text is not sent, but counted."""
    chunks = stream(http, modalities=["audio"], stream_options={"include_usage": True})
    assert {c.get("modality") for c in chunks} == {"audio", None} and chunks[-1]["usage"]["completion_tokens"] == 12
    assert np.array_equal(spoken(chunks), heard(expected))


@pytest.mark.parametrize("kind", ["wav", "flac", "mp3", "opus", "pcm16", "pcm"])
def test_formats_of_a_whole_answer(http: httpx.Client, expected: Speech, kind: str) -> None:
    """Each decodes to about as many samples as were spoken; the lossless ones to the very same."""
    body = {**SAY, **SHORT, "audio": {"voice": "ethan", "format": kind}}
    (choice,) = http.post("/v1/chat/completions", json=body).json()["choices"]
    data = base64.b64decode(choice["message"]["audio"]["data"])
    if kind.startswith("pcm"):
        assert np.array_equal(np.frombuffer(data, "<i2"), heard(expected))
        return
    samples, rate = soundfile.read(io.BytesIO(data), dtype="int16")
    assert rate == 24_000 and abs(len(samples) - len(expected.audio)) < 3000
    if kind in ("wav", "flac"):
        assert np.array_equal(samples, heard(expected))


def test_loud_samples_are_clipped() -> None:
    """1.5 is 32767, not a wrap."""
    from omnilab.serve.audio import pcm16

    assert pcm16(np.array([1.5, -1.5, 0.0], dtype=np.float32)).tolist() == [32767, -32767, 0]


@pytest.mark.parametrize("part", ["input_audio", "audio_url", "image_url"])
def test_sounds_and_images_are_taken(http: httpx.Client, part: str) -> None:
    """Data URIs, whatever type they claim, change the answer and cost tokens."""
    if part == "image_url":
        from PIL import Image

        file = io.BytesIO()
        Image.fromarray((np.indices((56, 84)).sum(0)[..., None] * [3, 5, 7] % 256).astype(np.uint8)).save(file, "PNG")
    else:
        file = io.BytesIO()
        soundfile.write(file, TONE, 16_000, format="WAV")
    data = base64.b64encode(file.getvalue()).decode()
    content: Any = {"url": f"data:audio/mpeg;base64,{data}"}
    if part == "input_audio":
        content = {"data": data, "format": "wav"}
    parts = [{"type": "text", "text": "What is this?"}, {"type": part, part: content}]
    body = {**SHORT, "modalities": ["text"], "messages": [{"role": "user", "content": parts}]}
    answer = http.post("/v1/chat/completions", json=body).json()
    body["messages"] = [{"role": "user", "content": parts[:1]}]
    plain = http.post("/v1/chat/completions", json=body).json()
    assert answer["usage"]["prompt_tokens"] > plain["usage"]["prompt_tokens"] + 2
    assert answer["usage"]["completion_tokens"] == 12


def test_fields_of_openai_are_the_thinkers_alone(http: httpx.Client, expected: Speech) -> None:
    """ignore_eos and max_tokens fix the text; the Talker's own fields come in sampling_params_list."""
    fixed = stream(http, sampling_params_list=[{}, {"max_tokens": 9, "ignore_eos": True}])
    assert len(spoken(fixed)) == 9 * 1920 - 555  # what the last window keeps
    drawn = stream(http, temperature=1.0, seed=8)
    assert said(drawn) != expected.text
    again = stream(http, temperature=1.0, seed=8)
    assert said(again) == said(drawn) and np.array_equal(spoken(again), spoken(drawn))


def test_voices_differ(http: httpx.Client, expected: Speech) -> None:
    """The voice reaches the Talker."""
    other = stream(http, audio={"voice": "Chelsie"})
    assert said(other) == expected.text and not np.array_equal(spoken(other), heard(expected))


@pytest.mark.parametrize("kind", ["wav", "mp3", "pcm"])
def test_speech_of_the_official_client(openai: OpenAI, kind: Any) -> None:
    """/v1/audio/speech gives a file that plays."""
    reply = openai.audio.speech.create(
        model="tiny", voice="aiden", input="Good morning.", response_format=kind, extra_body=SHORT
    )
    data = reply.read()
    if kind != "pcm":
        assert soundfile.info(io.BytesIO(data)).duration > 0.1
    assert len(data) > 1000


def test_streamed_speech_is_the_whole_one(http: httpx.Client) -> None:
    """As samples without a header, or with one of unknown length that lenient readers take."""
    body = {"input": "Good morning.", **SHORT}
    whole = http.post("/v1/audio/speech", json=body).content
    bare = http.post("/v1/audio/speech", json={**body, "stream": True, "response_format": "pcm"})
    named = http.post("/v1/audio/speech", json={**body, "stream": True})
    assert bare.headers["content-type"] == "audio/pcm" and bare.headers["x-sample-rate"] == "24000"
    assert whole[44:] == bare.content == named.content[44:] and named.content[:4] == b"RIFF"


def test_the_server_says_what_it_is(http: httpx.Client) -> None:
    """Recipe, voices and limits; the recipe in every answer's header too."""
    reply = http.get("/v1/models")
    (model,) = reply.json()["data"]
    assert model["id"] == "tiny" and model["max_model_len"] == 4096 and model["recipe"]["name"] == "BEST"
    assert model["recipe"]["changed"]["merge"] == "merge_shallow" and model["voices"] == ["aiden", "chelsie", "ethan"]
    for path in ("/", "/health", "/nowhere", "/metrics"):
        assert http.get(path).headers["x-omnilab-recipe"] == "BEST"
    assert http.get("/health").json() == {"status": "healthy"}


def test_tokens_there_and_back(http: httpx.Client) -> None:
    """vLLM's shapes."""
    ids = http.post("/tokenize", json={"model": "tiny", "prompt": "Fluß", "add_special_tokens": False}).json()
    assert ids["count"] == len(ids["tokens"]) == 5 and ids["max_model_len"] == 4096
    assert http.post("/detokenize", json={"model": "tiny", "tokens": ids["tokens"]}).json() == {"prompt": "Fluß"}


def test_metrics_count_what_was_served(http: httpx.Client) -> None:
    """A finished request and its tokens are counted; nothing runs any more."""

    def value(name: str) -> float:
        lines = [line for line in http.get("/metrics").text.splitlines() if line.startswith(name)]
        return float(lines[0].rpartition(" ")[2]) if lines else 0.0

    for _ in range(10):  # at once after the answer's last byte
        before = value("vllm:generation_tokens_total")
        stream(http)
        assert value("vllm:generation_tokens_total") == before + 12
    assert value("vllm_omni:num_requests_running") == 0


def test_request_ids_of_clients(http: httpx.Client) -> None:
    """A client's id comes back; two with one id are two requests."""
    body = {**SAY, **SHORT, "modalities": ["text"]}
    first, second = (http.post("/v1/chat/completions", json=body, headers={"x-request-id": "b-1"}) for _ in range(2))
    assert first.json()["id"] == second.json()["id"] == "chatcmpl-b-1"
