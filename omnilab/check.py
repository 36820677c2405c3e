"""What this machine can run, and what to install for the rest: `python -m omnilab.check`."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import psutil
from rich.console import Console
from rich.markup import escape
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: `needed` by the lab itself, or only by an extra."""

    what: str
    good: bool
    text: str
    needed: bool = False


PACKAGES = (  # distribution, needed by the lab, what installs it
    ("torch", True, "pip install 'omnilab[lab]'"),
    ("transformers", True, "pip install 'omnilab[lab]'"),
    ("cloudpickle", True, "pip install 'omnilab[lab]'"),
    ("soundfile", True, "pip install 'omnilab[lab]'"),
    ("jupyterlab", False, "pip install 'omnilab[notebook]'"),
    ("tensorboard", False, "pip install 'omnilab[trace]'"),
    ("torch-tb-profiler", False, "pip install 'omnilab[trace]'"),
    ("vllm", False, "pip install 'omnilab[vllm]', in an environment of its own"),
    ("vllm-omni", False, "only for that subject: see vLLM-Omni's own instructions"),
)
NEED_MEMORY_GIB, NEED_SHM_MIB = 6, 512


def main(argv: list[str] | None = None) -> int:
    """Print what was found; return 0 when the lab itself can run, else 1."""
    argparse.ArgumentParser(prog="omnilab check", description=__doc__).parse_args(argv)
    findings = check()
    table = Table(title="omnilab check", show_lines=False)
    for column in ("", "what", "found"):
        table.add_column(column, overflow="fold")
    for finding in findings:
        mark = "[green]yes" if finding.good else ("[red]NO" if finding.needed else "[yellow]no")
        table.add_row(mark, finding.what, escape(finding.text))
    Console().print(table)
    return 0 if all(finding.good for finding in findings if finding.needed) else 1


def check() -> list[Finding]:
    """Look at everything; what cannot be found out is said so, not guessed."""
    looks: tuple[Callable[[], Finding], ...] = (_python, _cores, _memory, _shared_memory, _gpu, _py_spy)
    return [*(look() for look in looks), *(_package(*package) for package in PACKAGES)]


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    return Finding("Python 3.11 or newer", sys.version_info >= (3, 11), version, needed=True)


def _cores() -> Finding:
    cores = len(os.sched_getaffinity(0))
    text = f"{cores} usable; a pipeline keeps up to six processes busy"
    if cores < 6:
        text += ": times here are of processes that share cores, and reports say so"
    return Finding("cores", cores >= 2, text)


def _memory() -> Finding:
    free = psutil.virtual_memory().available / 2**30
    return Finding("memory for `thin`", free >= NEED_MEMORY_GIB, f"{free:.1f} GiB free, {NEED_MEMORY_GIB} wanted")


def _shared_memory() -> Finding:
    shm = Path("/dev/shm")
    if not shm.is_dir():
        return Finding("shared memory", False, "no /dev/shm: chunks go through the temporary folder, slower")
    free = shutil.disk_usage(shm).free / 2**20
    text = f"{free:.0f} MiB free in /dev/shm, {NEED_SHM_MIB} wanted (docker: --shm-size)"
    return Finding("shared memory", free >= NEED_SHM_MIB, text)


def _gpu() -> Finding:
    try:
        import torch
    except ImportError:
        return Finding("GPU", False, "not known without torch")
    if not torch.cuda.is_available():
        return Finding("GPU", False, "torch sees none: sizes tiny, parity and thin run on the CPU; full does not")
    device = torch.cuda.get_device_properties(0)
    return Finding("GPU", True, f"{torch.cuda.device_count()} x {device.name}, {device.total_memory / 2**30:.0f} GiB")


def _py_spy() -> Finding:
    if shutil.which("py-spy") is None:
        return Finding("py-spy", False, "not installed: pip install 'omnilab[trace]'")
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    allowed = os.geteuid() == 0 or not scope.exists() or scope.read_text().strip() == "0"
    text = "may attach to processes" if allowed else "may not attach: run as root, or docker --cap-add SYS_PTRACE"
    return Finding("py-spy", allowed, text)


def _package(name: str, needed: bool, remedy: str) -> Finding:
    try:
        return Finding(name, True, metadata.version(name), needed)
    except metadata.PackageNotFoundError:
        return Finding(name, False, remedy, needed)


if __name__ == "__main__":
    raise SystemExit(main())
