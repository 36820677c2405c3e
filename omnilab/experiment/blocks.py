"""How many blocks a run has: fixed before it, sized once from its noise, or looked at three times; never otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from omnilab.errors import BadInput

if TYPE_CHECKING:
    from omnilab.experiment.experiment import Experiment

LEAST = 3  # below that there is no interval worth printing
DEFAULT = 5
Row = Mapping[str, Any]


class BlockRule(Protocol):
    """Says after each block whether another one follows. A function of the rows, so that a resumed run agrees."""

    @property
    def first(self) -> int:
        """Blocks that are done in any case."""
        ...

    @property
    def most(self) -> int:
        """Blocks that are never exceeded."""
        ...

    def needed(self, run: Row, lines: Sequence[Row], done: int) -> int:
        """Return how many blocks there shall be, knowing the rows of `done` whole ones."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """Return it for run.json."""
        ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """A number that was fixed before the run."""

    blocks: int

    @property
    def first(self) -> int:
        """All of them."""
        return self.blocks

    @property
    def most(self) -> int:
        """All of them."""
        return self.blocks

    def needed(self, run: Row, lines: Sequence[Row], done: int) -> int:  # noqa: ARG002 (the protocol's)
        """Return the number."""
        return self.blocks

    def to_dict(self) -> dict[str, Any]:
        """Return it for run.json."""
        return {"rule": "fixed", "first": self.blocks, "most": self.blocks}


def rule_of(experiment: Experiment) -> BlockRule:
    """Return the rule an experiment asks for; BadInput says what is wrong with it."""
    blocks = DEFAULT if experiment.blocks is None else experiment.blocks
    if isinstance(blocks, bool) or not isinstance(blocks, int) or blocks < LEAST:
        raise BadInput(f"blocks: must be {LEAST} or more (5 or more for a verdict), not {blocks}")
    return Fixed(blocks)
