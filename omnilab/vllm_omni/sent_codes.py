"""A switch, no toggle: keep the codes that the Talker sends, which 0.30.0 shows no client.

Each process that sends windows of codes to Code2Wav writes them to a file of its own beside the board. With them a run
can tell whether the Talker or Code2Wav made a difference.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from omnilab.vllm_omni.panel import Panel
from omnilab.vllm_omni.processors import then

GROUPS = 16  # codes a frame, as 0.30.0 has it written into its Talker's output


class Window(NamedTuple):
    """What Code2Wav was sent at once: codes [frames, 16], of which the first `context` were sent before."""

    context: int
    codes: NDArray[np.int64]


def written(folder: Path) -> dict[Path, int]:
    """Return how many bytes each process has written so far, for `windows` to begin there."""
    return {path: path.stat().st_size for path in folder.glob("codes.*")}


def windows(folder: Path, since: Mapping[Path, int] | None = None) -> dict[str, list[Window]]:
    """Return the windows of each request by its external id, in the order sent; empty where none were kept."""
    found: dict[str, list[Window]] = {}
    for path in folder.glob("codes.*"):
        with open(path, "rb") as file:
            file.seek((since or {}).get(path, 0))
            for line in file:
                request, context, flat = json.loads(line)
                codes = np.asarray(flat, dtype=np.int64).reshape(GROUPS, -1).T  # sent group after group
                found.setdefault(request, []).append(Window(context, codes))
    return found


def joined(sent: list[Window]) -> NDArray[np.int64]:
    """Return the codes [frames, 16] of a request's windows, each frame once."""
    return np.concatenate([window.codes[window.context :] for window in sent])


def install(module: ModuleType, panel: Panel) -> None:
    """Look at each payload that a processor of the adapter made."""
    adapter = module.OmniChunkTransferAdapter
    make = adapter.__init__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        if (processor := self.custom_process_next_stage_input_func) is not None:
            self.custom_process_next_stage_input_func = keeping(processor, panel)

    adapter.__init__ = __init__


def keeping(processor: Callable[..., Any], panel: Panel) -> Callable[..., Any]:
    """Let the switch decide whether the codes of a payload are written down."""

    def keep(adapter: Any, output: Any, request: Any, payload: Any) -> Any:
        codes = getattr(getattr(payload, "codes", None), "audio", None)
        if codes is not None and panel.side("sent_codes"):
            context = payload.meta.left_context_size or 0
            panel.write("codes", [request.external_req_id, context, codes.tolist()])
        return payload

    return then(processor, keep)
