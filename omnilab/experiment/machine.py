"""What machine and which software a run was made with. Stable facts only: no current clocks, no free memory."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from omnilab.installed import commit_of

PACKAGES = ("omnilab", "torch", "transformers", "numpy", "msgspec", "safetensors", "tokenizers", "scipy", "pandas")


def facts() -> dict[str, Any]:
    """Return machine, versions and the commit that omnilab runs from, for run.json."""
    return {"machine": fingerprint(), "versions": versions(), "commit": commit_of(Path(__file__).parent)}


def fingerprint() -> dict[str, Any]:
    """Return processor, usable cores, memory and operating system."""
    return {
        "cpu": cpu_model(),
        "cores": usable_cores(),
        "cores_of_machine": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "switch_interval_s": sys.getswitchinterval(),
        **gpus(),
    }


def gpus() -> dict[str, Any]:
    """Return the names of the GPUs and their driver's version; nothing where there are none, or NVML is not there."""
    try:
        import pynvml  # pyright: ignore[reportMissingImports] (nvidia-ml-py, only beside a GPU)

        pynvml.nvmlInit()
        devices = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        names = [_text(pynvml.nvmlDeviceGetName(device)) for device in devices]
        return {"gpus": names, "driver": _text(pynvml.nvmlSystemGetDriverVersion())}
    except Exception:  # no package, no driver, no device: each raises its own
        return {}


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name


def versions() -> dict[str, str | None]:
    """Return the installed versions of what a result depends on; None where a package is not there."""
    return {name: _version(name) for name in PACKAGES}


def usable_cores() -> int:
    """Return how many cores this process may use: its affinity, or less where the container's quota says so."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return cores if quota == "max" else max(1, min(cores, round(int(quota) / int(period))))
    except (OSError, ValueError):
        return cores


def cpu_model() -> str:
    """Return the processor's name."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
