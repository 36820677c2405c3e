"""Which panel belongs to which cell: running a cell again closes the panels that it made before."""

from __future__ import annotations

import sys
from typing import Any, Protocol


class Closes(Protocol):
    """What a cell can have made."""

    def close(self) -> None:
        """End it."""
        ...


_KEPT: dict[str, tuple[str, list[Closes]]] = {}  # cell -> the execution that made them, and what it made


def keep(made: Closes) -> None:
    """Keep what the running cell has made, as long as its widgets are shown; close what an earlier run of it made.

    Outside a notebook nothing is kept. Two made by one run of a cell stand side by side.
    """
    found = _running()
    if found is None:
        return
    cell, execution = found
    earlier = _KEPT.get(cell)
    if earlier is not None and earlier[0] == execution:
        earlier[1].append(made)
        return
    _KEPT[cell] = (execution, [made])
    for old in earlier[1] if earlier is not None else ():
        old.close()


def _running() -> tuple[str, str] | None:
    """Return the running cell, by its id or else its source, and this execution of it; None outside a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    kernel = None if shell is None else getattr(shell, "kernel", None)  # a terminal's IPython has none
    if shell is None or kernel is None:
        return None
    asked: dict[str, Any] = kernel.get_parent("shell")
    header, content, metadata = (asked.get(part) or {} for part in ("header", "content", "metadata"))
    # the count too: clients of one session, one after another, number their messages from 1 again
    execution = f"{header.get('msg_id', '')} {shell.execution_count}"
    return str(metadata.get("cellId") or content.get("code", "")), execution
