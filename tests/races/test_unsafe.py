"""Each mistake of omnilab.toggles.unsafe is caught by the race lab: what `race` checks is worth something."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import pytest

from omnilab.recipe import Recipe
from omnilab.recipes import AFTER_1378, BEFORE_1378
from omnilab.toggles import unsafe
from tests.races.lab import race

SEEDS = range(100)
# seam, occupant, what shows
MISTAKES: dict[str, tuple[str, Any, str]] = {
    "ReadsLiveLate": ("save", unsafe.ReadsLiveLate, "say that they are the last|Talker: conditioning|Talker: prompt"),
    "DropsTerminal": ("save", unsafe.DropsTerminal, r"waited 0.2\d? s for chunk"),
    "LosesFailedPut": ("save", unsafe.LosesFailedPut, "samples|has not come"),
    "TakesIdFirst": ("save", unsafe.TakesIdFirst, r"chunk ids \[1"),
    "NewestFirst": ("save", unsafe.NewestFirst, "prompt_ids|Talker: prompt"),
    "NoEndWithoutData": ("save", unsafe.NoEndWithoutData, r"waited 0.2\d? s for chunk"),
    "TailNotFlushed": ("save", unsafe.TailNotFlushed, "samples"),
    "OneStagingBuffer": ("save", unsafe.OneStagingBuffer, "Talker: conditioning|Talker: prompt rows"),
    "PhaseFromRowCount": ("thinker_payload", unsafe.PhaseFromRowCount, "layer-24 rows|Talker: prompt rows"),
    "PhaseFromOutputs": ("thinker_payload", unsafe.PhaseFromOutputs, "prompt_ids|Talker: prompt rows"),
    "FirstRowOfTheStep": ("thinker_payload", unsafe.FirstRowOfTheStep, "Talker: conditioning"),
    "first_row_of_newest": ("accumulate", unsafe.first_row_of_newest, "Talker: conditioning"),
    "attach_until_end": ("attach", unsafe.attach_until_end, "talker: AssertionError|has not come"),
    "merge_once": ("merge", unsafe.merge_once, "has not come"),
    "skip_finished_too": ("idle_step", unsafe.skip_finished_too, "left behind: {'code2wav/runner'"),
    "free_unscheduled": ("idle_step", unsafe.free_unscheduled, "code2wav"),
    "KeepsContext": ("vocode", unsafe.KeepsContext, "samples"),
}


@pytest.mark.parametrize("base", [BEFORE_1378, AFTER_1378], ids=["before", "after"])
@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_race_lab_catches(mistake: str, base: Recipe) -> None:
    """Kind: a check that cannot fail."""
    seam, occupant, shows = MISTAKES[mistake]
    with pytest.raises(AssertionError, match=f"^seed .*({shows})"):
        race(replace(base, **{seam: occupant}), SEEDS, timeout_s=0.2)


def test_every_mistake_is_tried() -> None:
    """Kind: an occupant that is written and never run."""
    own = {name for name, thing in vars(unsafe).items() if getattr(thing, "__module__", "") == unsafe.__name__}
    assert own == set(MISTAKES)
    assert all(inspect.getdoc(getattr(unsafe, name)) for name in own)
