"""The deploy file that vLLM-Omni reads: three stages on a CPU, and what could differ between trials held fixed.

Written as JSON, which is YAML.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omnilab.errors import BadInput
from omnilab.vllm_omni.sampling import STOP_TOKEN_ID

EXECUTORS = ("mp", "uni")
_CONNECTOR = "shared_memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deploy:
    """What the stages are given. Lengths in tokens, chunks in frames of 80 ms, memory in bytes a stage.

    `executor` "mp": a worker process a stage, as in real deployments; "uni": the worker in the engine's process, which
    starts in half the time and hides what crosses the border between the two. `dtype`: number format of every stage;
    bfloat16 costs up to 35 times as much on a processor that has no instructions for it.
    """

    executor: str = "mp"
    max_model_len: int = 4096
    max_num_seqs: int = 8
    kv_cache_memory_bytes: int = 1 << 27
    codec_chunk_frames: int = 25
    codec_left_context_frames: int = 25
    initial_codec_chunk_frames: int = 4
    dtype: str = "float32"
    stop_token_id: int = STOP_TOKEN_ID

    def __post_init__(self) -> None:
        if self.executor not in EXECUTORS:
            raise BadInput(f"executor: must be one of {', '.join(EXECUTORS)}, not {self.executor!r}")
        if min(self.max_model_len, self.max_num_seqs, self.kv_cache_memory_bytes, self.codec_chunk_frames) < 1:
            raise BadInput("deploy: lengths, sequences, memory and chunks must be 1 or more")

    @property
    def environment(self) -> dict[str, str]:
        """What the server's environment has to say for it: "uni" also wants the engine without a process for it."""
        return {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"} if self.executor == "uni" else {}

    def as_dict(self) -> dict[str, Any]:
        """Return the file's content."""
        extra = {
            "initial_codec_chunk_frames": self.initial_codec_chunk_frames,
            "codec_chunk_frames": self.codec_chunk_frames,
            "codec_left_context_frames": self.codec_left_context_frames,
        }
        thinker = {"temperature": 0.0, "max_tokens": 256}
        talker = {
            "temperature": 0.0, "max_tokens": 1024, "repetition_penalty": 1.05, "seed": 42,
            "stop_token_ids": [self.stop_token_id], "detokenize": False,
        }  # fmt: skip
        code2wav = {"temperature": 0.0, "max_tokens": 65536, "detokenize": True}
        stages = [
            self._stage(0, thinker, skip_mm_profiling=True),
            self._stage(1, talker),
            self._stage(2, code2wav, enable_chunked_prefill=False, max_model_len=8192, max_num_batched_tokens=8192),
        ]
        connectors = {_CONNECTOR: {"name": "SharedMemoryConnector", "extra": extra}}
        return {"async_chunk": True, "connectors": connectors, "stages": stages}

    def _stage(self, stage: int, sampling: dict[str, Any], **more: Any) -> dict[str, Any]:
        fed = {"input_connectors": {f"from_stage_{stage - 1}": _CONNECTOR}} if stage else {}
        return {
            "stage_id": stage,
            "devices": "0",
            "distributed_executor_backend": self.executor,
            "dtype": self.dtype,
            "max_model_len": self.max_model_len,
            "max_num_batched_tokens": self.max_model_len,
            "max_num_seqs": self.max_num_seqs,
            "kv_cache_memory_bytes": self.kv_cache_memory_bytes,
            "load_format": "auto",
            "moe_backend": "auto",  # else vLLM-Omni takes Triton's
            "enforce_eager": True,
            "enable_prefix_caching": False,  # else the second of two equal prompts does less
            "async_scheduling": False,
            "default_sampling_params": sampling,
            **fed,
            **more,
        }

    def write(self, path: Path) -> Path:
        """Write the file and return its path."""
        path.write_text(json.dumps(self.as_dict(), indent=1) + "\n", encoding="utf-8")
        return path
