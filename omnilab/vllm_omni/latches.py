"""The sides that a request runs under: those in force when a sender first saw it, until its sender forgets it.

A switch that moves in the middle of a request would split it where a side holds state of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

from omnilab.vllm_omni.panel import Panel


class Latches:
    """Of one transfer adapter."""

    def __init__(self, panel: Panel) -> None:
        self._panel = panel
        self._sides: dict[str, Mapping[str, int]] = {}

    def of(self, request: str) -> Mapping[str, int]:
        """Return the sides of a request, by its external id."""
        if request not in self._sides:  # the engine thread comes first: only then a sender has something to send
            self._sides[request] = self._panel.sides()
            self._panel.saw(request)
        return self._sides[request]

    def drop(self, request: str) -> None:
        """Forget a request."""
        self._sides.pop(request, None)


def install(module: ModuleType, panel: Panel) -> None:
    """Give every adapter its latches, as `omnilab_latches`; others read them, so this comes first."""
    adapter = module.OmniChunkTransferAdapter
    make, forget = adapter.__init__, adapter._clear_sender_state_locked

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        self.omnilab_latches = Latches(panel)
        make(self, *args, **kwargs)

    def _clear_sender_state_locked(self: Any, external_req_id: str) -> None:
        forget(self, external_req_id)
        self.omnilab_latches.drop(external_req_id)

    adapter.__init__ = __init__
    adapter._clear_sender_state_locked = _clear_sender_state_locked
