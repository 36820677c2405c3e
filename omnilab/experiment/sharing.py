"""How effects share out: pairs of toggles that are worth less, or more, together; Shapley values of a factorial."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from omnilab.experiment import contrasts, estimate
from omnilab.experiment.design import FACTORIALS
from omnilab.experiment.effects import LEVEL, effect_of, spread, verdict_of
from omnilab.experiment.findings import Attribution, Effect, Interaction, Main, Share
from omnilab.experiment.table import BASE, Array, Table, mean

Row: TypeAlias = Mapping[str, Any]
Cell: TypeAlias = frozenset[str]


def cells_of(run: Row, stopped: set[str]) -> dict[Cell, str]:
    """Return the column of each set of toggles that was measured over the baseline and not stopped by the gate."""
    found: dict[Cell, str] = {frozenset(): BASE}
    for variant in run["variants"][1:]:
        if variant["name"] not in stopped:
            found.setdefault(frozenset(variant["toggles"]), variant["name"])
    return found


def interactions(table: Table, cells: Mapping[Cell, str], primary: str, margin: float) -> tuple[Interaction, ...]:
    """Return every pair whose four cells were measured, strongest first. Exploratory, Benjamini-Hochberg over pairs."""
    columns = table.columns(table.logs(primary))
    names = sorted({toggle for cell in cells for toggle in cell})
    found: list[Interaction] = []
    for pair in itertools.combinations(names, 2):
        four = [frozenset(), frozenset(pair[:1]), frozenset(pair[1:]), frozenset(pair)]
        if all(cell in cells for cell in four):
            neither, first, second, both = (columns[cells[cell]] for cell in four)
            effect = effect_of(both - first - second + neither, table.per_block, margin, LEVEL)
            alone = [_ratio(value - neither) for value in (first, second, both)]
            if effect is not None and all(ratio is not None for ratio in alone):
                found.append(_interaction(table, cells, pair, alone, effect))
    adjusted = (
        estimate.benjamini_hochberg([math.nan if f.effect.p is None else f.effect.p for f in found]) if found else []
    )
    known = [
        replace(f, effect=replace(f.effect, p_adjusted=None if math.isnan(p) else float(p)))
        for f, p in zip(found, adjusted, strict=True)
    ]
    return tuple(sorted(known, key=lambda f: abs(math.log(f.effect.ratio)), reverse=True))


def _ratio(per_block: Array) -> float | None:
    known = per_block[~np.isnan(per_block)]
    return math.exp(float(known.mean())) if len(known) else None


def _interaction(
    table: Table, cells: Mapping[Cell, str], pair: tuple[str, ...], alone: Sequence[float | None], effect: Effect
) -> Interaction:
    first, second, together = (float(ratio or math.nan) for ratio in alone)
    # The one that matters more comes first: what is the other worth once it is on?
    if abs(math.log(second)) > abs(math.log(first)):
        pair, first, second = pair[::-1], second, first
    words = _in_words(pair[0], pair[1], first, second, together, effect) + _why(table, cells, pair[0], pair[1])
    return Interaction(
        first=pair[0], second=pair[1], first_alone=first, second_alone=second, together=together,
        expected=first * second, effect=effect, words=words,
    )  # fmt: skip


def _in_words(first: str, second: str, first_alone: float, second_alone: float, together: float, effect: Effect) -> str:
    left = together / first_alone
    said = (
        f"{first} alone takes it to {first_alone:.2f}, {second} alone to {second_alone:.2f}. Both together: "
        f"{together:.2f}; independent effects would have given {first_alone * second_alone:.2f}. So {second} is worth "
        f"{_change(second_alone)} alone and {_change(left)} once {first} is on"
    )
    if not effect.excludes_one():
        return said + ", a difference that these blocks cannot tell from none. "
    return said + (": they overlap (sub-additive). " if _shrinks(second_alone, left) else ": they help each other. ")


def _shrinks(alone: float, left: float) -> bool:
    return abs(math.log(left)) < abs(math.log(alone)) or (alone < 1) != (left < 1)


def _change(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %"


def _why(table: Table, cells: Mapping[Cell, str], first: str, second: str) -> str:
    """Name the counter that the second takes away and that the first alone leaves little of."""
    best: tuple[float, str] | None = None
    counts = {key: _counts(table, cells[cell]) for key, cell in
              (("neither", frozenset()), ("first", frozenset({first})), ("second", frozenset({second})))}  # fmt: skip
    for name, before in counts["neither"].items():
        after, left = counts["second"].get(name, 0.0), counts["first"].get(name, 0.0)
        if before >= 1000 and after < 0.5 * before and left < 0.5 * before:
            size = (before - after) * (before - left) / before**2
            words = (
                f"Why: {name.rsplit('/', 1)[-1]} is {before:,.0f} with neither, {after:,.0f} with {second} alone, and "
                f"already {left:,.0f} with {first} alone: there is little left to take away."
            )
            if best is None or size > best[0]:
                best = (size, words)
    return "" if best is None else best[1]


def _counts(table: Table, column: str) -> dict[str, float]:
    rows = table.of(table.baseline if column == BASE else column)
    names = sorted({name for row in rows for name in row["counters"]})
    return {name: mean([row["counters"].get(name, 0) for row in rows]) or 0.0 for name in names}


@dataclass(frozen=True, slots=True)
class Contrasts:
    """A factorial's effects as one number a block: mains [blocks, toggles] and pairs [blocks, pairs]."""

    toggles: list[str]
    mains: Array
    pairs: dict[tuple[str, str], Array]


def contrasts_of(table: Table, run: Row, cells: Mapping[Cell, str]) -> Contrasts | None:
    """Return main effects and pairs of a full factorial or of alternating half-fractions; None where a cell is missing.

    Half a factorial confounds a main effect with what the other toggles do together, with one sign in one half and the
    other in the other half: over an even number of blocks that cancels.
    """
    toggles = _toggles(run, cells)
    if run["design"] not in FACTORIALS or len(toggles) < 2:
        return None
    grid = contrasts.cells(len(toggles))
    halves = contrasts.half_fractions(len(toggles)) if run["design"] == "half-fraction" else (grid,)
    if {_cell(row, toggles) for row in grid.tolist()} - set(cells):
        return None
    columns = table.columns(table.logs(run["primary"]))
    mains = np.full((len(table.blocks), len(toggles)), np.nan)
    pairs: dict[tuple[str, str], Array] = {}
    for half in halves:
        # In half-fractions the first half has an even number of toggles on: that of even blocks.
        even = len(halves) == 1 or not int(half[0].sum()) % 2
        here = [i for i, block in enumerate(table.blocks) if len(halves) == 1 or (block % 2 == 0) == even]
        values = np.stack([columns[cells[_cell(row, toggles)]] for row in half.tolist()], axis=1)[here]
        subsets, weights = contrasts.factorial_weights(half)
        mains[here] = contrasts.per_block(values, weights[:, [subsets.index((j,)) for j in range(len(toggles))]])
        names, pair_weights = contrasts.interaction_weights(half)
        for (first, second), column in zip(names, contrasts.per_block(values, pair_weights).T, strict=True):
            key = (toggles[first], toggles[second])
            pairs.setdefault(key, np.full(len(table.blocks), np.nan))[here] = column
    return Contrasts(toggles, mains, pairs)


def mains(table: Table, run: Row, found: Contrasts | None, withheld: bool) -> tuple[Main, ...]:
    """Return main effects with their verdicts, Holm over the toggles."""
    if found is None:
        return ()
    level = LEVEL / len(found.toggles)
    effects = [effect_of(column, table.per_block, run["margin"], level) for column in found.mains.T]
    known = _adjusted(effects, estimate.holm)
    return tuple(
        Main(toggle=t, effect=e, verdict=verdict_of(e, run["primary"], run["margin"], withheld))
        for t, e in zip(found.toggles, known, strict=True)
        if e is not None
    )


def pairs(table: Table, run: Row, found: Contrasts | None) -> dict[tuple[str, str], Effect]:
    """Return interactions averaged over the other toggles: exploratory, Benjamini-Hochberg."""
    if found is None:
        return {}
    effects = [effect_of(column, table.per_block, run["margin"], LEVEL) for column in found.pairs.values()]
    known = _adjusted(effects, estimate.benjamini_hochberg)
    return {pair: effect for pair, effect in zip(found.pairs, known, strict=True) if effect is not None}


def _adjusted(effects: Sequence[Effect | None], adjust: Callable[[list[float]], Array]) -> list[Effect | None]:
    p = adjust([math.nan if e is None or e.p is None else e.p for e in effects])
    return [
        e if e is None else replace(e, p_adjusted=None if math.isnan(value) else float(value))
        for e, value in zip(effects, p, strict=True)
    ]


def attribution(table: Table, run: Row, cells: Mapping[Cell, str], found: Contrasts | None) -> Attribution | None:
    """Return Shapley values of a full factorial; None for half-fractions, or where a cell is missing."""
    if found is None or run["design"] != "factorial":
        return None
    toggles, grid = found.toggles, contrasts.cells(len(found.toggles))
    columns = table.columns(table.logs(run["primary"]))
    values = np.stack([columns[cells[_cell(row, toggles)]] for row in grid.tolist()], axis=1)
    total = values[:, -1] - values[:, 0]
    shapley = contrasts.per_block(values, contrasts.shapley_weights(grid))
    least, greatest = contrasts.order_range(np.nanmean(values, axis=0))
    effects = [
        [effect_of(column[:, j], table.per_block, run["margin"], LEVEL) for column in (found.mains, shapley)]
        for j in range(len(toggles))
    ]
    whole = effect_of(total, table.per_block, run["margin"], LEVEL)
    if whole is None or any(effect is None for pair in effects for effect in pair):
        return None
    shares = tuple(
        Share(
            toggle=toggle, main=main, shapley=value, least=math.exp(least[j]), greatest=math.exp(greatest[j]),
            share=estimate.fieller_share(shapley[:, j], total, table.per_block),
        )
        for j, (toggle, (main, value)) in enumerate(zip(toggles, effects, strict=True))
        if main is not None and value is not None
    )  # fmt: skip
    trial_sd = spread(found.mains[:, 0]) * math.sqrt(len(grid)) / 2
    noise = contrasts.noise_range(trial_sd, len(values), len(toggles))
    return Attribution(total=whole, shares=shares, noise_range=noise)


def _toggles(run: Row, cells: Mapping[Cell, str]) -> list[str]:
    order = [toggle for variant in run["variants"] for toggle in variant["toggles"]]
    return sorted({toggle for cell in cells for toggle in cell}, key=order.index)


def _cell(row: Sequence[int], toggles: Sequence[str]) -> Cell:
    return frozenset(toggle for toggle, on in zip(toggles, row, strict=True) if on)
