"""The prompts of a bench: random ones, random sounds, a file's; and those of its warm-up, which nobody measures."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from omnilab.client.random_text import random_texts
from omnilab.errors import BadInput
from omnilab.prompt import Prompt, Sampling, at_least
from omnilab.workload import Workload, derive_seed

NAMES = ("random", "random-audio")
DEFAULT_PROMPTS = 10
NOISE_HZ = 16_000
ASKERS = ("human", "user")
WARM_UP_SEED = 1_000_003  # far from seeds that people choose


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """What to ask. `name` is one of NAMES or a file: our lines of prompts, or ShareGPT's conversations."""

    name: str
    num_prompts: int | None = None  # None: DEFAULT_PROMPTS, or all of a file's
    input_len: int = 2500
    audio_s: float = 2.0
    tokenizer: Path | None = None
    seed: int = 0

    def workload(self, sampling: Sampling) -> Workload:
        """Return the requests, one after the other, each with a seed of its own. BadInput."""
        if self.name not in NAMES:
            return self._from_file(Path(self.name), sampling)
        count = at_least("--num-prompts", DEFAULT_PROMPTS if self.num_prompts is None else self.num_prompts, 1)
        at_least("--input-len", self.input_len, 1)
        if self.name == "random" and self.tokenizer is None:
            prompts = [Prompt(random_tokens=self.input_len)] * count
        else:
            texts = random_texts([self.input_len] * count, self.seed, self.tokenizer)
            prompts = [Prompt(text=text, audio=self._noise(index)) for index, text in enumerate(texts)]
        return Workload.prompts(prompts, replace(sampling, seed=0)).with_seed(self.seed)

    def _noise(self, index: int) -> tuple[np.ndarray, int] | None:
        if self.name == "random":
            return None
        if not 0.1 <= self.audio_s <= 300:
            raise BadInput(f"--audio-s: must lie in 0.1..300 seconds, not {self.audio_s:g}")
        return noise(round(NOISE_HZ * self.audio_s), derive_seed(self.seed, index, 3)), NOISE_HZ

    def _from_file(self, path: Path, sampling: Sampling) -> Workload:
        if not path.is_file():
            raise BadInput(f"--dataset {path}: neither a file nor one of {', '.join(NAMES)}")
        questions = _share_gpt(path)
        found = (
            Workload.prompts(questions, sampling, seed=self.seed)
            if questions
            else Workload.from_jsonl(path, sampling, seed=self.seed)
        )
        if self.num_prompts is None:
            return found
        count = at_least("--num-prompts", self.num_prompts, 1)
        if count > len(found.requests):
            raise BadInput(f"--num-prompts {count}: {path} has {len(found.requests)}")
        return replace(found, requests=found.requests[:count])


def warm_up(workload: Workload, count: int) -> Workload:
    """Return `count` requests of the same shape and other content, so that no cache knows a measured prompt."""
    seed = derive_seed(workload.seed, WARM_UP_SEED)
    few = [workload.requests[index % len(workload.requests)] for index in range(count)]
    fresh = replace(workload, requests=tuple(few)).with_seed(seed)
    requests = tuple(
        replace(item, prompt=_other(item.prompt, derive_seed(seed, i, 3))) for i, item in enumerate(fresh.requests)
    )
    return replace(fresh, requests=requests)


def noise(length: int, seed: int) -> np.ndarray:
    """Return samples [length] of white noise in -0.5..0.5, float32."""
    return np.random.default_rng(seed).uniform(-0.5, 0.5, length).astype(np.float32)


def _other(prompt: Prompt, seed: int) -> Prompt:
    if isinstance(prompt.audio, tuple):
        samples, rate = prompt.audio
        prompt = replace(prompt, audio=(noise(len(samples), seed), rate))
    if prompt.random_tokens is not None:
        return prompt
    words = len((prompt.text or " ".join(_said(prompt.messages or ()))).split())
    return replace(prompt, messages=None, text=random_texts([max(1, words)], seed, None)[0])


def _said(messages: Any) -> Iterator[str]:
    for part in Prompt(messages=messages).as_messages() if messages else ():
        yield from (piece["text"] for piece in part["content"] if piece.get("type") == "text")


def _share_gpt(path: Path) -> list[str]:
    """Return the first question of each conversation; [] when the file holds no conversations."""
    try:
        text = path.read_text(encoding="utf-8")
        first = next((line for line in text.split("\n") if line.strip()), "")
        is_list = first.lstrip().startswith("[")
        if not is_list and '"conversations"' not in first:
            return []  # lines of ours: Workload.from_jsonl reads them
        rows = json.loads(text) if is_list else [json.loads(line) for line in text.split("\n") if line.strip()]
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"{path}: cannot be read: {error}") from None
    questions = [question for row in rows for question in _questions(path, row)[:1]]
    if not questions:
        raise BadInput(f"{path}: no conversation in it has a question")
    return questions


def _questions(path: Path, row: Any) -> list[str]:
    try:
        turns = [(turn["from"], turn["value"]) for turn in row["conversations"]]
        return [said for asker, said in turns if asker in ASKERS and said.strip()]
    except (KeyError, TypeError, AttributeError):
        shape = '{"conversations": [{"from": "human", "value": "..."}, ...]}'
        raise BadInput(f"{path}: an entry is not {shape}") from None
