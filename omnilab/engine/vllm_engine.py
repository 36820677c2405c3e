"""A vLLM engine that lives in this process and is stepped by its caller.

`LLMEngine`, not `AsyncLLM`: a runner answers one message at a time and has no event loop, and both step the same core.
"""

# vLLM is an extra of its own
# pyright: reportMissingImports=false

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import torch

from omnilab.engine.spec import StageSpec
from omnilab.errors import BadInput

# Where the user has said nothing else. Plugins: vLLM-Omni's would put its own model in place of vLLM's.
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # vLLM starts a worker process on a CPU otherwise
    "VLLM_PLUGINS": "",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the other stages share these cores
}
set_num_threads = torch.set_num_threads  # kept: vLLM's worker puts one that does nothing in its place
LARGEST_BLOCK = 128  # tokens; vLLM's on a CPU, those on GPUs are smaller


class VllmEngine:
    """Greedy tokens by id, ends left to the caller."""

    def __init__(self, engine: Any, num_threads: int) -> None:
        self._engine, self._num_threads = engine, num_threads

    def submit(self, request_id: str, prompt_ids: list[int], max_tokens: int) -> None:
        """Add a request that no token ends."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        sampling = SamplingParams(
            temperature=0.0,
            max_tokens=max_tokens,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        self._engine.add_request(request_id, {"prompt_token_ids": prompt_ids}, sampling)

    def step(self) -> Iterable[tuple[str, list[int], bool]]:
        """Run one step of all requests."""
        set_num_threads(self._num_threads)  # vLLM's start undoes it; OpenMP's is a thread's own, and threads change
        for output in self._engine.step():
            yield output.request_id, list(output.outputs[0].token_ids), output.finished

    def abort(self, request_id: str) -> None:
        """Free a request's blocks."""
        self._engine.abort_request([request_id])

    def entries(self) -> int:
        """How many requests vLLM holds."""
        return self._engine.get_num_unfinished_requests()

    def close(self) -> None:
        """End the engine, so that another may start in this process."""
        from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

        self._engine.engine_core.shutdown()
        cleanup_dist_env_and_memory()


def open_engine(spec: StageSpec, sizes: Any, dtype: str) -> VllmEngine:
    """Load the Thinker of a folder; `sizes` is the config of its text model.

    The KV cache holds `max_num_seqs` requests of `max_model_len` tokens, as our own does: nothing is preempted. Prompts
    are computed anew, for repeated trials must do the same work.
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from vllm import EngineArgs
    from vllm.platforms import current_platform
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.llm_engine import LLMEngine
    from vllm.v1.executor import Executor

    device = torch.device(spec.device).type
    if current_platform.device_type != device:
        raise BadInput(
            f"the vLLM of this environment runs on {current_platform.device_type}, not on {device}: install the other "
            f"build, or open the pipeline with device={{'thinker': '{current_platform.device_type}', ...}}"
        )
    tokens = spec.max_num_seqs * spec.max_model_len
    arguments = EngineArgs(
        model=spec.model,
        dtype=dtype,
        max_model_len=spec.max_model_len,
        max_num_seqs=spec.max_num_seqs,
        max_num_batched_tokens=max(min(spec.max_num_batched_tokens, tokens), spec.max_num_seqs),
        kv_cache_memory_bytes=_cache_bytes(spec, sizes, dtype),
        skip_tokenizer_init=True,
        generation_config="vllm",
        limit_mm_per_prompt={"audio": 0, "image": 0, "video": 0},
        enable_prefix_caching=False,
        async_scheduling=False,
        enforce_eager=device == "cpu",
        distributed_executor_backend="uni",
        disable_log_stats=True,
        seed=spec.seed,
    )
    config = arguments.create_engine_config(UsageContext.LLM_CLASS)
    engine = LLMEngine(config, Executor.get_class(config), log_stats=False, multiprocess_mode=False)
    return VllmEngine(engine, spec.num_threads)


def _cache_bytes(spec: StageSpec, sizes: Any, dtype: str) -> int:
    """Return the size of a cache where every request has its longest sequence, and of one block that vLLM keeps."""
    blocks = spec.max_num_seqs * -(-spec.max_model_len // LARGEST_BLOCK) + 1
    row = 2 * sizes.num_key_value_heads * sizes.head_dim * getattr(torch, dtype).itemsize
    return blocks * LARGEST_BLOCK * sizes.num_hidden_layers * row
