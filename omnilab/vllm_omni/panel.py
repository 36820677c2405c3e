"""The board as one process of the server sees it: reads switches, counts into a file of its own."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

from omnilab.vllm_omni.board import AS_SHIPPED, CELLS, STAGES, counter_cell, map_file, time_cell

_INDEX = {name: index for index, name in enumerate(AS_SHIPPED)}


class Panel:
    """One a process, made by the plugin. A forked child counts into its own file."""

    def __init__(self, folder: Path, version: str) -> None:
        """`version` of vLLM-Omni."""
        self._folder, self._version = folder, version
        self._switches = map_file(folder / "switches", len(AS_SHIPPED))
        self._lock = threading.Lock()
        self._cells: dict[int, memoryview] = {}
        self._installed: set[str] = set()

    def side(self, name: str) -> int:
        """Side in force of one switch."""
        return self._switches[_INDEX[name]]

    def sides(self) -> dict[str, int]:
        """Side in force of every switch."""
        return dict(zip(AS_SHIPPED, self._switches[:], strict=True))

    def count(self, stage: int, thread: str, counter: str, value: int = 1) -> None:
        """Add to a counter of a stage; stages that no switch is about are passed over."""
        if value and stage < len(STAGES):
            with self._lock:
                self._own()[counter_cell(stage, thread, counter)] += value

    def time(self, stage: int, thread: str, name: str, ns: int) -> None:
        """Add one time under a name."""
        if stage < len(STAGES):
            cell = time_cell(stage, thread, name)
            with self._lock:
                cells = self._own()
                cells[cell] += 1
                cells[cell + 1] += ns

    def saw(self, request: str) -> None:
        """Leave word of a request's external id, by which its files in shared memory can be told."""
        self.write("requests", request)

    def write(self, name: str, line: Any) -> None:
        """Add a line of JSON to this process' file of a name."""
        with open(self._folder / f"{name}.{os.getpid()}", "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def say(self, *installed: str, refused: str | None = None) -> None:
        """Leave word of what was installed in this process, or of why nothing was."""
        self._installed |= set(installed)
        said = {
            "pid": os.getpid(), "version": self._version, "installed": sorted(self._installed), "refused": refused
        }  # fmt: skip
        path = self._folder / f"process.{os.getpid()}"
        part = path.with_name(f"part.{path.name}")  # of this process alone, and not what the client looks for
        part.write_text(json.dumps(said), encoding="utf-8")
        part.replace(path)

    def _own(self) -> memoryview:
        process = os.getpid()
        if process not in self._cells:
            self._cells[process] = memoryview(map_file(self._folder / f"counts.{process}", 8 * CELLS)).cast("q")
        return self._cells[process]
