"""The list of toggles: one file each, written out so that a reader finds them."""

from __future__ import annotations

from typing import Any

from omnilab.errors import ToggleUnavailable
from omnilab.toggle import Toggle
from omnilab.toggles import async_save, idle_skip, prefill_only_hidden_states, shallow_merge

TOGGLES: tuple[Toggle[Any], ...] = (
    async_save.TOGGLE,
    prefill_only_hidden_states.TOGGLE,
    idle_skip.TOGGLE,
    shallow_merge.TOGGLE,
)


def toggle_named(name: str) -> Toggle[Any]:
    """Return a listed toggle; ToggleUnavailable names those there are."""
    for toggle in TOGGLES:
        if toggle.name == name:
            return toggle
    raise ToggleUnavailable(f"no toggle is named {name!r}; there are {', '.join(t.name for t in TOGGLES)}")
