"""Toggle of the real engine: do not update request states of Code2Wav on a step where nothing is scheduled.

0.30.0 ships the optimized side. Restored for the baseline: the update also runs on steps without tokens. Unlike in
February 2026, where it was an empty loop then, 0.30.0's update takes parked requests out of the batch; the next line of
the same step does so on both sides, so the state after a step is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from types import ModuleType
from typing import Any

from omnilab.toggle import Toggle
from omnilab.vllm_omni.board import BASELINE
from omnilab.vllm_omni.panel import Panel

IdleStep = Callable[[Any, Any], None]


def update_anyway(runner: Any, scheduler_output: Any) -> None:
    """Baseline: update the states of requests on an idle step, too."""
    runner._update_request_states(scheduler_output)


def skip(runner: Any, scheduler_output: Any) -> None:
    """Optimized: nothing; finished requests are handled by what follows."""


TOGGLE: Toggle[IdleStep] = Toggle(
    name="idle_skip",
    seam="vllm_omni.idle_step",
    baseline=update_anyway,
    optimized=skip,
    claim="Skipping the update on idle steps saves host time while Code2Wav waits for a chunk.",
)


def install(module: ModuleType, panel: Panel) -> None:
    """Put both sides before `_update_states`: `execute_model` runs or skips the update right before it calls that."""
    runner = module.GPUGenerationModelRunner
    update = runner._update_states

    def _update_states(self: Any, scheduler_output: Any) -> Any:
        if self.model_config.async_chunk and not scheduler_output.total_num_scheduled_tokens:
            stage = self.model_config.stage_id
            panel.count(stage, "runner", "idle_steps")
            if panel.side("idle_skip") == BASELINE:
                start = perf_counter_ns()
                update_anyway(self, scheduler_output)
                panel.time(stage, "runner", "update_states", perf_counter_ns() - start)
                panel.count(stage, "runner", "updates_while_idle")
            else:
                skip(self, scheduler_output)
        return update(self, scheduler_output)

    runner._update_states = _update_states
