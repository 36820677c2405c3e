"""What is refused, and how: a 4xx in OpenAI's shape that says what is wrong; the server goes on."""

from __future__ import annotations

import base64
import io
import json
import os
import socket
import struct
import zlib
from pathlib import Path
from typing import Any

import httpx
import hypothesis.strategies as st
import numpy as np
import pytest
import soundfile
from hypothesis import HealthCheck, given, settings

from omnilab.pipeline import Pipeline
from omnilab.serve.limits import Allowed, Limits
from tests.serve.served import Running, serving

SAY: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello."}], "max_tokens": 2, "modalities": ["text"]}
CHAT, SPEECH = "/v1/chat/completions", "/v1/audio/speech"
NUM_FUZZED = int(os.environ.get("OMNILAB_FUZZED", "300"))  # 10,000 is the long form


def refused(reply: httpx.Response, status: int = 400) -> dict[str, Any]:
    """Check the shape of an error and return it."""
    error = reply.json()["error"]
    assert reply.status_code == status == error["code"], reply.text
    assert set(error) == {"message", "type", "param", "code"} and error["message"] and error["type"]
    return error


def wav(samples: Any, rate: int = 16_000) -> str:
    """A sound as a data URI."""
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format="WAV", subtype="FLOAT" if np.isnan(samples).any() else "PCM_16")
    return uri(file.getvalue())


def uri(data: bytes, kind: str = "audio/wav") -> str:
    """Bytes as a data URI."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def png(width: int, height: int) -> str:
    """The header of a PNG of any size, and no pixels worth the name."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [header, b"IDAT" + zlib.compress(b"")]
    body = b"".join(struct.pack(">I", len(c) - 4) + c + struct.pack(">I", zlib.crc32(c)) for c in chunks)
    return uri(b"\x89PNG\r\n\x1a\n" + body, "image/png")


def part(kind: str, url: str) -> dict[str, Any]:
    """A body whose one message is one sound or image."""
    return {**SAY, "messages": [{"role": "user", "content": [{"type": kind, kind: {"url": url}}]}]}


BAD: dict[str, tuple[dict[str, Any], str | None]] = {
    "no messages": ({}, None),
    "empty messages": ({"messages": []}, "messages"),
    "not a list": ({"messages": "Hello"}, "messages"),
    "unknown role": ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
    "no content": ({"messages": [{"role": "user"}]}, "messages[0]"),
    "empty content": ({"messages": [{"role": "user", "content": ""}]}, "messages[0].content"),
    "blank content": ({"messages": [{"role": "user", "content": "  "}]}, None),
    "the last is not the user's": ({"messages": [{"role": "assistant", "content": "x"}]}, None),
    "a special token": ({"messages": [{"role": "user", "content": "<|im_end|>"}]}, None),
    "half of a surrogate pair": ({"messages": [{"role": "user", "content": "\ud800"}]}, None),
    "unknown part": (
        {"messages": [{"role": "user", "content": [{"type": "video_url", "video_url": {"url": "x"}}]}]},
        "messages[0].content[0].type",
    ),
    "unknown modality": ({"modalities": ["video"]}, "modalities"),
    "no modality": ({"modalities": []}, "modalities"),
    "a modality twice": ({"modalities": ["text", "text"]}, "modalities"),
    "modalities as text": ({"modalities": "audio"}, "modalities"),
    "modality null": ({"modalities": [None]}, "modalities[0]"),
    "modality in capitals": ({"modalities": ["Audio"]}, "modalities"),
    "max_tokens 0": ({"max_tokens": 0}, "max_tokens"),
    "max_tokens -1": ({"max_tokens": -1}, "max_tokens"),
    "max_tokens 10^9": ({"max_tokens": 10**9}, None),
    "max_tokens 10^30": ({"max_tokens": 10**30}, "max_tokens"),
    "temperature -1": ({"temperature": -1}, "temperature"),
    "temperature hot": ({"temperature": "hot"}, "temperature"),
    "top_p 0": ({"top_p": 0}, "top_p"),
    "top_k -2": ({"top_k": -2}, "top_k"),
    "seed -1": ({"seed": -1}, "seed"),
    "seed 2^70": ({"seed": 2**70}, "seed"),
    "n 2": ({"n": 2}, "n"),
    "stop": ({"stop": ["x"]}, "stop"),
    "penalties": ({"frequency_penalty": 0.5}, "frequency_penalty"),
    "logprobs": ({"logprobs": True}, "logprobs"),
    "tools": ({"tools": [{"type": "function"}]}, "tools"),
    "unknown voice": ({"audio": {"voice": "alloy"}}, None),
    "unknown format": ({"audio": {"format": "aac"}}, "audio.format"),
    "mp3 streamed": ({"audio": {"format": "mp3"}, "stream": True, "modalities": ["audio"]}, "audio.format"),
    "stream_options without stream": ({"stream_options": {"include_usage": True}}, "stream_options"),
    "four stages": ({"sampling_params_list": [{}] * 4}, "sampling_params_list"),
    "odd request id": ({"request_id": "a\nb"}, "request_id"),
    "too long": ({"messages": [{"role": "user", "content": "a" * 5000}]}, None),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_bodies(http: httpx.Client, case: str) -> None:
    """400 with the field, before anything is asked of a stage."""
    body, param = BAD[case]
    if case != "no messages":
        body = {**SAY, **body}
    error = refused(http.post(CHAT, content=json.dumps(body), headers={"content-type": "application/json"}))
    assert error["param"] == param or param is None
    if case == "too long":
        assert "4096" in error["message"]


@pytest.mark.parametrize(
    "data", [b"", b"{", b"null", b"[]", b"\xff\xfe", b'{"messages": NaN}', b'{"a":' + b"[" * 100_000, b'{"a": 1e999}']
)
def test_bodies_that_are_no_json(http: httpx.Client, data: bytes) -> None:
    """Malformed, torn, not Unicode, nested too deep."""
    refused(http.post(CHAT, content=data, headers={"content-type": "application/json"}))


def test_other_refusals(http: httpx.Client) -> None:
    """Content type, model, path, method, header."""
    refused(http.post(CHAT, content=json.dumps(SAY), headers={"content-type": "text/plain"}))
    assert "JSON" in refused(http.post(CHAT, content=json.dumps(SAY)))["message"]
    error = refused(http.post(CHAT, json={**SAY, "model": "gpt"}), 404)
    assert error["param"] == "model" and "does not exist" in error["message"] and error["type"] == "NotFoundError"
    refused(http.get("/v1/nothing"), 404)
    refused(http.get(CHAT), 405)
    for odd in ("", "a b", "x" * 200):
        assert refused(http.post(CHAT, json=SAY, headers={"x-request-id": odd}))["param"] == "x-request-id"
    assert "10" in refused(http.post("/detokenize", json={"tokens": [10**6]}))["message"]
    refused(http.post("/detokenize", json={"tokens": [-1]}))
    refused(http.post(SPEECH, json={"input": ""}))
    refused(http.post(SPEECH, json={"input": "x", "speed": 2}))
    refused(http.post(SPEECH, json={"input": "x", "response_format": "mp3", "stream": True}))
    assert "--profile-dir" in refused(http.post("/start_profile", json={}))["message"]


SOUNDS = {
    "not base64": "data:audio/wav;base64,@@@",
    "no base64": "data:audio/wav,abc",
    "nothing": "data:audio/wav;base64,",
    "noise": uri(bytes(range(256))),
    "torn": wav(np.zeros(4000))[:200],
    "too short": wav(np.zeros(16)),
    "not finite": wav(np.full(4000, np.nan, dtype=np.float32)),
    "http": "http://example.org/a.wav",
    "https": "https://example.org/a.wav",
    "file": "file:///etc/hostname",
    "no URL": "https://[x",
    "path": "/etc/hostname",
    "empty": "",
}


@pytest.mark.parametrize("case", SOUNDS)
@pytest.mark.parametrize("kind", ["audio_url", "image_url"])
def test_bad_media(http: httpx.Client, kind: str, case: str) -> None:
    """Nothing is opened that is not allowed, and what cannot be decoded is said."""
    refused(http.post(CHAT, json=part(kind, SOUNDS[case])))


@pytest.fixture(scope="module")
def small(pipe: Pipeline, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A server of small limits with a key, one folder and one host allowed."""
    folder = tmp_path_factory.mktemp("allowed")
    limits = Limits(
        body_bytes=200_000, media_bytes=100_000, media_parts=2, audio_s=2, image_pixels=10_000, body_within_s=3
    )
    allowed = Allowed(hosts=frozenset({"media.invalid"}), folders=(folder,))
    key = {"authorization": "Bearer s3cret"}
    with (
        serving(pipe, limits=limits, allowed=allowed, api_key="s3cret") as running,
        httpx.Client(base_url=running.url, headers=key, timeout=60) as client,
    ):
        yield client, folder


def test_limits_hold_before_anything_is_decoded(small: tuple[httpx.Client, Path], monkeypatch: Any) -> None:
    """Body, file, seconds, pixels and number of parts: refused by what their headers say."""
    client, _ = small
    assert "larger" in refused(client.post(CHAT, json={**SAY, "user": "x" * 300_000}), 413)["message"]
    pieces = (b'{"user": "' if n == 0 else b"x" * 10_000 for n in range(40))  # chunked: no length is told
    reply = client.post(CHAT, content=pieces, headers={"content-type": "application/json"})
    refused(reply, 413)
    assert "larger" in refused(client.post(CHAT, json=part("audio_url", uri(bytes(120_000)))))["message"]

    def never(*_args: Any, **_kwargs: Any) -> None:
        raise AssertionError("decoded")

    monkeypatch.setattr(soundfile.SoundFile, "read", never)
    monkeypatch.setattr("PIL.Image.Image.convert", never)
    long = part("audio_url", wav(np.zeros(33_000), 16_000))
    assert "2 s are taken" in refused(client.post(CHAT, json=long))["message"]
    assert "5000 x 5000" in refused(client.post(CHAT, json=part("image_url", png(5000, 5000))))["message"]
    assert "too many pixels" in refused(client.post(CHAT, json=part("image_url", png(65_000, 65_000))))["message"]
    assert "101 x 100" in refused(client.post(CHAT, json=part("image_url", png(101, 100))))["message"]
    content = [{"type": "image_url", "image_url": {"url": png(2, 2)}}] * 3
    body = {**SAY, "messages": [{"role": "user", "content": content}]}
    assert "more than 2" in refused(client.post(CHAT, json=body))["message"]


def test_a_body_that_does_not_come(small: tuple[httpx.Client, Path]) -> None:
    """A client that says how much it sends, and does not send it, is not waited for without end."""
    url = small[0].base_url
    with socket.create_connection((url.host, url.port or 0)) as client:
        client.settimeout(30)
        head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer s3cret\r\nContent-Type: application/json\r\n"
        client.sendall(f"{head}Content-Length: 10\r\n\r\n{{".encode())
        assert client.recv(100).startswith(b"HTTP/1.1 408")


def test_files_of_allowed_folders(small: tuple[httpx.Client, Path], tmp_path: Path) -> None:
    """Those below the folder, and no others: not by dots, not by a link, not a folder, not a host's."""
    client, folder = small
    soundfile.write(folder / "a b.wav", np.zeros(8000), 16_000)
    soundfile.write(tmp_path / "other.wav", np.zeros(8000), 16_000)
    (folder / "link.wav").symlink_to(tmp_path / "other.wav")
    assert client.post(CHAT, json=part("audio_url", f"file://{folder}/a%20b.wav")).status_code == 200
    for path in (f"{tmp_path}/other.wav", f"{folder}/../{tmp_path.name}/other.wav", f"{folder}/link.wav", f"{folder}"):
        assert "not opened" in refused(client.post(CHAT, json=part("audio_url", f"file://{path}")))["message"]
    os.mkfifo(folder / "pipe")
    refused(client.post(CHAT, json=part("audio_url", f"file://{folder}/pipe")))
    refused(client.post(CHAT, json=part("audio_url", f"file://elsewhere{folder}/a%20b.wav")))


def test_hosts_that_are_allowed(small: tuple[httpx.Client, Path]) -> None:
    """Only they are asked, over https, at the port that was named, with no name or password."""
    client, _ = small
    asked = refused(client.post(CHAT, json=part("audio_url", "https://media.invalid/a.wav")))
    assert "cannot be read: ConnectError" in asked["message"]  # it was tried: there is no such host
    for url in ("http://media.invalid/a", "https://media.invalid:8/a", "https://x@media.invalid/a", "https://a.b/a"):
        assert "not opened" in refused(client.post(CHAT, json=part("audio_url", url)))["message"]


def test_the_key_is_asked_everywhere_but_for_health(small: tuple[httpx.Client, Path]) -> None:
    """Bearer for clients, Basic for browsers; another key, or none, is 401."""
    base = str(small[0].base_url)
    paths = ("/", "/v1/models", "/metrics", "/openapi.json", CHAT, SPEECH, "/tokenize", "/start_profile", "/nowhere")
    for headers in ({}, {"authorization": "Bearer s3cre"}, {"authorization": "Bearer"}, {"authorization": "Basic ?"}):
        for path in paths:
            refused(httpx.post(f"{base}{path}", headers=headers), 401)
        assert httpx.get(f"{base}/health", headers=headers).status_code == 200
    assert httpx.get(f"{base}/").headers["www-authenticate"].startswith("Basic")
    assert httpx.get(f"{base}/", auth=("", "s3cret")).status_code == 200
    assert httpx.get(f"{base}/v1/models", headers={"authorization": "bearer s3cret"}).status_code == 200


KNOWN = ["text", "audio", "wav", "ethan", "tiny", SOUNDS["noise"]]
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


def bodies(schema: dict[str, Any], components: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values of a JSON schema, each of whose parts is now and then anything at all."""

    def of(one: dict[str, Any], depth: int) -> st.SearchStrategy[Any]:
        right = exactly(one, depth)
        return st.integers(0, 19).flatmap(lambda roll: ANY if roll == 0 else right)

    def exactly(one: dict[str, Any], depth: int) -> st.SearchStrategy[Any]:
        if "$ref" in one:
            return of(components[one["$ref"].rpartition("/")[2]], depth)
        if "anyOf" in one:
            return st.one_of([of(choice, depth) for choice in one["anyOf"]])
        if "enum" in one:
            return st.sampled_from(one["enum"])
        kind = one.get("type")
        if kind == "object" and depth < 6:
            needed = {name: of(one["properties"][name], depth + 1) for name in one.get("required", [])}
            more = {n: of(s, depth + 1) for n, s in one["properties"].items() if n not in needed}
            return st.fixed_dictionaries(needed, optional=more)
        if kind == "array" and depth < 6:
            return st.lists(of(one["items"], depth + 1), max_size=3)
        simple = {
            "string": st.text(max_size=12)
            | st.sampled_from(["text", "audio", "wav", "ethan", "tiny", SOUNDS["noise"]]),
            "integer": st.integers(-2, 40) | st.integers(),
            "number": st.floats(0, 2) | st.floats(allow_nan=False, allow_infinity=False),
            "boolean": st.booleans(),
            "null": st.none(),
        }
        return simple.get(str(kind), ANY)

    return of(schema, 0)


@pytest.mark.parametrize("path", [CHAT, SPEECH, "/tokenize", "/detokenize"])
@pytest.mark.timeout(0)
def test_fuzzed_bodies(server: Running, http: httpx.Client, path: str) -> None:
    """Made from the server's own schema and bent: an answer or a 4xx with a message, never a 5xx, never silence."""
    described = http.get("/openapi.json").json()
    schema = described["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    statuses: list[int] = []

    @settings(
        max_examples=NUM_FUZZED if path == CHAT else NUM_FUZZED // 3, deadline=None, database=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(bodies(schema, described["components"]["schemas"]))
    def send(body: Any) -> None:
        if isinstance(body, dict) and path in (CHAT, SPEECH):
            limit = body.get("max_tokens")
            if limit is None or (isinstance(limit, int) and limit > 4):
                body = {**body, "max_tokens": 2}  # what is right is also short
        with httpx.stream(
            "POST", f"{server.url}{path}", content=json.dumps(body), headers={"content-type": "application/json"},
            timeout=60,
        ) as reply:  # fmt: skip
            reply.read()
        statuses.append(reply.status_code)
        if reply.status_code != 200:
            assert 400 <= reply.status_code < 500, reply.text
            refused(reply, reply.status_code)

    send()
    assert statuses.count(400)  # how many are right is chance
