"""A CPU as a platform of vLLM-Omni, which ships none: vLLM's own CPU platform and what vLLM-Omni asks beyond it."""
# pyright: reportMissingImports=false

from __future__ import annotations

from typing import Any

import psutil
import torch
from vllm.platforms.cpu import CpuPlatform
from vllm_omni.platforms.interface import OmniPlatform, OmniPlatformEnum


class CpuOmniPlatform(OmniPlatform, CpuPlatform):
    """Answers of a CPU: one device, no graphs, no compiler."""

    _omni_enum = OmniPlatformEnum.OOT

    @classmethod
    def get_omni_ar_worker_cls(cls) -> str:
        """Return the worker of Thinker and Talker."""
        return "omnilab.vllm_omni.cpu.worker.AutoregressiveWorker"

    @classmethod
    def get_omni_generation_worker_cls(cls) -> str:
        """Return the worker of Code2Wav."""
        return "omnilab.vllm_omni.cpu.worker.GenerationWorker"

    @classmethod
    def get_default_stage_config_path(cls) -> str:
        """Return where vLLM-Omni keeps its deploy files."""
        return "vllm_omni/deploy"

    @classmethod
    def get_diffusion_attn_backend_cls(cls, selected_backend: Any, head_size: int, **_: Any) -> str:
        """Return torch's attention whatever is asked: no other runs here."""
        from vllm_omni.diffusion.attention.backends.registry import DiffusionAttentionBackendEnum

        return DiffusionAttentionBackendEnum.TORCH_SDPA.get_path()

    @classmethod
    def supports_torch_inductor(cls) -> bool:
        """Say no: compiling takes longer than a trial."""
        return False

    @classmethod
    def supports_talker_mtp_graph_capture(cls) -> bool:
        """Say no: there are no graphs."""
        return False

    @classmethod
    def get_torch_device(cls, local_rank: int | None = None) -> torch.device:
        """Return the CPU."""
        return torch.device("cpu")

    @classmethod
    def get_device_count(cls) -> int:
        """Return one: all stages share it."""
        return 1

    @classmethod
    def get_device_version(cls) -> str | None:
        """Return None: there is no driver."""
        return None

    @classmethod
    def synchronize(cls) -> None:
        """Do nothing: what was called has been done."""

    @classmethod
    def get_free_memory(cls, device: torch.device | None = None) -> int:
        """Return bytes that are free."""
        return psutil.virtual_memory().available

    @classmethod
    def get_device_memory(cls, device: torch.device | None = None) -> tuple[int, int]:
        """Return bytes that are free, and all."""
        memory = psutil.virtual_memory()
        return memory.available, memory.total
