"""Texts for prompts of random tokens: servers take text, not token ids.

With a tokenizer's folder, the texts that `vllm bench serve --dataset-name random` makes of the same seed: consecutive
vocabulary ids from a random start. Without, common short words, of which most tokenizers make about one token each.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from omnilab.errors import BadInput

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TRIES = 10  # to reach a length exactly: text may be cut otherwise than it was put together
WORDS: tuple[str, ...] = (
    "the", "of", "and", "to", "in", "is", "it", "you", "that", "he", "was", "for", "on", "are", "with", "as", "his",
    "they", "be", "at", "one", "have", "this", "from", "or", "had", "by", "word", "but", "not", "what", "all", "were",
    "we", "when", "your", "can", "said", "there", "use", "an", "each", "which", "she", "do", "how", "their", "if",
    "will", "up", "other", "about", "out", "many", "then", "them", "these", "so", "some", "her", "would", "make",
    "like", "him", "into", "time", "has", "look", "two", "more", "write", "go", "see", "number", "no", "way", "could",
    "people", "my", "than", "first", "water", "been", "call", "who", "oil", "its", "now", "find", "long", "down", "day",
    "did", "get", "come", "made", "may", "part",
)  # fmt: skip


def random_texts(lengths: Sequence[int], seed: int, tokenizer: Path | None) -> list[str]:
    """Return a text of each length in tokens; one seed gives one list."""
    rng = np.random.default_rng(seed)
    if tokenizer is None:
        return [" ".join(WORDS[i] for i in rng.integers(0, len(WORDS), length)) for length in lengths]
    known = open_tokenizer(tokenizer)
    size = known.get_vocab_size(with_added_tokens=False)
    special = _special_ids(known, tokenizer)
    allowed = np.asarray([i for i in range(size) if i not in special])
    # Lengths would be drawn before the offsets; all being one length, that takes nothing from the generator.
    offsets = rng.integers(0, size, len(lengths))
    return [
        _text_of(known, allowed[(offset + index + np.arange(length)) % len(allowed)].tolist(), rng, size)
        for index, (offset, length) in enumerate(zip(offsets.tolist(), lengths, strict=True))
    ]


def open_tokenizer(folder: Path) -> Tokenizer:
    """Read a folder's tokenizer.json; BadInput when there is none."""
    from tokenizers import Tokenizer

    path = folder / "tokenizer.json"
    if not path.is_file():
        raise BadInput(f"tokenizer {folder}: no tokenizer.json in it: give a model's or tokenizer's folder")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises Exception itself
        raise BadInput(f"{path}: cannot be read: {error}") from None


def _special_ids(tokenizer: Tokenizer, folder: Path) -> set[int]:
    """Return what transformers calls all_special_ids: those that the folder's configuration names a part for.

    More are marked as special in tokenizer.json, and vLLM draws them all the same.
    """
    path = folder / "tokenizer_config.json"
    if not path.is_file():
        return {i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    try:
        stored = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError) as error:
        raise BadInput(f"{path}: cannot be read: {error}") from None
    several = (stored.get(name) or () for name in ("extra_special_tokens", "additional_special_tokens"))
    named = [value for name, value in stored.items() if name.endswith("_token")]
    for more in several:
        named += more.values() if isinstance(more, dict) else more
    texts = [value.get("content") if isinstance(value, dict) else value for value in named]
    ids = (tokenizer.token_to_id(text) for text in texts if isinstance(text, str))
    return {i for i in ids if i is not None}


def _text_of(tokenizer: Tokenizer, ids: list[int], rng: np.random.Generator, size: int) -> str:
    """Return a text that the tokenizer makes so many ids of; nearly so many when TRIES are not enough."""
    length = len(ids)
    text = tokenizer.decode(ids, skip_special_tokens=False)
    for _ in range(TRIES):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        if len(ids) == length:
            break
        ids = ids[:length] if len(ids) > length else ids + rng.integers(0, size, length - len(ids)).tolist()
        text = tokenizer.decode(ids, skip_special_tokens=False)
    return text
