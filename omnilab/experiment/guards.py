"""What else the machine did around a trial: a disturbed trial is marked with the reason, never dropped."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

MOST_ELSEWHERE = 0.1  # share of the cores that other programs may use
LEAST_MEMORY = 0.05  # share of the machine's memory that should stay available
MOST_SWAPPED = 64  # MiB swapped in or out during a trial
THROTTLED = 0x8 | 0x20 | 0x40 | 0x80  # NVML clock event reasons: hardware, thermal and power-brake slowdowns


def read(cuda: bool = False) -> dict[str, Any]:
    """Return load, clock, memory, swap and pressure now; of GPUs, clock, power, temperature and what slows them.

    What cannot be read here is None.
    """
    memory = psutil.virtual_memory()
    return {
        "busy_elsewhere_s": busy_elsewhere(),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "cpu_mhz": _cpu_mhz(),
        "memory_available_share": memory.available / memory.total,
        "swapped_mib": _swapped_mib(),
        "resident_mib": _resident_mib(),
        "pressure": {what: _pressure(what) for what in ("cpu", "memory")},
        "gpus": _gpus() if cuda else [],
    }


def disturbances(
    before: dict[str, Any], after: dict[str, Any], seconds: float, own_cpu_s: float, cores: int
) -> list[str]:
    """Return what disturbed the trial between two readings; `own_cpu_s` is what the stages used themselves."""
    elsewhere = after["busy_elsewhere_s"] - before["busy_elsewhere_s"] - own_cpu_s
    found = []
    if elsewhere > MOST_ELSEWHERE * cores * seconds:
        found.append("other programs used more than a tenth of the cores")
    if min(before["memory_available_share"], after["memory_available_share"]) < LEAST_MEMORY:
        found.append("less than a twentieth of the memory was free")
    if after["swapped_mib"] - before["swapped_mib"] > MOST_SWAPPED:
        found.append("the machine swapped")
    if any(gpu["slowed_by"] & THROTTLED for gpu in (*before["gpus"], *after["gpus"]) if gpu["slowed_by"]):
        found.append("a GPU was slowed by heat or power")
    return found


def busy_elsewhere() -> float:
    """CPU seconds that this machine has spent so far on anything but this process."""
    times = psutil.cpu_times()
    return sum(times) - times.idle - getattr(times, "iowait", 0.0) - time_of_this_process()


def time_of_this_process() -> float:
    """CPU seconds of this process so far."""
    mine = psutil.Process().cpu_times()
    return mine.user + mine.system


def _resident_mib() -> float:
    """Memory of this process and of the stages below it; pages that they share count in each."""
    mine, total = psutil.Process(), 0
    for process in (mine, *mine.children(recursive=True)):
        with suppress(psutil.Error):  # it has ended
            total += process.memory_info().rss
    return total / 2**20


def _cpu_mhz() -> float | None:
    with suppress(Exception):  # psutil raises whatever the platform's reader does
        clock = psutil.cpu_freq()
        return clock.current if clock else None
    return None


def _swapped_mib() -> float:
    with suppress(OSError, RuntimeError):
        swap = psutil.swap_memory()
        return (swap.sin + swap.sout) / 2**20
    return 0.0


def _pressure(what: str) -> float | None:
    """Share of the last ten seconds in which something waited for it, in percent (Linux)."""
    with suppress(OSError, ValueError, IndexError):
        some = Path(f"/proc/pressure/{what}").read_text().splitlines()[0]
        return float(some.split("avg10=")[1].split()[0])
    return None


def _gpus() -> list[dict[str, Any]]:
    try:
        import pynvml  # pyright: ignore[reportMissingImports] (nvidia-ml-py, only beside a GPU)
    except ImportError:
        return []
    with suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        return [_gpu(pynvml, pynvml.nvmlDeviceGetHandleByIndex(i)) for i in range(pynvml.nvmlDeviceGetCount())]
    return []


def _gpu(nvml: Any, device: Any) -> dict[str, Any]:
    readings = {
        "clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(device, nvml.NVML_CLOCK_SM),
        "power_w": lambda: nvml.nvmlDeviceGetPowerUsage(device) / 1e3,
        "celsius": lambda: nvml.nvmlDeviceGetTemperature(device, nvml.NVML_TEMPERATURE_GPU),
        "slowed_by": lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(device),
        "memory_used_gib": lambda: nvml.nvmlDeviceGetMemoryInfo(device).used / 2**30,
    }
    found: dict[str, Any] = dict.fromkeys(readings)
    for name, reading in readings.items():
        with suppress(nvml.NVMLError):
            found[name] = reading()
    return found
