"""Whole recipes, named after what shipped. They reproduce a release's costs, not its defects."""

from __future__ import annotations

from omnilab.errors import ToggleUnavailable
from omnilab.recipe import Recipe, recipe_with
from omnilab.toggles import async_save, idle_skip, prefill_only_hidden_states, shallow_merge

BEFORE_1378 = Recipe()
AFTER_1378 = recipe_with(
    async_save.TOGGLE, prefill_only_hidden_states.TOGGLE, idle_skip.TOGGLE, shallow_merge.TOGGLE, base=BEFORE_1378
)

NAMED: dict[str, Recipe] = {"BEFORE_1378": BEFORE_1378, "AFTER_1378": AFTER_1378}


def recipe_named(name: str) -> Recipe:
    """Return a named recipe; ToggleUnavailable names those there are."""
    if name not in NAMED:
        raise ToggleUnavailable(f"no recipe is named {name!r}; there are {', '.join(NAMED)}")
    return NAMED[name]
