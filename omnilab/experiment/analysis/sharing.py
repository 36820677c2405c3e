"""How effects share out: pairs of toggles that are worth less, or more, together; Shapley values of a factorial."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from omnilab.experiment.analysis.effects import LEVEL, adjusted, effect_of, effect_of_halves, spread, verdict_of
from omnilab.experiment.analysis.findings import (
    SUB_ADDITIVE,
    SUPER_ADDITIVE,
    Attribution,
    Effect,
    Interaction,
    Main,
    Share,
)
from omnilab.experiment.analysis.table import BASE, Array, Table, mean
from omnilab.experiment.design import FACTORIALS
from omnilab.experiment.statistics import contrasts, estimate

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
    found: list[tuple[tuple[str, str], list[float], Effect]] = []
    for first, second in itertools.combinations(names, 2):
        four = [frozenset[str](), frozenset({first}), frozenset({second}), frozenset({first, second})]
        if all(cell in cells for cell in four):
            neither, one, other, both = (columns[cells[cell]] for cell in four)
            per_block = both - one - other + neither
            whole = ~np.isnan(per_block)  # the same blocks for all four
            effect = effect_of(per_block, table.per_block, margin, LEVEL)
            if effect is not None:
                ratios = [math.exp(float((value - neither)[whole].mean())) for value in (one, other, both)]
                found.append(((first, second), ratios, effect))
    effects = adjusted([effect for *_, effect in found], estimate.benjamini_hochberg)
    made = [
        _interaction(table, cells, pair, ratios, effect, primary)
        for (pair, ratios, _), effect in zip(found, effects, strict=True)
    ]
    return tuple(sorted(made, key=lambda one: abs(math.log(one.effect.ratio)), reverse=True))


def _interaction(
    table: Table,
    cells: Mapping[Cell, str],
    pair: tuple[str, str],
    ratios: Sequence[float],
    effect: Effect,
    primary: str,
) -> Interaction:
    first, second, together = ratios
    # The one that matters more comes first: what is the other worth once it is on?
    if abs(math.log(second)) > abs(math.log(first)):
        pair, first, second = (pair[1], pair[0]), second, first
    found = Interaction(
        first=pair[0], second=pair[1], first_alone=first, second_alone=second, together=together,
        expected=first * second, effect=effect, metric=primary, words="",
    )  # fmt: skip
    why = _why(table, cells, *pair) if found.kind == SUB_ADDITIVE else ""
    return replace(found, words=_in_words(found) + why)


def _in_words(found: Interaction) -> str:
    ends = {
        SUB_ADDITIVE: ": together they bring less than the product (they overlap, sub-additive). ",
        SUPER_ADDITIVE: ": together they bring more than the product (super-additive). ",
    }
    return (
        f"{found.first} alone takes it to {found.first_alone:.2f}, {found.second} alone to {found.second_alone:.2f}. "
        f"Both together: {found.together:.2f}; independent effects would have given {found.expected:.2f}. So "
        f"{found.second} is worth {_change(found.second_alone)} alone and "
        f"{_change(found.together / found.first_alone)} once {found.first} is on"
        + ends.get(found.kind, ", a difference that these blocks cannot tell from none. ")
    )


def _change(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %"


def _why(table: Table, cells: Mapping[Cell, str], first: str, second: str) -> str:
    """Name the counter that the second takes away and that the first alone leaves little of."""
    best: tuple[float, str] | None = None
    neither, one, other = (
        _counts(table, cells[cell]) for cell in (frozenset(), frozenset({first}), frozenset({second}))
    )
    for name, before in neither.items():
        after, left = other.get(name, 0.0), one.get(name, 0.0)
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
    """A factorial's effects as one number a block: mains [blocks, toggles] and pairs [blocks] by name.

    `half`: which half of a half-fraction each block tried; None for a full factorial.
    """

    half: NDArray[np.bool_] | None
    toggles: list[str]
    mains: Array
    pairs: dict[tuple[str, str], Array]


def contrasts_of(table: Table, run: Row, cells: Mapping[Cell, str]) -> Contrasts | None:
    """Return main effects and pairs of a full factorial or of alternating half-fractions; None where a cell is missing.

    Half a factorial confounds a main effect with what the other toggles do together, with one sign in one half and the
    other in the other half: over an even number of blocks that cancels.
    """
    toggles = _toggles(run, cells)
    halved = run["design"] == "half-fraction"
    if run["design"] not in FACTORIALS or not toggles or (halved and len(toggles) < contrasts.LEAST_HALVED):
        return None
    grid = contrasts.cells(len(toggles))
    if {_cell(row, toggles) for row in grid.tolist()} - set(cells):
        return None
    halves = contrasts.half_fractions(len(toggles)) if halved else (grid,)
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
    return Contrasts(np.array(table.blocks) % 2 == 0 if halved else None, toggles, mains, pairs)


def _effect_of(column: Array, found: Contrasts, table: Table, margin: float, level: float) -> Effect | None:
    if found.half is None:
        return effect_of(column, table.per_block, margin, level)
    return effect_of_halves(column[found.half], column[~found.half], table.per_block, margin, level)


def mains(table: Table, run: Row, found: Contrasts | None, withheld: str | None) -> tuple[Main, ...]:
    """Return main effects with their verdicts, Holm over the toggles."""
    if found is None:
        return ()
    level = LEVEL / len(found.toggles)
    effects = [_effect_of(column, found, table, run["margin"], level) for column in found.mains.T]
    measured = [(toggle, e) for toggle, e in zip(found.toggles, effects, strict=True) if e is not None]
    known = adjusted([effect for _, effect in measured], estimate.holm)
    return tuple(
        Main(toggle=toggle, effect=effect, verdict=verdict_of(effect, run["primary"], run["margin"], withheld))
        for (toggle, _), effect in zip(measured, known, strict=True)
    )


def pairs(table: Table, run: Row, found: Contrasts | None) -> dict[str, Effect]:
    """Return by "one x other" interactions averaged over the other toggles: exploratory, Benjamini-Hochberg."""
    if found is None:
        return {}
    effects = [_effect_of(column, found, table, run["margin"], LEVEL) for column in found.pairs.values()]
    measured = [(" x ".join(pair), e) for pair, e in zip(found.pairs, effects, strict=True) if e is not None]
    known = adjusted([effect for _, effect in measured], estimate.benjamini_hochberg)
    return {name: effect for (name, _), effect in zip(measured, known, strict=True)}


def attribution(table: Table, run: Row, cells: Mapping[Cell, str], found: Contrasts | None) -> Attribution | None:
    """Return Shapley values of a full factorial; None for half-fractions, or where a cell is missing."""
    if found is None or run["design"] != "factorial":
        return None
    toggles, grid = found.toggles, contrasts.cells(len(found.toggles))
    columns = table.columns(table.logs(run["primary"]))
    values = np.stack([columns[cells[_cell(row, toggles)]] for row in grid.tolist()], axis=1)
    total = values[:, -1] - values[:, 0]
    shapley = contrasts.per_block(values, contrasts.shapley_weights(grid))
    whole_blocks = values[~np.isnan(values).any(1)]
    if len(whole_blocks) < estimate.INTERVAL_BLOCKS:
        return None
    least, greatest = contrasts.order_range(whole_blocks.mean(0))  # the same blocks for every cell
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
    variance = float(np.mean([spread(column) ** 2 for column in found.mains.T]))  # of a main effect
    trial_sd = math.sqrt(variance * len(grid)) / 2
    noise = contrasts.noise_range(trial_sd, len(whole_blocks), len(toggles))
    return Attribution(total=whole, shares=shares, noise_range=noise)


def _toggles(run: Row, cells: Mapping[Cell, str]) -> list[str]:
    order = [toggle for variant in run["variants"] for toggle in variant["toggles"]]
    return sorted({toggle for cell in cells for toggle in cell}, key=order.index)


def _cell(row: Sequence[int], toggles: Sequence[str]) -> Cell:
    return frozenset(toggle for toggle, on in zip(toggles, row, strict=True) if on)
