"""The pipeline behind a panel: opened in the background, opened again after a failure, closed once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from omnilab.errors import Aborted
from omnilab.pipeline import Pipeline
from omnilab.recipes import BEFORE_1378

# One panel of this kernel measures at a time: two would disturb each other's times.
_MEASURING = threading.Lock()


class Session:
    """A pipeline of the panel's own, or one that was handed in: that one is left open, its replacement is not."""

    def __init__(self, given: Pipeline | str | Path) -> None:
        self._lock = threading.RLock()
        self._closed = False
        self._pipe = given if isinstance(given, Pipeline) else None
        self._ours = self._pipe is None
        self.opened: Mapping[str, Any] = self._pipe.opened if self._pipe is not None else {
            "model": given, "recipe": BEFORE_1378,
        }  # fmt: skip

    def start(self, on_done: Callable[[str], None]) -> None:
        """Open the stages in the background; `on_done` gets "" or what is wrong."""

        def open_it() -> None:
            try:
                with measuring(lambda: self._closed, lambda: None):  # loading weights would disturb another's times
                    self.pipe()
            except Aborted:
                return
            except Exception as error:
                on_done(f"{error}")
            else:
                on_done("")

        threading.Thread(target=open_it, name="omnilab/open", daemon=True).start()

    def pipe(self) -> Pipeline:
        """Return the open pipeline, opened now if need be. BadInput and StageFailed are those of Pipeline.open."""
        with self._lock:
            if self._closed:
                raise Aborted("the panel is closed: make another")
            if self._pipe is None:
                self._pipe = Pipeline.open(**self.opened)
                self.opened = self._pipe.opened
            return self._pipe

    def ready(self) -> Pipeline | None:
        """Return the pipeline if it is open, without waiting for it."""
        return self._pipe

    def recover(self) -> bool:
        """After an error: drop a pipeline that cannot go on, so that the next use opens another. Was it dropped?"""
        with self._lock:
            if self._pipe is None or self._closed:
                return False
            try:
                self._pipe.occupants()
            except Exception:  # whatever it cannot answer with, it cannot go on
                self._pipe.close()
                self._pipe, self._ours = None, True
            return self._pipe is None

    def close(self) -> None:
        """End the stages that are the panel's own. Once is enough; a trial that runs is given up."""
        self._closed = True
        pipe, self._pipe = self._pipe, None
        if pipe is not None and self._ours:
            pipe.close()
        with self._lock:  # one that was being opened meanwhile
            if self._pipe is not None and self._ours:
                self._pipe.close()
                self._pipe = None


@contextmanager
def measuring(stop: Callable[[], bool], on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the right to measure; wait for another panel that has it. Aborted when `stop` says yes meanwhile."""
    if not _MEASURING.acquire(blocking=False):
        on_wait()
        while not _MEASURING.acquire(timeout=0.1):
            if stop():
                raise Aborted("stopped before it began")
    try:
        yield
    finally:
        _MEASURING.release()
