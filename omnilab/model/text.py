"""Token ids to text as they come: a character split over tokens waits until it is whole."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from omnilab.model.inputs import InputProcessor


def _byte_of_character() -> dict[str, int]:
    """Invert the printable alphabet of byte-level vocabularies."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return {chr(byte if byte in printable else next(others)): byte for byte in range(256)}


class TextStream:
    """The text of one answer; all that it returns, joined, is the text of all ids. Special tokens are left out."""

    def __init__(self, processor: InputProcessor) -> None:
        self._tokenizer: Any = processor.tokenizer
        self._special = processor.special_ids
        self._added = {i: str(token) for i, token in self._tokenizer.added_tokens_decoder.items()}
        self._bytes = _byte_of_character()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_ids: Sequence[int]) -> str:
        """Take the next ids; return the text that is complete by now."""
        return self._decoder.decode(b"".join(self._bytes_of(token) for token in token_ids))

    def flush(self) -> str:
        """Return what was held back; a torn character becomes the replacement character."""
        rest = self._decoder.decode(b"", True)
        self._decoder.reset()
        return rest

    def _bytes_of(self, token: int) -> bytes:
        if token in self._special:
            return b""
        if token in self._added:
            return self._added[token].encode()
        piece = self._tokenizer.convert_ids_to_tokens(token)
        if piece is None:  # the model's vocabulary may be padded beyond the tokenizer's
            return b""
        return bytes(self._bytes[character] for character in piece)
