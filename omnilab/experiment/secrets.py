"""What must not be kept: a run folder is packed and shared, and command lines and environments hold keys."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

NAME = re.compile(r"token|key|secret|passw|credential|auth", re.IGNORECASE)
NOT_A_SECRET = re.compile(r"tokens|tokenizer|keys?pace|author", re.IGNORECASE)  # max_tokens, --tokenizer, ...
IN_URL = re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)")  # user:password
LEAST = 6  # characters of a secret worth looking for in other texts


def is_secret(name: str) -> bool:
    """Does a name say that its value is a secret?"""
    return bool(NAME.search(NOT_A_SECRET.sub("", name)))


def without(text: str, secrets: Sequence[str]) -> str:
    """Return a text with known secrets, and passwords in URLs, as hashes."""
    for secret in secrets:
        text = text.replace(secret, _hash(secret))
    return IN_URL.sub(lambda found: _hash(found[0]), text)


def without_any(value: Any, secrets: Sequence[str]) -> Any:
    """Return a JSON value, its texts at any depth without known secrets."""
    if isinstance(value, str):
        return without(value, secrets)
    if isinstance(value, Mapping):
        return {name: without_any(inner, secrets) for name, inner in value.items()}
    return [without_any(inner, secrets) for inner in value] if isinstance(value, (list, tuple)) else value


def in_words(words: Sequence[str]) -> Iterator[str]:
    """Give the secrets of a command line: after --api-key, in --api-key=..., in API_KEY=...."""
    for word, before in zip(words, ("", *words), strict=False):
        name, equals, value = word.partition("=")
        if equals and is_secret(name):
            yield value
        elif before.startswith("-") and "=" not in before and is_secret(before) and not word.startswith("-"):
            yield word


def in_mapping(values: Mapping[str, Any]) -> Iterator[str]:
    """Give the secrets of an environment, or of a body, at any depth."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from in_mapping(value)
        elif isinstance(value, str) and is_secret(name):
            yield value


def worth(secrets: Iterator[str]) -> list[str]:
    """Return those long enough to be looked for, the longest first: one may be a part of another."""
    return sorted({secret for secret in secrets if len(secret) >= LEAST}, key=len, reverse=True)


def _hash(secret: str) -> str:
    return f"(hidden {hashlib.sha256(secret.encode()).hexdigest()[:8]})"
