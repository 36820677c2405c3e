"""The list of toggles: one file each, written out so that a reader finds them."""

from __future__ import annotations

from typing import Any

from omnilab.errors import ToggleUnavailable
from omnilab.toggle import Toggle
from omnilab.toggles import (
    async_save,
    attach_once,
    direct_worker,
    fused_predictor,
    graphed_step,
    idle_skip,
    override_rows,
    prefill_only_hidden_states,
    shallow_merge,
    small_first_chunk,
    stateful_vocode,
    wake_engine,
    wake_on_chunk,
)

# of vllm-omni#1378, in the order of its description
THE_FOUR: tuple[Toggle[Any], ...] = (
    async_save.TOGGLE,
    prefill_only_hidden_states.TOGGLE,
    idle_skip.TOGGLE,
    shallow_merge.TOGGLE,
)
TOGGLES: tuple[Toggle[Any], ...] = (
    *THE_FOUR,
    override_rows.TOGGLE,
    wake_on_chunk.TOGGLE,
    wake_engine.TOGGLE,
    attach_once.TOGGLE,
    direct_worker.TOGGLE,
    small_first_chunk.TOGGLE,
    stateful_vocode.TOGGLE,
    fused_predictor.TOGGLE,
    graphed_step.TOGGLE,
)


def toggle_named(name: str) -> Toggle[Any]:
    """Return a listed toggle; ToggleUnavailable names those there are."""
    for toggle in TOGGLES:
        if toggle.name == name:
            return toggle
    raise ToggleUnavailable(f"no toggle is named {name!r}; there are {', '.join(t.name for t in TOGGLES)}")
