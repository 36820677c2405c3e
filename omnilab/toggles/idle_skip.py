"""Toggle: leave the request states of Code2Wav alone on a step that runs nothing.

While a request waits for its next chunk the engine goes on stepping, and before vllm-omni#1378 each of these empty
steps rebuilt the batch. Requests that have finished are handled on every step on both sides: an empty step may carry
them. Microseconds a step: expect a null in time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from omnilab.seams import IdleStep, Payload, RequestBatch
from omnilab.toggle import Toggle


def update_always(batch: RequestBatch, scheduled: Mapping[str, Payload], finished: Iterable[str]) -> None:
    """Baseline: update the request states on every step."""
    _update_request_states(batch, scheduled)
    _free(batch, finished)


def update_when_scheduled(batch: RequestBatch, scheduled: Mapping[str, Payload], finished: Iterable[str]) -> None:
    """Optimized: not when nothing is scheduled."""
    if scheduled:
        _update_request_states(batch, scheduled)
    _free(batch, finished)


def _update_request_states(batch: RequestBatch, scheduled: Mapping[str, Payload]) -> None:
    for request_id in batch.ids() - scheduled.keys():
        batch.park(request_id)
    for request_id, payload in scheduled.items():
        batch.refresh(request_id, payload)


def _free(batch: RequestBatch, finished: Iterable[str]) -> None:
    for request_id in finished:
        batch.free(request_id)


TOGGLE: Toggle[IdleStep] = Toggle(
    name="idle_skip",
    seam="idle_step",
    baseline=update_always,
    optimized=update_when_scheduled,
    claim="an empty step of Code2Wav no longer touches the batch; no latency is expected to change",
)
