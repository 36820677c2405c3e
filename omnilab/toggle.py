"""What a toggle is: two interchangeable implementations of one seam, and a claim."""

from __future__ import annotations

import hashlib
import inspect
import sys
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType
from typing import Any, Generic, TypeVar

from cloudpickle import list_registry_pickle_by_value

from omnilab import show

T = TypeVar("T")

EXACT_ALL = frozenset({"tokens", "codes", "samples"})


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Toggle(Generic[T]):
    """One optimization: `baseline` and `optimized` fill the same seam of a recipe.

    `exact` names what stays equal to the baseline's: of tokens, codes and samples. `tolerance` is the least
    signal-to-difference ratio in dB where samples are compared in float32. `requires` names toggles that must be on
    too, `needs` the device type without which it cannot run. `fresh_process` means the stages restart when it changes.
    """

    name: str
    seam: str
    baseline: T
    optimized: T
    claim: str
    exact: frozenset[str] = EXACT_ALL
    tolerance: float = 90.0
    requires: tuple[str, ...] = ()
    needs: str | None = None
    fresh_process: bool = False

    def __repr__(self) -> str:
        """Return one line."""
        sides = f"{occupant_name(self.baseline)} -> {occupant_name(self.optimized)}"
        return f"<Toggle {self.name}, seam {self.seam}: {sides}>"

    def _repr_html_(self) -> str:
        """Return claim, seam and both sides as HTML."""
        rows = [
            ["seam", self.seam],
            ["baseline", occupant_name(self.baseline)],
            ["optimized", occupant_name(self.optimized)],
            ["stays equal", ", ".join(sorted(self.exact)) or "the work alone"],
        ]
        rows += [["requires", ", ".join(self.requires)]] * bool(self.requires) + [["needs", self.needs or ""]] * bool(
            self.needs
        )
        return show.frame(show.heading(self.name), show.line(self.claim), show.table(["", ""], rows, left=2))


def occupant_name(occupant: Any) -> str:
    """Return a readable name of what fills a seam."""
    inner = getattr(occupant, "func", occupant)  # functools.partial
    return getattr(inner, "__qualname__", type(inner).__qualname__)


def source_hash(occupant: Any) -> str:
    """Hash the code of what fills a seam, so that a process can prove what is in force in it.

    Of a module's function or class the source is hashed. What was typed into a notebook cell or a script travels by
    value, and its source stays behind: there the compiled code is hashed, which is the same on both sides.
    """
    inner = getattr(occupant, "func", occupant)
    return _hash_of(inner if inspect.isroutine(inner) or inspect.isclass(inner) else type(inner))


@lru_cache(maxsize=256)
def _hash_of(inner: Any) -> str:
    text = _code_text(inner) if _travels_by_value(inner) else inspect.getsource(inner)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _travels_by_value(inner: Any) -> bool:
    """Will cloudpickle take the code along, or will the other process import it?"""
    module = sys.modules.get(inner.__module__)
    by_value = inner.__module__ in list_registry_pickle_by_value()
    return inner.__module__ == "__main__" or by_value or getattr(module, "__file__", None) is None


def _code_text(inner: Any) -> str:
    if inspect.isclass(inner):
        functions = {name: value for name, value in vars(inner).items() if inspect.isfunction(value)}
        return inner.__qualname__ + "".join(name + _code_of(f.__code__) for name, f in sorted(functions.items()))
    code = getattr(inner, "__code__", None)
    return _code_of(code) if code is not None else repr(inner)


def _code_of(code: CodeType) -> str:
    """Return what a code object does, without where it stands."""
    constants = [_constant(value) for value in code.co_consts]
    return f"{code.co_name} {code.co_code.hex()} {code.co_names} {code.co_varnames} {constants}"


def _constant(value: Any) -> str:
    if isinstance(value, CodeType):
        return _code_of(value)
    if isinstance(value, frozenset):  # its order differs from process to process
        return repr(sorted(map(repr, value)))
    return repr(value)
