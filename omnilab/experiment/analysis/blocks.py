"""How many blocks a run has: fixed before it, sized once from its noise, or looked at three times; never otherwise.

A rule is a function of the rows, so that a resumed run agrees with one that was not interrupted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np

from omnilab.experiment import gate
from omnilab.experiment.analysis.effects import LEVEL, Comparison, looked
from omnilab.experiment.analysis.table import Table
from omnilab.experiment.statistics import power
from omnilab.experiment.statistics.estimate import LEAST_BLOCKS

Row: TypeAlias = Mapping[str, Any]
MOST_SIZED = 30


class BlockRule(Protocol):
    """Says after each block how many there shall be."""

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

    def __str__(self) -> str:
        """Say it."""
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

    def __str__(self) -> str:
        """Say it."""
        return f"{self.blocks} blocks"


@dataclass(frozen=True, slots=True)
class SizedByNoise:
    """Sized once after five blocks, from their noise alone, to see an effect of `target` (0.03: 3 %)."""

    target: float
    first: int = LEAST_BLOCKS
    most: int = MOST_SIZED

    def needed(self, run: Row, lines: Sequence[Row], done: int) -> int:
        """Return 5, and from then on what the noise of the first five asks for."""
        if done < self.first:
            return self.first
        early = Table(run, [line for line in lines if line["block"] < self.first])
        columns = early.columns(early.logs(run["primary"]))
        several = [early.against(columns, v["name"], v["against"]) for v in run["variants"][1:]]
        known = [one for one in several if np.count_nonzero(~np.isnan(one)) > 1]
        if not known:
            return self.first  # nothing can be compared: more blocks would not help
        variance = float(np.mean([np.nanvar(one, ddof=1) for one in known]))
        level = LEVEL / max(1, len(run["variants"]) - 1)
        return power.blocks_after_five(variance, float(np.log1p(self.target)), level, early.per_block, self.most)

    def to_dict(self) -> dict[str, Any]:
        """Return it for run.json."""
        return {"rule": "noise", "first": self.first, "most": self.most, "target": self.target}

    def __str__(self) -> str:
        """Say it."""
        return (
            f"{self.first} blocks, then sized once from their noise alone to see {100 * self.target:.3g} %, "
            f"at most {self.most}"
        )


@dataclass(frozen=True, slots=True)
class Looks:
    """Looked at after 5, 7 and 10 blocks; it ends when every verdict is in, at levels that three looks share."""

    first: int = min(power.LOOKS)
    most: int = max(power.LOOKS)

    def needed(self, run: Row, lines: Sequence[Row], done: int) -> int:
        """Return the blocks until the next look, or those done when all is decided."""
        if done < self.first:
            return self.first
        reached = max(blocks for blocks in power.LOOKS if blocks <= done)
        early = [line for line in lines if line["block"] < reached]
        out = gate.stopped(run, early)
        compared = [Comparison(v["name"], v["against"], True) for v in run["variants"][1:] if v["name"] not in out]
        table = Table(run, early)
        if all(looked(table, compared, run["primary"]).values()):
            return reached
        return min((blocks for blocks in power.LOOKS if blocks > reached), default=reached)

    def to_dict(self) -> dict[str, Any]:
        """Return it for run.json, levels included."""
        levels = {str(blocks): {str(m): level for m, level in by.items()} for blocks, by in power.LOOKS.items()}
        return {"rule": "looks", "first": self.first, "most": self.most, "levels": levels}

    def __str__(self) -> str:
        """Say it."""
        return f"looks after {', '.join(map(str, power.LOOKS))} blocks at levels that they share"


def planned_blocks(run: Row, lines: Sequence[Row]) -> int:
    """Return how many blocks a run shall have, as far as its rows say."""
    sized = [line["blocks"] for line in lines if line["kind"] == "sized"]
    return sized[-1] if sized else run["rule"]["first"]


def rule_from(stored: Row) -> BlockRule:
    """Return the rule that `to_dict` wrote."""
    made = {"noise": lambda: SizedByNoise(stored["target"]), "looks": Looks}
    return made.get(stored["rule"], lambda: Fixed(stored["first"]))()
