"""A switch, no toggle: residual codes by the largest logit, so that audio repeats from request to request.

vLLM-Omni 0.30.0 draws the residual codes of Qwen3-Omni with settings of its own (top-k 50, top-p 0.8) from one random
generator of the process: neither a seed nor a temperature of the request reaches them. On a GPU a captured graph keeps
what was in force at its capture: set the switch before the server starts.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from omnilab.vllm_omni.panel import Panel


def install(module: ModuleType, panel: Panel) -> None:
    """Let the switch decide how a residual code is chosen from logits of shape [requests, codes]."""
    draw = module.CodePredictorWrapper._sample_codes_gumbel  # a class method, bound

    def choose(logits: Any, *args: Any, **kwargs: Any) -> Any:
        if panel.side("greedy_codes"):
            return logits.argmax(dim=-1, keepdim=True)
        return draw(logits, *args, **kwargs)

    module.CodePredictorWrapper._sample_codes_gumbel = staticmethod(choose)
