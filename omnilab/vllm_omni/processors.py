"""What a transfer adapter builds chunks with, its processor, and how one of ours comes behind it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

Change = Callable[[Any, Any, Any, Any], Any]  # (adapter, output, request, payload or None) -> payload or None


def then(processor: Callable[..., Any], change: Change) -> Callable[..., Any]:
    """Return a processor whose payload is what `change` makes of the first one's."""

    @functools.wraps(processor)  # the adapter inspects its signature
    def run(transfer_manager: Any, multimodal_output: Any, request: Any, is_finished: bool = False, **more: Any) -> Any:
        payload = processor(
            transfer_manager=transfer_manager, multimodal_output=multimodal_output, request=request,
            is_finished=is_finished, **more,
        )  # fmt: skip
        return change(transfer_manager, multimodal_output, request, payload)

    return run
