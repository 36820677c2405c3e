"""Toggle of the real engine: adopt the values of a payload as they are, without a visit to every list element.

0.30.0 ships the baseline: it superseded the shallow merge of February 2026 by a merge of two levels that again visits
every element, since its payloads had become small. Added for the optimized side: the same two levels by `dict.update`.
One level alone, as in February, would delete what the worker itself keeps under `hidden_states`. What the model's own
steps put into the buffer is merged natively on both sides, as it was then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from time import perf_counter_ns
from types import ModuleType
from typing import Any

from omnilab.toggle import Toggle
from omnilab.vllm_omni.board import OPTIMIZED
from omnilab.vllm_omni.panel import Panel

Merge = Callable[[Any, str, Mapping[str, Any], Callable[..., None]], int]


def visit_elements(runner: Any, request: str, payload: Mapping[str, Any], native: Callable[..., None]) -> int:
    """Baseline: the native merge; return how many list elements it visited."""
    native(runner, request, payload)
    levels = [part for part in payload.values() if isinstance(part, dict)]
    return sum(len(value) for part in [payload, *levels] for value in part.values() if isinstance(value, list))


def adopt_values(runner: Any, request: str, payload: Mapping[str, Any], native: Callable[..., None]) -> int:
    """Optimized: two dictionaries updated; return 0 elements visited."""
    have = runner.model_intermediate_buffer.setdefault(request, {})
    for name, value in payload.items():
        if isinstance(value, dict):
            have.setdefault(name, {}).update(value)
        else:
            have[name] = value
    runner.requests[request].additional_information_cpu = have
    return 0


TOGGLE: Toggle[Merge] = Toggle(
    name="shallow_merge",
    seam="vllm_omni.merge",
    baseline=visit_elements,
    optimized=adopt_values,
    claim="Adopting payload values takes the visits to list elements off the worker's step.",
)


class _Merging(threading.local):
    payload = False  # is it a scheduler's payload that this thread merges?


def install(module: ModuleType, panel: Panel) -> None:
    """Put both sides where a scheduler's payload enters a runner's buffer."""
    runner, merging = module.OmniGPUModelRunner, _Merging()
    take, merge = runner._update_additional_information, runner._update_intermediate_buffer

    def _update_additional_information(self: Any, scheduler_output: Any) -> None:
        panel.count(self.model_config.stage_id, "runner", "steps")
        merging.payload = True
        try:
            take(self, scheduler_output)
        finally:
            merging.payload = False

    def _update_intermediate_buffer(self: Any, req_id: str, upd: Any) -> None:
        if not (merging.payload and isinstance(upd, dict) and upd and req_id in self.requests):
            merge(self, req_id, upd)
            return
        side = adopt_values if panel.side("shallow_merge") == OPTIMIZED else visit_elements
        stage, start = self.model_config.stage_id, perf_counter_ns()
        visited = side(self, req_id, upd, merge)
        panel.time(stage, "runner", "merge", perf_counter_ns() - start)
        panel.count(stage, "runner", "merges")
        panel.count(stage, "runner", "elements_visited", visited)

    runner._update_additional_information = _update_additional_information
    runner._update_intermediate_buffer = _update_intermediate_buffer
