"""A stage's loops on threads of their own, in a live topology."""

from __future__ import annotations

import threading
import time

from omnilab.engine.stage import Loop, Stage
from omnilab.engine.worker import name_thread
from omnilab.errors import StageFailed

JOIN_WITHIN_S = 10.0


class LoopThreads:
    """Runs every loop of a stage. A loop that dies takes the stage's requests with it, never silently."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._stopping = threading.Event()
        self._loops = stage.loops()
        self._dead: list[StageFailed] = []
        self._threads = [
            threading.Thread(target=self._run, args=(loop,), name=f"{stage.spec.stage}/{loop.name}", daemon=True)
            for loop in self._loops
        ]

    def start(self) -> None:
        """Start them."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End them after the step they are in; RuntimeError when one does not."""
        self._stopping.set()
        deadline = time.monotonic() + JOIN_WITHIN_S
        for loop, thread in zip(self._loops, self._threads, strict=True):
            loop.wake()
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                raise RuntimeError(f"the thread {thread.name} does not end")

    def _run(self, loop: Loop) -> None:
        name_thread()
        try:
            while not self._stopping.is_set():
                if loop.name == "engine" and self._dead:
                    self._stage.engine.stop(self._dead[0])
                loop.rest(loop.step())
        except BaseException as error:
            stage = self._stage.spec.stage
            failure = StageFailed(f"{stage}: its {loop.name} thread has ended: {error!r}", stage=stage)
            if loop.name == "engine":
                self._stage.engine.stop(failure)
            else:
                self._dead.append(failure)
                self._stage.bell.ring()
            raise
