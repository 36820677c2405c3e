"""Counters prove on which side of a toggle a trial ran; they are kept outside of what fills the seam."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from omnilab.recipe import Recipe, recipe_with
from omnilab.recipes import AFTER_1378, BEFORE_1378
from omnilab.toggle import Toggle
from omnilab.toggles import THE_FOUR
from tests.scripted import Said, open_scripted

SCRIPT = [Said(1, prompt=20, text=12, frames=60), Said(2, prompt=3, text=4, frames=30)]
# counter, and what it must be without and with the toggle: 0 or more
SHOWN_BY = {
    "async_save": ("talker/send/chunks_built", False, True),
    "prefill_only_hidden_states": ("thinker/send/hidden_rows_in_later_chunks", True, False),
    "idle_skip": ("code2wav/runner/updates_while_idle", True, False),
    "shallow_merge": ("talker/runner/elements_visited", True, False),
}


def counted(recipe: Recipe) -> dict[str, int]:
    """Run the script and return the counters."""
    with open_scripted(recipe, SCRIPT, topology="inline") as pipeline:
        pipeline.ask_all(1, 2)
        return pipeline.counters()


@pytest.mark.parametrize("base", [BEFORE_1378, AFTER_1378], ids=["alone", "with the others"])
@pytest.mark.parametrize("toggle", THE_FOUR, ids=lambda toggle: toggle.name)
def test_the_sides_of_a_toggle_count_otherwise(toggle: Toggle[object], base: Recipe) -> None:
    """Kind: a toggle that is set and has no effect, and nobody notices."""
    off = counted(replace(base, **{toggle.seam: toggle.baseline}))
    on = counted(replace(base, **{toggle.seam: toggle.optimized}))
    name, when_off, when_on = SHOWN_BY[toggle.name]
    assert (off.get(name, 0) > 0, on.get(name, 0) > 0) == (when_off, when_on)


@pytest.mark.parametrize("toggle", THE_FOUR, ids=lambda toggle: toggle.name)
def test_an_occupant_does_not_vouch_for_itself(toggle: Toggle[object]) -> None:
    """Kind: a toggle that counts what it says it does."""
    for side in (toggle.baseline, toggle.optimized):
        assert not hasattr(sys.modules[getattr(side, "__module__", "")], "count")


def test_the_same_work_is_counted_on_both_sides() -> None:
    """Kind: a toggle that is faster because less was done."""
    before, after = counted(BEFORE_1378), counted(recipe_with(*THE_FOUR))
    for name in ("thinker/engine/steps", "thinker/send/chunks_put", "talker/send/chunks_put", "talker/runner/merges"):
        assert before[name] == after[name] > 0, name
    assert before["thinker/send/chunks_put"] == 11 + 3
    assert before["talker/send/chunks_put"] == before["code2wav/receive/chunks_received"] == 3 + 2
    assert before["thinker/send/bytes_put"] > after["thinker/send/bytes_put"]
