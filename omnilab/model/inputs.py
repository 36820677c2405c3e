"""From messages to what the stages take: token ids, features of audio and images, rotary positions; and back to text.

Everything is on the CPU and picklable, so that a request can be prepared in one process and run in another.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from torch import Tensor

from omnilab.errors import BadInput, ModelNotFound, PromptTooLong
from omnilab.model.layout import ASSISTANT_ROWS, audio_tokens, expand, media_ids, rope_positions, talker_layout
from omnilab.model.media import load_audio, load_image
from omnilab.model.weights import load_config, quiet

Message: TypeAlias = Mapping[str, Any]
ROLES = ("system", "user", "assistant")


@dataclass(frozen=True, slots=True)
class PromptInputs:
    """One prompt, processed. P tokens; U of them in user turns."""

    ids: list[int]
    positions: Tensor  # [3, P] int64
    position_delta: int  # rotary position of token i of the answer: P + i + delta
    talker_prompt_len: int  # U + 9
    talker_positions: Tensor  # [3, U + 9] int64
    talker_position_delta: int  # rotary position of frame i: U + 9 + i + delta
    has_media: bool = False  # the Talker reads accept-layer rows
    input_features: Tensor | None = None  # [clips, mel bins, frames]
    feature_attention_mask: Tensor | None = None  # [clips, frames]
    pixel_values: Tensor | None = None  # [patches, patch size]
    image_grid_thw: Tensor | None = None  # [images, 3] in patches


class InputProcessor:
    """Chat template, tokenizer and feature extractors of one model folder."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoTokenizer

        self.config = load_config(folder)
        with quiet():
            self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        if self.tokenizer.chat_template is None:
            self.tokenizer.chat_template = _processor_template(folder)
        self._folder = folder
        self.max_tokens: int | None = None  # longer prompts are refused before they are processed
        self._extractors: dict[str, Any] = {}
        self._media_ids = media_ids(self.config)
        # Not all_special_ids: that holds the named ones only.
        added = self.tokenizer.added_tokens_decoder
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        self._special_texts = [str(added[i]) for i in self.special_ids]
        self._vocab_size: int = self.config.thinker_config.text_config.vocab_size
        self._plain_ids = [i for i in range(min(len(self.tokenizer), self._vocab_size)) if i not in added]

    def _refuse_longer(self, num_tokens: int) -> None:
        """Before features and positions of far too long a prompt are computed."""
        if self.max_tokens is not None and num_tokens >= self.max_tokens:
            raise PromptTooLong(
                f"the prompt of {num_tokens} tokens does not fit into max_model_len = {self.max_tokens}: shorten it"
            )

    def process(self, messages: str | Sequence[Message]) -> PromptInputs:
        """Process a conversation; a plain string is one user turn.

        A message is {"role": system | user | assistant, "content": text or list of parts}; a part is
        {"type": "text", "text": ...}, {"type": "audio", "audio": ...} or {"type": "image", "image": ...}: see media.py
        for what the last two may hold. BadInput says what cannot be used.
        """
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        turns, audio, images = self._read_messages(messages)
        text = self.tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        self._refuse_longer(len(ids))
        sounds = self._hear(audio) if audio else {}
        sights = self._see(images) if images else {}
        thinker = self.config.thinker_config
        if audio:
            counts = [audio_tokens(int(frames)) for frames in sounds["feature_attention_mask"].sum(1)]
            ids = expand(ids, thinker.audio_token_id, counts)
        if images:
            merge = thinker.vision_config.spatial_merge_size
            counts = [int(grid.prod()) // merge**2 for grid in sights["image_grid_thw"]]
            ids = expand(ids, thinker.image_token_id, counts)
        return self._finish(ids, sounds | sights)

    def process_ids(self, ids: Sequence[int]) -> PromptInputs:
        """Process a prompt given as token ids, text only; BadInput for ids that the model does not have."""
        ids = list(ids)
        if not ids:
            raise BadInput("the prompt is empty")
        if min(ids) < 0 or max(ids) >= self._vocab_size:
            raise BadInput(f"token ids must lie in 0..{self._vocab_size - 1}")
        if self._media_ids.intersection(ids):
            raise BadInput("a prompt of ids holds placeholders of audio or images: give messages instead")
        return self._finish(ids, {})

    def random_ids(self, n: int, rng: random.Random) -> list[int]:
        """Return a prompt of exactly n tokens: one user turn of random plain tokens, and the answer's header."""
        head, tail = (self.tokenizer(text, add_special_tokens=False)["input_ids"] for text in self._frame())
        fill = n - len(head) - len(tail)
        if fill < 1:
            raise BadInput(f"a random prompt of {n} tokens is too short: give at least {len(head) + len(tail) + 1}")
        return [*head, *rng.choices(self._plain_ids, k=fill), *tail]

    def _frame(self) -> tuple[str, str]:
        """Return what the chat template puts before and after a user's text."""
        mark = "\u2603"
        turns = [{"role": "user", "content": [{"type": "text", "text": mark}]}]
        head, _, tail = self.tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False).partition(
            mark
        )
        return head, tail

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids with special tokens shown."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=False)

    def text_of(self, ids: Sequence[int]) -> str:
        """Return the text of an answer: special tokens left out."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=True)

    def _read_messages(self, messages: Sequence[Message]) -> tuple[list[dict[str, Any]], list[Any], list[Any]]:
        """Return messages as chat templates take them, and the audio and the images in order."""
        turns: list[dict[str, Any]] = []
        audio: list[Any] = []
        images: list[Any] = []
        asked = False
        for message in messages:
            role = message.get("role")
            if role not in ROLES:
                raise BadInput(f"unknown role {role!r}: use one of {', '.join(ROLES)}")
            parts = [self._read_part(part, audio, images) for part in _parts_of(message.get("content"))]
            asked = asked or (role == "user" and any(part["type"] != "text" or part["text"].strip() for part in parts))
            turns.append({"role": role, "content": parts})
        if not asked:
            raise BadInput("the prompt is empty: give a user message with text, audio or an image")
        return turns, audio, images

    def _read_part(self, part: Any, audio: list[Any], images: list[Any]) -> dict[str, Any]:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind == "text" and isinstance(part.get("text"), str):
            for special in self._special_texts:
                if special in part["text"]:
                    raise BadInput(f"the text holds the special token {special}: take it out")
            return {"type": "text", "text": part["text"]}
        if kind in ("audio", "image") and part.get(kind) is not None:
            (audio if kind == "audio" else images).append(part[kind])
            return {"type": kind}
        raise BadInput(
            f'unknown part {kind!r}: use {{"type": "text" | "audio" | "image"}} with its content under that name'
        )

    def _hear(self, sources: Sequence[Any]) -> dict[str, Tensor]:
        """Return mel features of clips, padded to the longest."""
        extractor = self._extractor("audio")
        clips = [load_audio(source, extractor.sampling_rate) for source in sources]
        found = extractor(
            clips,
            sampling_rate=extractor.sampling_rate,
            padding=True,
            truncation=False,
            return_attention_mask=True,
            return_tensors="pt",
        )
        return {"input_features": found["input_features"], "feature_attention_mask": found["attention_mask"]}

    def _see(self, sources: Sequence[Any]) -> dict[str, Tensor]:
        """Return patches of images and their grids."""
        images = [load_image(source) for source in sources]
        try:
            found = self._extractor("image")(images, return_tensors="pt")
        except ValueError as error:  # an aspect ratio of over 200
            raise BadInput(f"cannot use the image: {error}") from error
        return {"pixel_values": found["pixel_values"], "image_grid_thw": found["image_grid_thw"]}

    def _extractor(self, kind: str) -> Any:
        # Loaded when first needed, and without AutoProcessor, which wants torchvision for video.
        if kind not in self._extractors:
            if kind == "audio":
                from transformers import WhisperFeatureExtractor as Extractor
            else:
                from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (
                    Qwen2VLImageProcessorPil as Extractor,
                )
            with quiet():
                self._extractors[kind] = Extractor.from_pretrained(self._folder)
        return self._extractors[kind]

    def _finish(self, ids: list[int], features: dict[str, Tensor]) -> PromptInputs:
        layout = talker_layout(ids, self.config)
        grids: list[list[int]] = features["image_grid_thw"].tolist() if "image_grid_thw" in features else []
        positions, delta = self._rope(ids, grids)
        talker_ids = [ids[i] for i in layout.user_positions] + [self.config.tts_pad_token_id] * ASSISTANT_ROWS
        talker_positions, talker_delta = self._rope(talker_ids, self._user_grids(ids, grids, layout.user_positions))
        return PromptInputs(
            ids=ids,
            positions=positions,
            position_delta=delta,
            talker_prompt_len=len(talker_ids),
            talker_positions=talker_positions,
            talker_position_delta=talker_delta,
            has_media=bool(layout.media_positions),
            **features,
        )

    def _rope(self, ids: Sequence[int], grids: Sequence[Sequence[int]]) -> tuple[Tensor, int]:
        thinker = self.config.thinker_config
        return rope_positions(
            ids,
            grids,
            image_token_id=thinker.image_token_id,
            merge=thinker.vision_config.spatial_merge_size,
            per_second=thinker.position_id_per_seconds,
        )

    def _user_grids(self, ids: list[int], grids: list[list[int]], user_positions: list[int]) -> list[list[int]]:
        """Return the grids of the images that stand in user turns."""
        thinker = self.config.thinker_config
        users, merge, index = set(user_positions), thinker.vision_config.spatial_merge_size, 0
        kept: list[list[int]] = []
        for grid in grids:
            index = ids.index(thinker.image_token_id, index)
            if index in users:
                kept.append(grid)
            index += grid[0] * grid[1] * grid[2] // merge**2
        return kept


def _parts_of(content: Any) -> Sequence[Any]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if isinstance(content, Sequence) and not isinstance(content, bytes):
        return content
    raise BadInput(f"a message's content must be text or a list of parts, not {type(content).__name__}")


def _processor_template(folder: Path) -> str:
    """Read the chat template that a folder keeps for its processor alone."""
    try:
        return json.loads((folder / "chat_template.json").read_text(encoding="utf-8"))["chat_template"]
    except (OSError, ValueError, KeyError) as error:
        raise ModelNotFound(
            f"{folder} has no chat template: put chat_template.jinja or chat_template.json there"
        ) from error
