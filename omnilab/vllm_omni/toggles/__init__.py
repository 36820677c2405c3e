"""The four of vllm-omni#1378 on the real engine: one file each with both sides, and where they are installed.

They switch live: none needs a restart. A side that holds state of a request is latched when the request starts.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from omnilab.toggle import Toggle
from omnilab.vllm_omni import greedy_codes, latches, sent_codes
from omnilab.vllm_omni.panel import Panel
from omnilab.vllm_omni.toggles import async_save, idle_skip, prefill_only_hidden_states, shallow_merge

VERSIONS = ("0.30.0",)  # of vLLM-Omni, whose insides these files name
TOGGLES: tuple[Toggle[Any], ...] = (
    async_save.TOGGLE,
    prefill_only_hidden_states.TOGGLE,
    idle_skip.TOGGLE,
    shallow_merge.TOGGLE,
)
UNSAFE: Toggle[Any] = prefill_only_hidden_states.UNSAFE  # wrong on purpose
_ADAPTER = "vllm_omni.distributed.omni_connectors.transfer_adapter.chunk_transfer_adapter"
# By module, in this order: latches before those that read them; async_save last, for it times what the others add.
INSTALLS: dict[str, dict[str, Callable[[ModuleType, Panel], None]]] = {
    _ADAPTER: {
        "latches": latches.install,
        "prefill_only_hidden_states": prefill_only_hidden_states.install,
        "sent_codes": sent_codes.install,
        "async_save": async_save.install,
    },
    "vllm_omni.worker.gpu_generation_model_runner": {"idle_skip": idle_skip.install},
    "vllm_omni.worker.gpu_model_runner": {"shallow_merge": shallow_merge.install},
    "vllm_omni.model_executor.models.common.qwen3_code_predictor": {"greedy_codes": greedy_codes.install},
}
