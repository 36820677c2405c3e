"""Code2Wav's runner: one window a request and step, and the batch whose states the recipe updates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from omnilab.engine import messages as m
from omnilab.engine.runner import StageRunner, what
from omnilab.recipe import Recipe
from omnilab.record import count, span
from omnilab.seams import Payload, WindowDecoder


@dataclass(slots=True)
class _State:
    payload: Payload
    vocoder: Any = None


class Batch:
    """Requests of Code2Wav and those of them that are in the batch. Satisfies seams.RequestBatch."""

    def __init__(self, states: dict[str, _State]) -> None:
        self._states = states
        self._rows: list[str] = []
        self.idle = False  # nothing is scheduled in this step: said by the runner

    def ids(self) -> set[str]:
        """Ids of the requests in the batch; asked at the start of every update."""
        count("updates_while_idle" if self.idle else "updates_while_busy")
        return set(self._rows)

    def park(self, request_id: str) -> None:
        """Take a request out of the batch and keep its state."""
        self._rows.remove(request_id)

    def refresh(self, request_id: str, payload: Payload) -> None:
        """Give a request its new codes and put it into the batch anew."""
        if request_id in self._rows:
            self._rows.remove(request_id)
        self._rows.append(request_id)
        self._states[request_id].payload = payload

    def free(self, request_id: str) -> None:
        """Forget a request."""
        if request_id in self._rows:
            self._rows.remove(request_id)
        self._states.pop(request_id, None)

    def entries(self) -> int:
        """How many rows are held."""
        return len(self._rows)


class Code2WavRunner(StageRunner[_State]):
    """Samples of each chunk's new frames."""

    def __init__(self, network: WindowDecoder, recipe: Recipe, *, left_context: int) -> None:
        self._network, self._left_context = network, left_context
        super().__init__("code2wav", recipe)
        self._batch = Batch(self.states)

    def configure(self) -> None:
        """Build the vocoder."""
        self._vocode = self.recipe.vocode(self._left_context)

    def entries(self) -> int:
        """How many per-request entries are held."""
        return len(self.states) + self._batch.entries()

    def join(self, request: m.StageRequest) -> _State:
        """Take a request in; its first chunk comes with the same step."""
        return _State({})

    def leave(self, request_id: str) -> None:
        """Forget a request."""
        self._batch.free(request_id)

    def finish(self, work: m.Work) -> None:
        """Left to the recipe's `idle_step`, which sees every step."""

    def _step(self, work: m.Work) -> list[m.Output]:
        for request in work.new:
            self.states[request.request_id] = self.join(request)
        scheduled = {item.request_id: item.payload or {} for item in work.items}
        self._batch.idle = not scheduled
        with span("update_states"):
            self.recipe.idle_step(self._batch, scheduled, work.finished)
        return self.run(work.items)

    def run(self, items: list[m.Item]) -> list[m.Output]:
        """Decode each scheduled request's chunk."""
        outputs: list[m.Output] = []
        for item in items:
            state = self.states[item.request_id]
            try:
                with span("vocode", item.request_id):
                    samples, state.vocoder = self._vocode.decode(self._network, state.vocoder, state.payload)
                outputs.append(m.Output(item.request_id, samples=_copied(samples)))
            except Exception as error:
                outputs.append(m.Output(item.request_id, error=what(error)))
        return outputs


def _copied(samples: Tensor) -> NDArray[np.float32]:
    """Copy to the CPU, always: a network may use its buffer again, and a view would keep the whole window."""
    return torch.empty(samples.shape, dtype=torch.float32).copy_(samples).numpy()
