"""Toggle: call the runner in the engine's process, instead of pickling every step to a process of its own.

Seam `worker_link`: what crosses between an engine and its runner (vLLM's `mp` and `uni` executors).
"""

from __future__ import annotations

import pickle
from typing import Any

from omnilab.record import span
from omnilab.seams import MakeWorkerLink, RunnerFactory
from omnilab.toggle import Toggle


class PickledWorker:
    """Baseline: messages pickled to a runner in a process of its own, answers pickled back."""

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


class DirectWorker:
    """Optimized: the runner is called, and what crosses is the object itself."""

    def __init__(self, factory: RunnerFactory) -> None:
        self._runner = factory.build()
        self._answer: Any = None

    def submit(self, message: Any) -> None:
        """Call the runner; an exception is an answer, as it is from a process."""
        try:
            self._answer = self._runner.call(message)
        except Exception as error:
            self._answer = error

    def poll(self) -> Any | None:
        """Return the answer of the last `submit`, once."""
        answer, self._answer = self._answer, None
        return answer

    def fileno(self) -> int | None:
        """None: an answer is there at once."""
        return None

    def close(self) -> None:
        """End the runner."""
        self._runner.close()


TOGGLE: Toggle[MakeWorkerLink] = Toggle(
    name="direct_worker",
    seam="worker_link",
    baseline=PickledWorker,
    optimized=DirectWorker,
    claim="a step costs no pickling: host time falls by what its payload weighs",
    fresh_process=True,
)
