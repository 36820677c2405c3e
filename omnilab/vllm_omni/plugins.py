"""What vLLM-Omni calls in its processes: the entry points of this room. They import nothing of vLLM when called.

A general plugin is called in the API server, every engine and every worker, before most of vLLM-Omni may be imported
(on a CPU one module of vLLM's has to come first): toggles are installed as each module they change has been imported.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from functools import partial
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from omnilab.vllm_omni.after_import import after_import
from omnilab.vllm_omni.board import BOARD

if TYPE_CHECKING:
    from omnilab.vllm_omni.panel import Panel

logger = logging.getLogger("vllm.omnilab")


def cpu_platform() -> str | None:
    """Return our CPU platform where vLLM was built for CPUs; else None, so that the built-in ones decide."""
    try:
        built_for_cpu = metadata.version("vllm").endswith("+cpu")
    except metadata.PackageNotFoundError:
        return None
    return "omnilab.vllm_omni.cpu.platform.CpuOmniPlatform" if built_for_cpu else None


def toggles() -> None:
    """Install the toggles in this process, where the server was started with a board; see `board.BOARD`.

    On a version that they were not written for nothing is installed: the log says so, and the board tells the client.
    """
    if not (folder := os.environ.get(BOARD)):
        return
    from omnilab.vllm_omni.panel import Panel
    from omnilab.vllm_omni.toggles import INSTALLS, VERSIONS

    version = metadata.version("vllm-omni")
    panel = Panel(Path(folder), version)
    if version not in VERSIONS:
        refused = (
            f"vLLM-Omni {version}: our toggles are written for {', '.join(VERSIONS)} and were not installed; "
            "install that version, or compare servers by their command lines (--arm)"
        )
        logger.warning(refused)
        panel.say(refused=refused)
        return
    after_import({module: partial(_install, panel, named) for module, named in INSTALLS.items()})


def _install(panel: Panel, named: Mapping[str, Callable[[ModuleType, Panel], None]], module: ModuleType) -> None:
    for install in named.values():
        install(module, panel)
    panel.say(*named)
