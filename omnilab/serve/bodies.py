"""The bodies of requests, as OpenAI, vLLM and vLLM-Omni name their fields. Fields that are not here are passed over.

These types are also the schema at /openapi.json.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from msgspec import DecodeError, Meta, Struct, ValidationError
from msgspec.json import Decoder

from omnilab.serve.errors import ApiError

Count: TypeAlias = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Seed: TypeAlias = Annotated[int, Meta(ge=0, le=2**63 - 1)]
TopK: TypeAlias = Annotated[int, Meta(ge=-1, le=2**31 - 1)]
Temperature: TypeAlias = Annotated[float, Meta(ge=0, le=2)]
Share: TypeAlias = Annotated[float, Meta(gt=0, le=1)]
Penalty: TypeAlias = Annotated[float, Meta(gt=0, le=10)]
RequestId: TypeAlias = Annotated[str, Meta(pattern=r"^[\x21-\x7e]{1,128}$", max_length=128)]


class Link(Struct):
    """A data URI, or an https or file URL where the server allows it."""

    url: str


class InputAudio(Struct):
    """A sound in base64. What it is is told by its bytes, not by `format`."""

    data: str
    format: str = ""


class TextPart(Struct, tag="text", tag_field="type"):
    """Text."""

    text: str


class AudioUrlPart(Struct, tag="audio_url", tag_field="type"):
    """A sound, as vLLM names it."""

    audio_url: Link


class InputAudioPart(Struct, tag="input_audio", tag_field="type"):
    """A sound, as OpenAI names it."""

    input_audio: InputAudio


class ImageUrlPart(Struct, tag="image_url", tag_field="type"):
    """An image."""

    image_url: Link


Part: TypeAlias = TextPart | AudioUrlPart | InputAudioPart | ImageUrlPart


class Message(Struct):
    """A turn."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str, Meta(min_length=1)] | Annotated[list[Part], Meta(min_length=1)]


class StreamOptions(Struct):
    """Usage in a chunk of its own at the end; with the second, in every chunk too."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class AudioOptions(Struct):
    """How the answer is spoken."""

    voice: str | None = None
    format: str | None = None


class StageFields(Struct):
    """Sampling of one stage: vLLM-Omni's `sampling_params_list`, in the order Thinker, Talker, Code2Wav."""

    temperature: Temperature | None = None
    top_p: Share | None = None
    top_k: TopK | None = None
    repetition_penalty: Penalty | None = None
    max_tokens: Count | None = None
    seed: Seed | None = None
    ignore_eos: bool | None = None


class ChatBody(Struct, kw_only=True):
    """POST /v1/chat/completions. The sampling fields are the Thinker's; `modalities` left out asks for both."""

    messages: Annotated[list[Message], Meta(min_length=1, max_length=1000)]
    model: str | None = None
    modalities: list[str] | None = None
    audio: AudioOptions | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    temperature: Temperature | None = None
    top_p: Share | None = None
    top_k: TopK | None = None
    seed: Seed | None = None
    ignore_eos: bool | None = None
    sampling_params_list: Annotated[list[StageFields], Meta(min_length=1, max_length=3)] | None = None
    request_id: RequestId | None = None
    # what is understood and not offered: accepted with the values that change nothing
    n: int | None = None
    stop: Any = None
    stop_token_ids: Any = None
    min_tokens: Any = None
    min_p: Any = None
    repetition_penalty: Any = None
    presence_penalty: Any = None
    frequency_penalty: Any = None
    logit_bias: Any = None
    logprobs: Any = None
    tools: Any = None
    response_format: Any = None


class SpeechBody(Struct, kw_only=True):
    """POST /v1/audio/speech."""

    input: Annotated[str, Meta(min_length=1)]
    model: str | None = None
    voice: str | None = None
    instructions: str | None = None
    response_format: str | None = None
    speed: float | None = None
    stream: bool | None = None
    max_tokens: Count | None = None
    seed: Seed | None = None


class TokenizeBody(Struct, kw_only=True):
    """POST /tokenize: a text as it stands, without the chat template."""

    prompt: str
    model: str | None = None
    add_special_tokens: bool = True


class DetokenizeBody(Struct, kw_only=True):
    """POST /detokenize."""

    tokens: Annotated[list[int], Meta(max_length=1_000_000)]
    model: str | None = None


# The values of fields not offered that ask for nothing.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "stop": ([], ""),
    "stop_token_ids": ([],),
    "min_tokens": (0,),
    "min_p": (0,),
    "repetition_penalty": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "tools": ([],),
    "response_format": ({"type": "text"},),
}
B = TypeVar("B")
_AT = re.compile(r" - at `\$\.?([^`]*)`$")


def decoder(kind: type[B]) -> Decoder[B]:
    """Return what reads one kind of body."""
    return Decoder(kind)


def decoded(reader: Decoder[B], data: bytes) -> B:
    """Return a body; ApiError 400 says which field is wrong."""
    try:
        return reader.decode(data)
    except ValidationError as error:
        where = _AT.search(str(error))
        raise ApiError(400, str(error), where[1] if where else None) from None
    except (DecodeError, RecursionError) as error:
        raise ApiError(400, f"the body is no JSON that can be read: {error}") from None


def refuse_unoffered(body: ChatBody) -> None:
    """Raise ApiError 400 for what is asked and not offered: an answer without it would be another answer."""
    for name, neutral in NEUTRAL.items():
        value = getattr(body, name)
        if value is not None and not any(_same(value, one) for one in neutral):
            values = " or ".join(map(repr, neutral))
            raise ApiError(400, f"{name} is not offered here: leave it away, or give {values}", name)


def _same(value: Any, neutral: Any) -> bool:
    return value == neutral and (isinstance(value, bool) == isinstance(neutral, bool))
