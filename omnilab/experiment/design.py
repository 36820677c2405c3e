"""Designs: which variants to try, and what each is compared with. Pure functions over toggles; no torch."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, TypeAlias

from omnilab.errors import BadInput, ToggleConflict, ToggleUnavailable
from omnilab.toggle import EXACT_ALL, Toggle

Toggles: TypeAlias = tuple[Toggle[Any], ...]
BASELINE = "baseline"
AGAIN = " (A/A)"  # the baseline's second trial in a block
MOST_FACTORS, LEAST_HALVED = 6, 4  # 64 cells; below 4, half of the cells confound a toggle with a pair of others


@dataclass(frozen=True, slots=True)
class Variant:
    """A named set of toggles over the base recipe, and the variant it is compared with (None: the baseline itself).

    `keeps`: of tokens, codes and samples, what stays equal to the baseline's whatever the toggles; an arm has no codes.
    """

    name: str
    toggles: Toggles = ()
    against: str | None = None
    keeps: frozenset[str] = EXACT_ALL

    @property
    def exact(self) -> frozenset[str]:
        """What stays equal to the baseline's: only what every toggle keeps."""
        return self.keeps.intersection(*(toggle.exact for toggle in self.toggles))

    @property
    def tolerance(self) -> float:
        """Least signal-to-difference ratio of samples in dB."""
        return min((toggle.tolerance for toggle in self.toggles), default=90.0)


def one_at_a_time(toggles: Toggles) -> list[Variant]:
    """Each toggle alone; one that requires others is compared with those others on."""
    variants = {BASELINE: Variant(BASELINE)}
    for toggle in toggles:
        below = required(toggle, toggles)
        floor = label(below)
        variants.setdefault(floor, Variant(floor, below, BASELINE))
        name = label((*below, toggle))
        variants.setdefault(name, Variant(name, (*below, toggle), floor))
    return list(variants.values())


def leave_one_out(toggles: Toggles) -> list[Variant]:
    """All on, and all on but one, compared with all; what requires the missing one goes too, on both sides."""
    variants = {BASELINE: Variant(BASELINE), "all": Variant("all", toggles, BASELINE)}
    for toggle in toggles:
        gone = [other for other in toggles if toggle in required(other, toggles)]
        kept = tuple(other for other in toggles if other not in gone)
        full = "all" + "".join(f" - {other.name}" for other in gone)
        variants.setdefault(full, Variant(full, kept, "all"))
        name = f"{full} - {toggle.name}"
        variants[name] = Variant(name, tuple(other for other in kept if other is not toggle), full)
    return list(variants.values())


def factorial(toggles: Toggles) -> list[Variant]:
    """Every combination that respects what toggles require, each compared with the baseline."""
    if len(toggles) > MOST_FACTORS:
        raise BadInput(f"design: factorial takes at most {MOST_FACTORS} toggles, not {len(toggles)}")
    variants = []
    for count in range(len(toggles) + 1):
        for chosen in itertools.combinations(toggles, count):
            if all(other in chosen for toggle in chosen for other in required(toggle, toggles)):
                variants.append(Variant(label(chosen), chosen, BASELINE if chosen else None))
    return variants


def half_fraction(toggles: Toggles) -> list[Variant]:
    """Every combination, in alternating blocks: an even number of toggles on, then an odd number."""
    if len(toggles) < LEAST_HALVED:
        raise BadInput(f"design: half-fraction takes {LEAST_HALVED} toggles or more, not {len(toggles)}; use factorial")
    variants = factorial(toggles)
    if len(variants) != 2 ** len(toggles):
        raise BadInput("design: half-fraction cannot leave out what toggles require; use factorial or ladder")
    return variants


def in_block(design: str, variant: Variant, block: int) -> bool:
    """Is a variant tried in a block? In half-fractions by the number of its toggles, otherwise always."""
    return design != "half-fraction" or not variant.toggles or len(variant.toggles) % 2 == block % 2


def together(toggles: Toggles) -> list[Variant]:
    """All on at once, and nothing else."""
    return [Variant(BASELINE), Variant(label(toggles), toggles, BASELINE)]


def ladder(toggles: Toggles) -> list[Variant]:
    """Toggles added one after another in the given order, each rung compared with the one below."""
    rungs = [Variant(BASELINE)]
    for count, toggle in enumerate(toggles, 1):
        if missing := [other.name for other in required(toggle, toggles) if other not in toggles[:count]]:
            raise BadInput(f"design: on a ladder {toggle.name} must come after {', '.join(missing)}")
        rungs.append(Variant(f"+ {toggle.name}", toggles[:count], rungs[-1].name))
    return rungs


FACTORIALS = ("factorial", "half-fraction")  # the verdicts are on main effects, not on single variants
Design: TypeAlias = Callable[[Toggles], list[Variant]]
DESIGNS: Mapping[str, Design] = MappingProxyType(
    {
        "one-at-a-time": one_at_a_time,
        "leave-one-out": leave_one_out,
        "factorial": factorial,
        "half-fraction": half_fraction,
        "ladder": ladder,
        "together": together,
    }
)


def design_named(name: str) -> Design:
    """Return a design; BadInput names those there are."""
    if name not in DESIGNS:
        raise BadInput(f"design: no {name!r}; there are {', '.join(DESIGNS)}")
    return DESIGNS[name]


def label(toggles: Toggles) -> str:
    """Name a set of toggles."""
    return " + ".join(toggle.name for toggle in toggles) or BASELINE


def required(toggle: Toggle[Any], toggles: Toggles) -> Toggles:
    """Return what a toggle requires, directly or not, in the order of `toggles`; raise ToggleUnavailable if missing."""
    by_name = {other.name: other for other in toggles}
    wanted: set[str] = set()
    open_names = list(toggle.requires)
    while open_names:
        name = open_names.pop()
        if name not in by_name:
            raise ToggleUnavailable(f"{toggle.name} requires {name}: add it to the toggles")
        if name not in wanted:
            wanted.add(name)
            open_names.extend(by_name[name].requires)
    return tuple(other for other in toggles if other.name in wanted)


def refuse_conflicts(toggles: Toggles) -> None:
    """Raise ToggleConflict when two toggles fill one seam."""
    filled: dict[str, Toggle[Any]] = {}
    for toggle in toggles:
        if (other := filled.get(toggle.seam)) is not None:
            raise ToggleConflict(
                f"{other.name} and {toggle.name} both fill the seam {toggle.seam}: choose one, or list variants"
            )
        filled[toggle.seam] = toggle


def named_after(variants: Sequence[Variant], baseline: str) -> list[Variant]:
    """Return the variants with the baseline under its own name. BadInput when a comparison leads nowhere."""
    names = [variant.name for variant in variants]
    if twice := {name for name in names if names.count(name) > 1}:
        raise BadInput(f"variants: {', '.join(sorted(twice))} is there twice")
    first = [variant.name for variant in variants if not variant.toggles]
    if len(first) != 1:
        raise BadInput("variants: exactly one must have no toggles: the baseline")
    for variant in variants:
        refuse_conflicts(variant.toggles)
        if variant.toggles and variant.against not in names:
            raise BadInput(f"variants: {variant.name} is compared with {variant.against!r}, which is not among them")
    renamed = {first[0]: baseline}
    return [
        replace(v, name=renamed.get(v.name, v.name), against=renamed.get(v.against, v.against) if v.against else None)
        for v in variants
    ]
