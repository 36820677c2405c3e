"""A profiler in one process of a stage, started and ended by a message. Never on while times are taken.

What the profiler is comes with the message: no stage imports one.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import cloudpickle

from omnilab.engine import messages as m
from omnilab.record import count


@dataclass(frozen=True, slots=True)
class Kept:
    """What a profiler has kept: steps, files with their bytes unpacked, and what is to be said of them."""

    steps: int = 0
    files: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


class Profiler(Protocol):
    """Watches a process. All of it is called on the thread that steps; `prepare` alone on the process's main thread."""

    def prepare(self) -> None:
        """Load what the first use would load."""
        ...

    def start(self) -> None:
        """Begin; no step is under way."""
        ...

    def step(self) -> None:
        """A step that did work has ended."""
        ...

    def stop(self) -> Kept:
        """End, and write what was recorded."""
        ...


MakeProfiler: TypeAlias = Callable[[str], Profiler]  # of the process's name: "talker", "talker.engine"


class ProfilerSlot:
    """The place of a process's profiler. Whatever fails in it is told with its answer, and ends nothing else."""

    def __init__(self, worker: str) -> None:
        self.worker = worker
        self._profiler: Profiler | None = None
        self._error: str | None = None
        self._steps = 0

    @property
    def filled(self) -> bool:
        """Is there a profiler, or one that has failed?"""
        return self._profiler is not None or self._error is not None

    def prepare(self, message: m.StartProfile) -> None:
        """Make the profiler; on the process's main thread, before `start`."""
        self._profiler, self._error, self._steps = None, None, 0
        try:
            make: MakeProfiler = cloudpickle.loads(message.make)
            profiler = make(self.worker)
            profiler.prepare()
            self._profiler = profiler
        except Exception as error:
            self._failed("prepare", error)

    def start(self) -> m.Profiled:
        """Start what was prepared."""
        self._call("start")
        return self._said(Kept())

    def step(self) -> None:
        """Tell it of a step that did work. The counter marks the trial as profiled."""
        if self._profiler is not None:
            count("profiled_steps")
            self._steps += 1
            self._call("step")

    def stop(self) -> m.Profiled:
        """End it and return what it kept; the slot is empty then."""
        kept = self._call("stop") or Kept()
        said = self._said(kept)
        self._profiler, self._error = None, None
        return said

    def clear(self) -> None:
        """Give up what was prepared: another process's profiler, or this one's other slot, sees it all."""
        self._profiler, self._error = None, None

    def _call(self, what: str) -> Kept | None:
        if self._profiler is None:
            return None
        try:
            return {"start": self._profiler.start, "step": self._profiler.step, "stop": self._profiler.stop}[what]()
        except Exception as error:
            self._failed(what, error)
            return None

    def _failed(self, what: str, error: Exception) -> None:
        self._profiler = None
        self._error = f"its profiler failed at its {what}: {type(error).__name__}: {error}"

    def _said(self, kept: Kept) -> m.Profiled:
        return m.Profiled(
            self.worker, os.getpid(), self._steps, kept.steps, dict(kept.files), list(kept.notes), self._error
        )
