"""Seeded random orders of the loops of all stages: for each of the 16 recipes 200, or 2000 by `make races`.

OMNILAB_RACES says how many instead.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest

from omnilab import recipes
from omnilab.recipe import Recipe
from omnilab.recipes import AFTER_1378, BEFORE_1378
from omnilab.toggles.async_save import SaveInline
from omnilab.toggles.attach_once import attach_always, attach_once
from omnilab.toggles.direct_worker import DirectWorker
from omnilab.toggles.override_rows import override
from omnilab.toggles.prefill_only_hidden_states import TokenIdsOnly
from tests.races.lab import GROUP, all_recipes, race

RECIPES = all_recipes()
RACES = int(os.environ.get("OMNILAB_RACES", "200"))
MANY_RACES = int(os.environ.get("OMNILAB_RACES", "2000"))  # `make races`


@pytest.mark.races
@pytest.mark.timeout(0)
@pytest.mark.parametrize(("name", "recipe"), RECIPES.items(), ids=RECIPES)
def test_many_orders(name: str, recipe: Recipe) -> None:
    """Kind: as below; the search that takes minutes."""
    first = list(RECIPES).index(name) * 1_000_000 + 100_000
    race(recipe, range(first, first + MANY_RACES))


@pytest.mark.timeout(max(300, RACES))
@pytest.mark.parametrize(("name", "recipe"), RECIPES.items(), ids=RECIPES)
def test_nothing_is_lost_repeated_or_left(name: str, recipe: Recipe) -> None:
    """Kind: a chunk lost, repeated, out of order or never marked as the last; state left behind; wrong conditioning."""
    first = list(RECIPES).index(name) * 1_000_000  # every recipe has orders of its own
    race(recipe, range(first, first + RACES))


# what fills other seams, or these otherwise
OTHERS: dict[str, dict[str, Any]] = {
    "save_inline": {"save": SaveInline},
    "token_ids_only": {"thinker_payload": TokenIdsOnly},
    "override_rows": {"accumulate": override},
    "attach_always": {"attach": attach_always},
    "attach_once": {"attach": attach_once},
    "direct_worker": {"worker_link": DirectWorker},
    "all": {"save": SaveInline, "thinker_payload": TokenIdsOnly, "accumulate": override, "attach": attach_once},
}


@pytest.mark.timeout(max(300, RACES))
@pytest.mark.parametrize("name", OTHERS)
def test_nor_with_other_occupants(name: str) -> None:
    """Kind: as above, of the occupants that are not of the four toggles."""
    for base in (BEFORE_1378, AFTER_1378):
        first = (100 + list(OTHERS).index(name)) * 1_000_000
        race(replace(base, **OTHERS[name]), range(first, first + RACES // 10))


# As released but for chunk sizes and what happens inside a forward or a decode: these have no order, and the lab checks
# sizes of its own with networks that are scripted.
INSIDE = ("predict_codes", "vocode", "first_chunk")
NAMED = {
    name: replace(recipe, **{seam: getattr(BEFORE_1378, seam) for seam in INSIDE})
    for name, recipe in recipes.NAMED.items()
    if name not in ("BEFORE_1378", "AFTER_1378")
}


@pytest.mark.races
@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", NAMED)
def test_many_orders_of_releases(name: str) -> None:
    """Kind: as below; the search that takes minutes."""
    first = (200 + list(NAMED).index(name)) * 1_000_000 + 100_000
    race(NAMED[name], range(first, first + MANY_RACES))


@pytest.mark.timeout(max(300, RACES))
@pytest.mark.parametrize("name", NAMED)
def test_nor_with_a_release(name: str) -> None:
    """Kind: as above, of whole recipes that were released, and of BEST."""
    first = (200 + list(NAMED).index(name)) * 1_000_000
    race(NAMED[name], range(first, first + RACES))


def test_there_are_16_recipes_and_all_of_them_differ() -> None:
    """Kind: a power set that holds one recipe twice and another never."""
    assert len(RECIPES) == 16 == len({tuple(recipe.occupants().items()) for recipe in RECIPES.values()})
    assert RACES >= GROUP
