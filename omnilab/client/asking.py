"""A request of a workload as the body of POST /v1/chat/completions. Made before the clock starts."""

from __future__ import annotations

import base64
import io
import mimetypes
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from omnilab.errors import BadInput
from omnilab.prompt import Prompt, Sampling

# The released sampling of the Talker. A server of vLLM-Omni fills nothing in once a stage's own fields are given.
TALKER = {"temperature": 0.9, "top_k": 50, "repetition_penalty": 1.05}
CODE2WAV = {"temperature": 0.0, "max_tokens": 65536}
DEFAULT_SPEAKER = Sampling().speaker


def body_of(
    prompt: Prompt,
    sampling: Sampling,
    *,
    model: str,
    modalities: Sequence[str],
    extra_body: Mapping[str, Any],
    random_text: str | None = None,
) -> bytes:
    """Return the JSON. `extra_body` goes over it at the top level; `random_text` stands for a prompt of random tokens.

    Lengths, seed and temperature are the Thinker's in OpenAI's fields. With `max_frames`, `sampling_params_list` has
    those of every stage, so that the audio's length is fixed too.
    """
    body: dict[str, Any] = {
        "model": model, "messages": _messages(prompt, random_text), "modalities": list(modalities), "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True}, "return_stage_metrics": True,
        "max_tokens": sampling.max_text_tokens, "ignore_eos": sampling.ignore_eos,
    }  # fmt: skip
    given = {"temperature": sampling.temperature, "top_k": sampling.top_k, "seed": sampling.seed}
    body |= {name: value for name, value in given.items() if value is not None}
    if "audio" in modalities and sampling.speaker != DEFAULT_SPEAKER:
        body["audio"] = {"voice": sampling.speaker}
    if sampling.max_frames is not None:
        body["sampling_params_list"] = _stages(sampling)
    return msgspec.json.encode(body | dict(extra_body))


def _stages(sampling: Sampling) -> list[dict[str, Any]]:
    shared: dict[str, Any] = {"ignore_eos": sampling.ignore_eos}
    if sampling.seed is not None:
        shared["seed"] = sampling.seed
    greedy = 0.0 if sampling.temperature is None else sampling.temperature
    thinker = {"temperature": greedy, "max_tokens": sampling.max_text_tokens, **shared}
    talker = {**TALKER, "max_tokens": sampling.max_frames, **shared}
    if sampling.temperature is not None:
        talker["temperature"] = sampling.temperature
    if sampling.top_k is not None:
        thinker["top_k"] = talker["top_k"] = sampling.top_k
    return [thinker, talker, CODE2WAV]


def _messages(prompt: Prompt, random_text: str | None) -> list[dict[str, Any]]:
    if random_text is not None:
        return [{"role": "user", "content": [{"type": "text", "text": random_text}]}]
    turns = prompt.as_messages()
    return [{"role": turn["role"], "content": [_part(part) for part in turn["content"]]} for turn in turns]


def _part(part: Mapping[str, Any]) -> dict[str, Any]:
    if part.get("type") == "audio":
        return {"type": "audio_url", "audio_url": {"url": _audio_uri(part["audio"])}}
    if part.get("type") == "image":
        return {"type": "image_url", "image_url": {"url": _image_uri(part["image"])}}
    return dict(part)  # text, or a part as the server itself names it


def _audio_uri(audio: Any) -> str:
    if isinstance(audio, (str, Path)):
        return _file_uri(audio, "audio/wav")
    import soundfile

    samples, rate = audio
    file = io.BytesIO()
    soundfile.write(file, np.asarray(samples), rate, format="WAV", subtype="FLOAT")
    return _uri("audio/wav", file.getvalue())


def _image_uri(image: Any) -> str:
    if isinstance(image, (str, Path)):
        return _file_uri(image, "image/png")
    from PIL import Image

    file = io.BytesIO()
    (Image.fromarray(image) if isinstance(image, np.ndarray) else image).save(file, "PNG")
    return _uri("image/png", file.getvalue())


def _file_uri(path: str | Path, otherwise: str) -> str:
    if isinstance(path, str) and path.startswith(("data:", "https://", "http://")):
        return path
    try:
        return _uri(mimetypes.guess_type(path)[0] or otherwise, Path(path).read_bytes())
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror or error}") from None


def _uri(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode('ascii')}"
