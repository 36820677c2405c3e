"""What a panel asks for, as values: recipes by what differs from a named one, the workload, and both as code."""

from __future__ import annotations

import inspect
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from omnilab.pipeline import Pipeline
from omnilab.recipe import Recipe, recipe_with
from omnilab.recipes import NAMED, difference, recipe_named
from omnilab.toggle import Toggle, occupant_name
from omnilab.toggles import TOGGLES
from omnilab.workload import Workload


@dataclass(frozen=True, slots=True)
class Choice:
    """A recipe as it was chosen: a named one, and what fills the seams that differ. `own` are toggles not listed."""

    base: str = "BEFORE_1378"
    seams: Mapping[str, Any] = field(default_factory=dict)
    own: tuple[Toggle[Any], ...] = ()

    def recipe(self) -> Recipe:
        """Return the recipe; ToggleUnavailable where a toggle lacks what it requires."""
        return recipe_with(*self.toggles(), base=replace(recipe_named(self.base), **self._untoggled()))

    def toggles(self) -> tuple[Toggle[Any], ...]:
        """Return the toggles that are on over the base."""
        known = (*TOGGLES, *self.own)
        return tuple(t for t in known if self.seams.get(t.seam) is t.optimized)

    def name(self) -> str:
        """Name it by what is on, or after the recipe that it is."""
        over = "" if self.base == "BEFORE_1378" else f"{self.base} with "
        return over + " + ".join(self._named()) if self.seams else self.base

    def code(self) -> str:
        """Return the expression that makes it."""
        base, swapped = f"recipes.{self.base}", self._untoggled()
        if swapped:
            base = (
                f"replace({base}, {', '.join(f'{seam}={occupant.__qualname__}' for seam, occupant in swapped.items())})"
            )
        names = [variable(t.name) if t in self.own else f'"{t.name}"' for t in self.toggles()]
        return f"recipe_with({', '.join(names)}, base={base})" if names else base

    def imports(self) -> list[str]:
        """Return the import lines that its code needs beside omnilab's names."""
        swapped = [f"from {o.__module__} import {o.__qualname__}" for o in self._untoggled().values()]
        return [*(["from dataclasses import replace"] if swapped else []), *sorted(swapped)]

    def _untoggled(self) -> dict[str, Any]:
        on = {toggle.seam for toggle in self.toggles()}
        return {seam: occupant for seam, occupant in self.seams.items() if seam not in on}

    def _named(self) -> list[str]:
        swapped = [f"{seam}={occupant_name(occupant)}" for seam, occupant in self._untoggled().items()]
        return [*(toggle.name for toggle in self.toggles()), *swapped]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One press of Run: `chosen` over `against` on a workload of random prompts, so many pairs."""

    against: Choice
    chosen: Choice
    input_len: int
    output_len: int
    num_prompts: int
    max_concurrency: int
    seed: int
    pairs: int

    def workload(self) -> Workload:
        """Return the workload; BadInput names what is wrong."""
        return Workload.random(**self._lengths())

    def code(self, opened: Mapping[str, Any]) -> str:
        """Return Python that does the same; `opened` are the arguments the pipeline was opened with."""
        lengths = ", ".join(f"{name}={value}" for name, value in self._lengths().items())
        given = ", ".join([json.dumps(str(opened.get("model", "thin"))), "recipe=base", *_settings(opened)])
        lines = dict.fromkeys([*self.against.imports(), *self.chosen.imports()])
        own = {t.name for c in (self.against, self.chosen) for t in c.toggles() if t in c.own}
        return "\n".join([
            *(f'# {variable(name)} is your Toggle "{name}", as it was given to the panel' for name in sorted(own)),
            *lines,
            *([""] if lines else []),
            "from omnilab import Pipeline, Workload, recipe_with, recipes",
            "from omnilab.experiment.paired import paired",
            "",
            f"base = {self.against.code()}",
            f"other = {self.chosen.code()}",
            f"workload = Workload.random({lengths})",
            f"with Pipeline.open({given}) as pipe:",
            f"    result = paired(pipe, base, other, workload, pairs={self.pairs})",
            "print(result)",
        ])  # fmt: skip

    def command(self, opened: Mapping[str, Any]) -> str:
        """Return the command line of the protocol for the same question, or a comment that says why there is none."""
        why = self._not_listed(opened)
        if why:
            return f"# no command line: {why}; use the code"
        toggles = difference(self.chosen.recipe(), self.against.recipe())
        words = ["python", "-m", "omnilab.ablate", "--model", str(opened.get("model", "thin"))]
        if opened.get("device", "auto") != "auto":
            words += ["--device", str(opened["device"])]
        words += ["--base", self.against.base, "--toggles", ",".join(t.name for t in toggles), "--design", "together"]
        for name, value in self._lengths().items():
            words += [f"--{name.replace('_', '-')}", str(value)]
        return shlex.join([*words, "--blocks", str(max(self.pairs, 3))])

    def _lengths(self) -> dict[str, int]:
        return {
            "num_prompts": self.num_prompts, "input_len": self.input_len, "output_len": self.output_len,
            "max_concurrency": self.max_concurrency, "seed": self.seed,
        }  # fmt: skip

    def _not_listed(self, opened: Mapping[str, Any]) -> str:
        if self.against.seams:
            return f"{self.against.name()} is no named recipe"
        toggles = difference(self.chosen.recipe(), self.against.recipe())
        if not toggles:
            return "both sides are the same recipe"
        if unlisted := [t.name for t in toggles if t not in TOGGLES]:
            return f"{', '.join(unlisted)} is no listed toggle"
        if opened.get("topology", "processes") != "processes":
            return f"the protocol runs stages as processes, not {opened['topology']}"
        if isinstance(opened.get("device"), Mapping):
            return "the device differs by stage"
        listed = ("device=", "topology=", "timeout_s=")  # how long one waits is no part of the question
        others = [said for said in _settings(opened) if not said.startswith(listed)]
        return f"the protocol has no option for {', '.join(others)}" if others else ""


def occupants(toggles: Sequence[Toggle[Any]]) -> dict[str, list[Any]]:
    """Return by seam all that may fill it: both sides of the toggles, and what named recipes have there."""
    found: dict[str, list[Any]] = {seam.name: [seam.default] for seam in fields(Recipe)}
    for toggle in toggles:
        found[toggle.seam] += [toggle.baseline, toggle.optimized]
    for recipe in NAMED.values():
        for seam, several in found.items():
            several.append(getattr(recipe, seam))
    return {seam: list(dict.fromkeys(several)) for seam, several in found.items()}


def variable(name: str) -> str:
    """Return an identifier that reads like a toggle's name."""
    return re.sub(r"\W|^(?=\d)", "_", name)


def _settings(opened: Mapping[str, Any]) -> list[str]:
    """Return the keywords of Pipeline.open that are not its defaults; the recipe is set by each trial."""
    defaults = {name: parameter.default for name, parameter in inspect.signature(Pipeline.open).parameters.items()}
    return [
        f"{name}={value!r}"
        for name, value in opened.items()
        if name not in ("model", "recipe", "make_runner") and value != defaults[name]
    ]
