"""A stage in a process of its own, which the pipeline starts (child.py).

The control socket brings commands and takes events. The process ends when it closes, so it never outlives its parent.
Where that has died without a word, the stages remove the edges that it can no longer remove.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import cloudpickle

from omnilab.engine import messages as m
from omnilab.engine.child import settle
from omnilab.engine.spec import StageSpec
from omnilab.engine.stage import Stage
from omnilab.engine.threads import LoopThreads
from omnilab.engine.worker import limit_threads, name_thread, quiet_start, receive
from omnilab.errors import StageFailed
from omnilab.recipe import Recipe
from omnilab.transfer.connector import Connector, SharedMemoryConnector, remove_orphan
from omnilab.transfer.doorbell import Doorbell

START_WITHIN_S = 300.0
ORPHAN_WITHIN_S = 3.0  # the socket of a parent that dies may close before its lock on the folder does


@dataclass(frozen=True, slots=True)
class Start:
    """First message: what the stage is. Edges are given by their folder and the descriptor of their bell."""

    spec: StageSpec
    recipe: Recipe
    inward: tuple[str, int] | None
    outward: tuple[str, int] | None


class StageProcess:
    """Commands in, events out."""

    def __init__(self, connection: Connection, start: Start) -> None:
        self._connection = connection
        self._sending, self._parent = threading.Lock(), os.getppid()
        self._edges = [Path(edge[0]) for edge in (start.inward, start.outward) if edge is not None]
        self._stage = Stage(
            start.spec,
            start.recipe,
            inward=_edge(start.inward),
            outward=_edge(start.outward),
            emit=self._send,
            own_process=True,
        )
        self._stage.ask(m.Describe(), within_s=START_WITHIN_S)  # the runner has loaded its weights
        self._threads = LoopThreads(self._stage)

    def run(self) -> None:
        """Serve until the pipeline closes the control socket or says so."""
        name_thread(f"{self._stage.spec.stage}/control")
        self._threads.start()
        self._send(m.Reply("ready"))
        told = False
        with suppress(EOFError, OSError):
            while not isinstance(command := self._connection.recv(), m.Close):
                self._take(command)
            told = True
        try:
            self._threads.stop()
            self._stage.close()
        finally:
            if not told or os.getppid() != self._parent:  # one that is killed while it waits for the stages' end, too
                self._remove_edges()

    def _remove_edges(self) -> None:
        """Remove the folder of a pipeline that has died; the last stage to come finds nobody who still writes there."""
        deadline = time.monotonic() + ORPHAN_WITHIN_S
        while any(edge.exists() for edge in self._edges) and time.monotonic() < deadline:
            if not remove_orphan(self._edges[0].parent):
                time.sleep(0.02)

    def _take(self, command: Any) -> None:
        if isinstance(command, m.Configure):
            self._send(m.Reply(self._configure(command)))
            return
        if isinstance(command, m.StartProfile):
            self._stage.profile.prepare(command)  # here, for torch's profiler wants the main thread at its first use
        self._stage.engine.commands.append(command)
        self._stage.bell.ring()

    def _configure(self, command: m.Configure) -> Any:
        self._threads.stop()
        try:
            self._stage.configure(cloudpickle.loads(command.recipe))
        except Exception as error:
            return StageFailed(f"{self._stage.spec.stage}: cannot take this recipe: {error}")
        self._threads = LoopThreads(self._stage)
        self._threads.start()
        return "configured"

    def _send(self, event: Any) -> None:
        data = cloudpickle.dumps(event)
        with self._sending, suppress(OSError):  # a pipeline that has gone reads no events
            self._connection.send_bytes(data)


def _edge(edge: tuple[str, int] | None) -> Connector | None:
    return SharedMemoryConnector(Path(edge[0]), Doorbell.adopt(edge[1])) if edge else None


def main() -> int:
    """Run the stage that the control socket describes."""
    quiet_start()
    with Connection(int(sys.argv[1])) as connection:
        start: Start = receive(connection, within_s=60)
        limit_threads(start.spec.num_threads)
        try:
            process = StageProcess(connection, start)
        except Exception as error:
            stage = start.spec.stage
            failure = StageFailed(f"{stage}: did not start: {error}\n{traceback.format_exc()}", stage=stage)
            with suppress(OSError):
                connection.send_bytes(cloudpickle.dumps(m.Failed(None, failure)))
            return 1
        settle()
        process.run()
    return 0
