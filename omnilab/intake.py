"""From a prompt and its sampling to what each stage is asked to do. Everything that can be refused is refused here."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from omnilab.engine.messages import StageRequest, StageSampling
from omnilab.engine.talker_runner import TalkerPrompt
from omnilab.errors import BadInput, PromptTooLong
from omnilab.model.folder import resolve
from omnilab.model.inputs import InputProcessor, PromptInputs
from omnilab.model.text import TextStream
from omnilab.prompt import Prompt, Sampling

SAMPLE_RATE = 24_000  # Hz, of Code2Wav
# The released sampling: the Thinker's top-k of 1 is greedy, the Talker samples.
TALKER_TEMPERATURE, TALKER_TOP_K, REPETITION_PENALTY = 0.9, 50, 1.05


class Intake:
    """A model folder's processor and limits. Runs in the caller's process, as an API server does."""

    def __init__(self, folder: Path, max_model_len: int | None = None) -> None:
        self.folder = folder
        self._processor = InputProcessor(folder)
        config = self._processor.config
        longest = min(
            config.thinker_config.text_config.max_position_embeddings,
            config.talker_config.text_config.max_position_embeddings,
        )
        if max_model_len is not None and not 1 <= max_model_len <= longest:
            raise BadInput(f"max_model_len must lie between 1 and the model's {longest}, not {max_model_len}")
        self.max_model_len = self._processor.max_tokens = max_model_len or longest
        self.sample_rate = SAMPLE_RATE
        self.hidden_size: int = config.thinker_config.text_config.hidden_size
        self.num_code_groups: int = config.talker_config.num_code_groups
        self.speakers = tuple(sorted({name.lower() for name in config.talker_config.speaker_id}))
        self._text_end = frozenset((config.im_end_token_id,))
        self._speech_end = frozenset((config.talker_config.codec_eos_token_id,))

    @classmethod
    def of(cls, model: str | Path, max_model_len: int | None) -> Intake:
        """Find a model and read its processor; ModelNotFound says what to do."""
        return cls(resolve(model), max_model_len)

    def text_stream(self) -> TextStream:
        """Return a fresh detokenizer of one answer."""
        return TextStream(self._processor)

    def tokenize(self, text: str) -> list[int]:
        """Return the ids of a text as it stands, without the chat template."""
        return self._processor.tokenizer(text, add_special_tokens=False)["input_ids"]

    def detokenize(self, token_ids: Sequence[int]) -> str:
        """Return the text of ids, special tokens shown; BadInput for ids that the tokenizer does not have."""
        size = len(self._processor.tokenizer)
        if bad := [token for token in token_ids if not 0 <= token < size]:
            raise BadInput(f"token id {bad[0]} is unknown: ids lie in 0..{size - 1}")
        return self._processor.decode(token_ids)

    def stage_requests(
        self, request_id: str, prompt: Prompt, sampling: Sampling, seed: int, noise_key: str, *, spoken: bool = True
    ) -> tuple[dict[str, StageRequest], int]:
        """Return what each stage is asked (the Thinker alone when not `spoken`), and the prompt's length in tokens.

        Raises BadInput for what cannot be used, PromptTooLong with the limit and the length.
        """
        if sampling.speaker.lower() not in self.speakers:
            raise BadInput(f"unknown speaker {sampling.speaker!r}: use one of {', '.join(self.speakers)}")
        if prompt.random_tokens is not None:  # before so many are drawn
            self._check_length("Thinker", prompt.random_tokens, sampling.max_text_tokens, "text tokens")
        inputs = self._inputs(prompt)
        self._check_length("Thinker", len(inputs.ids), sampling.max_text_tokens, "text tokens")
        thinker, talker = _stage_samplings(sampling, seed)
        written = StageRequest(request_id, len(inputs.ids), inputs.ids, inputs, thinker, self._text_end, noise_key)
        if not spoken:
            return {"thinker": written}, len(inputs.ids)
        self._check_length("Talker", inputs.talker_prompt_len, sampling.frame_limit, "frames")
        voiced = TalkerPrompt(inputs.talker_positions, inputs.talker_position_delta, sampling.speaker)
        requests = {
            "thinker": written,
            "talker": StageRequest(
                request_id, inputs.talker_prompt_len, inputs.ids, voiced, talker, self._speech_end, noise_key
            ),
            "code2wav": StageRequest(request_id, 0, [], None, talker),
        }
        return requests, len(inputs.ids)

    def _inputs(self, prompt: Prompt) -> PromptInputs:
        if prompt.random_tokens is not None:
            ids = self._processor.random_ids(prompt.random_tokens, random.Random(prompt.random_seed))
            return self._processor.process_ids(ids)
        return self._processor.process(prompt.as_messages())

    def _check_length(self, stage: str, prompt: int, output: int, of_what: str) -> None:
        if prompt + output > self.max_model_len:
            raise PromptTooLong(
                f"the {stage}'s prompt of {prompt} tokens and {output} {of_what} do not fit into "
                f"max_model_len = {self.max_model_len}: shorten the prompt or ask for less"
            )


def _stage_samplings(sampling: Sampling, seed: int) -> tuple[StageSampling, StageSampling]:
    released = sampling.temperature is None
    thinker = StageSampling(
        max_outputs=sampling.max_text_tokens,
        temperature=0.0 if sampling.temperature is None else sampling.temperature,
        top_k=sampling.top_k or 0,
        top_p=1.0,
        repetition_penalty=1.0,
        seed=seed,
        ignore_eos=sampling.ignore_eos,
    )
    talker = StageSampling(
        max_outputs=sampling.frame_limit,
        temperature=TALKER_TEMPERATURE if released else float(sampling.temperature or 0.0),
        top_k=TALKER_TOP_K if sampling.top_k is None else sampling.top_k,
        top_p=1.0,
        repetition_penalty=REPETITION_PENALTY,
        seed=seed,
        ignore_eos=sampling.ignore_eos,
    )
    return thinker, talker
