"""What a toggle is: two interchangeable implementations of one seam, and a claim."""

from __future__ import annotations

import hashlib
import inspect
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")

EXACT_ALL = frozenset({"tokens", "codes", "samples"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Toggle(Generic[T]):
    """One optimization: `baseline` and `optimized` fill the same seam of a recipe.

    `exact` names what stays equal to the baseline's: of tokens, codes and samples. `tolerance` is the least
    signal-to-difference ratio in dB where samples are compared in float32. `requires` names toggles that must be on
    too. `fresh_process` means the stages restart when it changes.
    """

    name: str
    seam: str
    baseline: T
    optimized: T
    claim: str
    exact: frozenset[str] = EXACT_ALL
    tolerance: float = 90.0
    requires: tuple[str, ...] = ()
    fresh_process: bool = False


def occupant_name(occupant: Any) -> str:
    """Return a readable name of what fills a seam."""
    inner = getattr(occupant, "func", occupant)  # functools.partial
    return getattr(inner, "__qualname__", type(inner).__qualname__)


def source_hash(occupant: Any) -> str:
    """Hash the source of what fills a seam, so that a process can prove which code is in force.

    Where no source can be read (a toggle typed into a cell that has travelled by value) the code object is hashed.
    """
    inner = getattr(occupant, "func", occupant)
    inner = inner if inspect.isroutine(inner) or inspect.isclass(inner) else type(inner)
    try:
        text = inspect.getsource(inner)
    except (OSError, TypeError):
        text = _code_text(inner)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _code_text(inner: Any) -> str:
    if inspect.isclass(inner):
        return inner.__qualname__ + "".join(_code_text(v) for v in vars(inner).values() if inspect.isfunction(v))
    code = getattr(inner, "__code__", None)
    return f"{code.co_name}{code.co_code.hex()}{code.co_consts}" if code else repr(inner)
