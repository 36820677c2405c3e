"""A pipeline whose processes can be watched by a profiler or from outside."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import cloudpickle
import psutil

from omnilab.engine import messages as m
from omnilab.engine.profiling import MakeProfiler
from omnilab.engine.topology import ProcessStages
from omnilab.errors import BadInput
from omnilab.pipeline import Pipeline

STOP_WITHIN_S = 120.0  # for a stage to write what it recorded


class ProfiledPipeline(Pipeline):
    """A pipeline whose processes can be watched. Its trials are profiles, not measurements; `ablate` opens no such."""

    @contextmanager
    def profiled(self, make: MakeProfiler, within_s: float = STOP_WITHIN_S) -> Iterator[list[m.Profiled]]:
        """Run a profiler in every process for as long as the block runs; the list is filled at its end.

        A stage that has ended or does not answer within `within_s` is in it with its error, and the pipeline is not to
        be used again.
        """
        self._ready()
        answers: list[m.Profiled] = []
        self._ask_each(m.StartProfile(cloudpickle.dumps(make)), within_s)
        try:
            yield answers
        finally:
            answers += self._ask_each(m.StopProfile(), within_s)

    def processes(self) -> dict[str, int]:
        """Return pids by worker: the stage's name for its runner's process, "STAGE.engine" for one apart from it."""
        found: dict[str, int] = {}
        for stage, pid in self._stages().pids().items():
            workers = psutil.Process(pid).children()
            found |= {stage: workers[0].pid, f"{stage}.engine": pid} if workers else {stage: pid}
        return found

    @property
    def ended(self) -> bool:
        """Has a stage failed, so that nothing more can be run?"""
        return self._tracker.failure is not None

    def _ask_each(self, message: Any, within_s: float) -> list[m.Profiled]:
        said: list[m.Profiled] = []
        for stage, answer in self._stages().ask_each(message, within_s).items():
            said += answer if isinstance(answer, list) else [m.Profiled(stage, 0, 0, 0, error=str(answer))]
        return said

    def _stages(self) -> ProcessStages:
        if not isinstance(self._topology, ProcessStages):
            raise BadInput("only stages in processes of their own can be profiled: take topology='processes'")
        return self._topology
