"""Seam `worker_link`: what crosses between an engine and its runner."""

from __future__ import annotations

import pickle
from typing import Any

from omnilab.record import span
from omnilab.seams import RunnerFactory


class PickledWorker:
    """Baseline: messages pickled to a runner in a process of its own, answers pickled back (vLLM's `mp` executor)."""

    def __init__(self, factory: RunnerFactory) -> None:
        self._channel = factory.spawn()

    def submit(self, message: Any) -> None:
        """Pickle and send a message."""
        with span("pickle"):
            data = pickle.dumps(message, protocol=5)
        with span("transport"):
            self._channel.send_bytes(data)

    def poll(self) -> Any | None:
        """Return the unpickled answer, or None while there is none. EOFError: the worker has ended."""
        if not self._channel.poll():
            return None
        with span("transport"):
            data = self._channel.recv_bytes()
        with span("unpickle"):
            return pickle.loads(data)

    def fileno(self) -> int | None:
        """Descriptor that becomes readable with an answer."""
        return self._channel.fileno()

    def close(self) -> None:
        """End the worker."""
        self._channel.close()
