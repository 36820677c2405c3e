"""From a body to what the pipeline is asked: prompt, sampling of each stage, and how the answer is to be given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from omnilab.engine.messages import StageRequest, StageSampling
from omnilab.engine.spec import STAGES
from omnilab.prompt import Prompt, Sampling
from omnilab.serve.audio import FORMATS, STREAMED
from omnilab.serve.bodies import (
    AudioUrlPart,
    ChatBody,
    ImageUrlPart,
    InputAudioPart,
    Message,
    SpeechBody,
    StageFields,
    TextPart,
    refuse_unoffered,
)
from omnilab.serve.errors import ApiError
from omnilab.serve.limits import Allowed, Limits
from omnilab.serve.media import from_base64, image_of, opened, sound_of

MODALITIES = ("text", "audio")
DEFAULT_TEXT_TOKENS = 256
READ_ALOUD = "Say the user's text word for word, and nothing else."


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What one request asks; `files` are the bytes of media parts by (message, part), `stages` in the order STAGES."""

    messages: Sequence[Message]
    files: dict[tuple[int, int], bytes] = field(default_factory=dict)
    sampling: Sampling
    stages: Sequence[StageFields] = ()
    text: bool = True
    audio: bool = True
    kind: str = "wav"  # one of FORMATS
    stream: bool = False
    usage: bool = False
    usage_always: bool = False

    def prompt(self, limits: Limits) -> Prompt:
        """Decode the media and return the prompt; not on the event loop's thread."""
        turns: list[dict[str, Any]] = []
        for number, message in enumerate(self.messages):
            role = "system" if message.role == "developer" else message.role
            turns.append({"role": role, "content": self._content(number, message, limits)})
        return Prompt(messages=turns)

    def stage_request(self, stage: str, request: StageRequest) -> StageRequest:
        """Return a stage's request with that stage's own fields. OpenAI's fields are the Thinker's alone."""
        index = STAGES.index(stage)
        own = self.stages[index] if index < len(self.stages) else StageFields()
        return replace(request, sampling=_with(request.sampling, own))

    def _content(self, number: int, message: Message, limits: Limits) -> list[dict[str, Any]]:
        if isinstance(message.content, str):
            return [{"type": "text", "text": _unicode(message.content, f"messages[{number}].content")}]
        parts: list[dict[str, Any]] = []
        for place, part in enumerate(message.content):
            param = f"messages[{number}].content[{place}]"
            if isinstance(part, TextPart):
                parts.append({"type": "text", "text": _unicode(part.text, param)})
            elif isinstance(part, ImageUrlPart):
                parts.append({"type": "image", "image": image_of(self.files[number, place], limits, param)})
            else:
                parts.append({"type": "audio", "audio": sound_of(self.files[number, place], limits, param)})
        return parts


async def chat_asked(body: ChatBody, allowed: Allowed, limits: Limits) -> Asked:
    """Check a chat body and open what it names; ApiError 400."""
    refuse_unoffered(body)
    text, audio = _modalities(body.modalities)
    stages = body.sampling_params_list or []
    stream, options = bool(body.stream), body.stream_options
    if options is not None and not stream:
        raise ApiError(400, "stream_options is for streams: give stream too, or leave it away", "stream_options")
    kind = _format(body.audio.format if body.audio else None, "audio.format", stream and audio)
    thinker = replace_missing(stages[0] if stages else StageFields(), body)
    frames = stages[1].max_tokens if len(stages) > 1 else None
    if thinker.repetition_penalty not in (None, 1):
        raise ApiError(400, "repetition_penalty is the Talker's alone: give the Thinker 1", "sampling_params_list")
    usage = options is not None and options.include_usage
    return Asked(
        messages=body.messages,
        files=await _files(body.messages, allowed, limits),
        sampling=Sampling(
            max_text_tokens=thinker.max_tokens or DEFAULT_TEXT_TOKENS,
            max_frames=frames,
            seed=thinker.seed,
            speaker=_voice(body.audio.voice if body.audio else None),
        ),
        stages=[thinker, *stages[1:]],
        text=text,
        audio=audio,
        kind=kind,
        stream=stream,
        usage=usage,
        usage_always=usage and options is not None and options.continuous_usage_stats,
    )


def speech_asked(body: SpeechBody) -> Asked:
    """Check a speech body; ApiError 400. The pipeline answers, it does not read: it is asked to repeat the text."""
    if body.speed not in (None, 1):
        raise ApiError(400, "speed is not offered here: leave it away, or give 1", "speed")
    stream = bool(body.stream)
    kind = _format(body.response_format, "response_format", stream)
    if stream and kind == "flac":
        raise ApiError(400, "flac is not streamed here: use wav or pcm", "response_format")
    thinker = StageFields(max_tokens=body.max_tokens, seed=body.seed)
    return Asked(
        messages=[Message("system", body.instructions or READ_ALOUD), Message("user", body.input)],
        sampling=Sampling(
            max_text_tokens=body.max_tokens or DEFAULT_TEXT_TOKENS, seed=body.seed, speaker=_voice(body.voice)
        ),
        stages=[thinker],
        text=False,
        kind=kind,
        stream=stream,
    )


def replace_missing(own: StageFields, body: ChatBody) -> StageFields:
    """Return the Thinker's fields: its own, and OpenAI's where it has none."""
    most = body.max_completion_tokens if body.max_tokens is None else body.max_tokens
    given = {
        "temperature": body.temperature, "top_p": body.top_p, "top_k": body.top_k, "max_tokens": most,
        "seed": body.seed, "ignore_eos": body.ignore_eos, "repetition_penalty": None,
    }  # fmt: skip
    found = {name: getattr(own, name) for name in given}
    return StageFields(**{name: given[name] if value is None else value for name, value in found.items()})


def _with(sampling: StageSampling, own: StageFields) -> StageSampling:
    top_k = None if own.top_k is None else max(own.top_k, 0)  # vLLM: -1 is no limit
    given = {
        "temperature": own.temperature, "top_p": own.top_p, "top_k": top_k, "seed": own.seed,
        "ignore_eos": own.ignore_eos, "repetition_penalty": own.repetition_penalty,
    }  # fmt: skip
    return replace(sampling, **{name: value for name, value in given.items() if value is not None})


def _modalities(asked: list[str] | None) -> tuple[bool, bool]:
    if asked is None:
        return True, True
    unknown = [name for name in asked if name not in MODALITIES]
    if unknown or not asked or len(set(asked)) < len(asked):
        said = f"Unsupported output modalities {asked!r}. Supported modalities: text, audio, each once"
        raise ApiError(400, said[:500], "modalities")
    return "text" in asked, "audio" in asked


def _format(asked: str | None, param: str, streamed: bool) -> str:
    kind = asked or "wav"
    if kind not in FORMATS:
        raise ApiError(400, f"Invalid audio format {kind[:50]!r}: use one of {', '.join(FORMATS)}", param)
    if streamed and kind not in STREAMED:
        raise ApiError(400, f"{kind} has gaps when it is streamed: use one of {', '.join(STREAMED)}", param)
    return kind


def _voice(asked: str | None) -> str:
    return "ethan" if asked is None else asked[:100] or "(empty)"


def _unicode(text: str, param: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ApiError(400, "the text is no Unicode: half of a surrogate pair", param) from None
    return text


async def _files(messages: Sequence[Message], allowed: Allowed, limits: Limits) -> dict[tuple[int, int], bytes]:
    files: dict[tuple[int, int], bytes] = {}
    for number, message in enumerate(messages):
        for place, part in enumerate(message.content if isinstance(message.content, list) else ()):
            if isinstance(part, TextPart):
                continue
            param = f"messages[{number}].content[{place}]"
            if len(files) == limits.media_parts:
                raise ApiError(400, f"more than {limits.media_parts} sounds and images are not taken", param)
            if isinstance(part, InputAudioPart):
                files[number, place] = from_base64(part.input_audio.data, limits, param)
            else:
                link = part.audio_url if isinstance(part, AudioUrlPart) else part.image_url
                files[number, place] = await opened(link.url, allowed, limits, param)
    return files
