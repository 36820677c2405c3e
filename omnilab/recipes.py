"""Whole recipes, named after what shipped. They reproduce a release's costs, not its defects.

On cuda the stages of every release replayed CUDA graphs: there, add `graphed_step` to any of these.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from omnilab.errors import ToggleUnavailable
from omnilab.recipe import Recipe, recipe_with
from omnilab.toggle import Toggle, occupant_name
from omnilab.toggles import (
    TOGGLES,
    async_save,
    attach_once,
    direct_worker,
    fused_predictor,
    idle_skip,
    override_rows,
    prefill_only_hidden_states,
    shallow_merge,
    small_first_chunk,
    stateful_vocode,
    wake_engine,
    wake_on_chunk,
)

BEFORE_1378 = Recipe()
AFTER_1378 = recipe_with(
    async_save.TOGGLE, prefill_only_hidden_states.TOGGLE, idle_skip.TOGGLE, shallow_merge.TOGGLE, base=BEFORE_1378
)
LIKE_0_14 = replace(BEFORE_1378, save=async_save.SaveInline)
# what 0.16 shipped beside the four: a receive loop that spins and a payload attached to every step
LIKE_0_16 = replace(AFTER_1378, receive_wait=wake_on_chunk.spin, attach=attach_once.attach_always)
LIKE_0_30 = replace(
    AFTER_1378,
    merge=shallow_merge.merge_elementwise,
    accumulate=override_rows.override,
    receive_wait=wake_on_chunk.condition,
    attach=attach_once.attach_once,
    first_chunk=small_first_chunk.small_first_chunk,
    predict_codes=fused_predictor.FusedPredictor,
)
BEST = replace(
    AFTER_1378,
    thinker_payload=prefill_only_hidden_states.TokenIdsOnly,
    engine_wait=wake_engine.wait_for_doorbell,
    accumulate=override_rows.override,
    receive_wait=wake_on_chunk.wait_for_doorbell,
    worker_link=direct_worker.DirectWorker,
    attach=attach_once.attach_once,
    first_chunk=small_first_chunk.small_first_chunk,
    vocode=stateful_vocode.StatefulVocode,
    predict_codes=fused_predictor.FusedPredictor,
)

NAMED: dict[str, Recipe] = {
    "BEFORE_1378": BEFORE_1378,
    "AFTER_1378": AFTER_1378,
    "LIKE_0_14": LIKE_0_14,
    "LIKE_0_16": LIKE_0_16,
    "LIKE_0_30": LIKE_0_30,
    "BEST": BEST,
}


def recipe_named(name: str) -> Recipe:
    """Return a named recipe; ToggleUnavailable names those there are."""
    if name not in NAMED:
        raise ToggleUnavailable(f"no recipe is named {name!r}; there are {', '.join(NAMED)}")
    return NAMED[name]


def difference(recipe: Recipe, base: Recipe = BEFORE_1378) -> tuple[Toggle[Any], ...]:
    """Return what turns `base` into `recipe`, a toggle a seam: the listed ones where they fit, else unlisted ones."""
    changed = [field.name for field in fields(Recipe) if getattr(recipe, field.name) != getattr(base, field.name)]
    return tuple(_toggle(seam, getattr(base, seam), getattr(recipe, seam)) for seam in changed)


def _toggle(seam: str, baseline: Any, optimized: Any) -> Toggle[Any]:
    for toggle in TOGGLES:
        if toggle.seam == seam and toggle.optimized is optimized:
            return toggle
    name = occupant_name(optimized)
    return Toggle(name=name, seam=seam, baseline=baseline, optimized=optimized, claim=f"{name} in the seam {seam}")
