"""Workers and model runners: vLLM-Omni's logic over vLLM's CPU runner.

Of a runner's bases vLLM-Omni's come first, so that its `super()` lands in vLLM's CPU runner and not in the GPU one.
"""
# pyright: reportMissingImports=false

from __future__ import annotations

from typing import Any

import vllm.v1.worker.cpu.shm  # noqa: F401  # isort: skip  # vLLM's CPU worker wants it first
import torch
from vllm.v1.worker.cpu_model_runner import CPUModelRunner
from vllm.v1.worker.cpu_worker import CPUWorker
from vllm_omni.model_executor.models.qwen3_omni import qwen3_omni
from vllm_omni.worker.gpu_ar_model_runner import GPUARModelRunner
from vllm_omni.worker.gpu_generation_model_runner import GPUGenerationModelRunner
from vllm_omni.worker.mixins import OmniWorkerMixin


class TorchIn:
    """torch for a module that names bfloat16 where it means the number format of its stage."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.bfloat16 = dtype

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


class _OnACpu:
    def load_model(self: Any, *args: Any, **kwargs: Any) -> None:
        self.compilation_config.max_cudagraph_capture_size = 0  # None on a CPU, and vLLM-Omni takes a maximum over it
        # 0.30.0 makes bfloat16 of all that enters the Talker, whatever its deploy file asks for: with float32, which
        # processors without instructions for bfloat16 need, weights and inputs would not fit each other.
        vars(qwen3_omni)["torch"] = TorchIn(self.model_config.dtype)
        super().load_model(*args, **kwargs)  # pyright: ignore[reportAttributeAccessIssue]


class AutoregressiveRunner(_OnACpu, GPUARModelRunner, CPUModelRunner):
    """Steps of Thinker and Talker."""


class GenerationRunner(_OnACpu, GPUGenerationModelRunner, CPUModelRunner):
    """Steps of Code2Wav."""


class _OmniWorker(OmniWorkerMixin, CPUWorker):
    model_runner_cls: type  # vLLM-Omni looks for this name

    def init_device(self) -> None:
        self.use_v2_model_runner = False  # vLLM-Omni's runners extend the first
        super().init_device()
        self.model_runner = self.model_runner_cls(self.vllm_config, torch.device("cpu"))


class AutoregressiveWorker(_OmniWorker):
    """Worker of Thinker and Talker."""

    model_runner_cls = AutoregressiveRunner


class GenerationWorker(_OmniWorker):
    """Worker of Code2Wav."""

    model_runner_cls = GenerationRunner
