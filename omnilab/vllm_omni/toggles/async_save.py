"""Toggle of the real engine: build each payload on the sender thread, not on the engine thread.

0.30.0 ships the optimized side. Restored for the baseline: the processor runs in `save_async`, and its result takes the
place of the raw output in the native queue. Unlike in February 2026, both sides pay 0.30.0's snapshot of the request
(ids copied at each step), and the native wait by condition; the February revision polled once a millisecond.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter_ns
from types import ModuleType
from typing import Any

from omnilab.toggle import Toggle
from omnilab.vllm_omni.board import BASELINE
from omnilab.vllm_omni.panel import Panel

logger = logging.getLogger("vllm.omnilab")
Processor = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Built:
    """A payload made on the engine thread, on its way through the save queue in place of the raw output."""

    payload: Any


class BuiltSoFar:
    """The adapter as a processor sees it on the engine thread: chunk ids count what was built, not what was put."""

    def __init__(self, adapter: Any) -> None:
        self._adapter = adapter
        self.put_req_chunk: dict[str, int] = defaultdict(int)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._adapter, name)


def build_on_engine(adapter: Any, output: Any, request: Any, last: bool, new_token_ids: tuple[int, ...]) -> Any:
    """Baseline: run the processor now; what is queued is its result."""
    view, processor = adapter.omnilab_built, adapter.custom_process_next_stage_input_func
    more = {"new_token_ids": new_token_ids} if adapter._accepts_new_token_ids(processor) else {}
    payload = None
    try:
        payload = processor(
            transfer_manager=view, multimodal_output=output, request=request, is_finished=last, **more
        )  # fmt: skip
    except Exception:  # the sender, too, logs it and goes on: it must not end the engine
        logger.exception("%s: the payload of a chunk could not be built", request.external_req_id)
    if payload is not None:
        view.put_req_chunk[request.external_req_id] += 1
    return Built(payload)


def build_on_sender(adapter: Any, output: Any, request: Any, last: bool, new_token_ids: tuple[int, ...]) -> Any:
    """Optimized: what is queued is the raw output; the sender thread runs the processor."""
    return output


TOGGLE: Toggle[Callable[..., Any]] = Toggle(
    name="async_save",
    seam="vllm_omni.save",
    baseline=build_on_engine,
    optimized=build_on_sender,
    claim="Building payloads on the sender thread takes work off the engine's step.",
)


def install(module: ModuleType, panel: Panel) -> None:
    """Put both sides into `save_async` of the adapter, and count on which thread the processor ran."""
    adapter = module.OmniChunkTransferAdapter
    make, save, forget = adapter.__init__, adapter.save_async, adapter._clear_sender_state_locked

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        self.omnilab_built = BuiltSoFar(self)
        if (processor := self.custom_process_next_stage_input_func) is not None:
            self.custom_process_next_stage_input_func = counted(processor, panel)

    def save_async(
        self: Any, multimodal_output: Any = None, request: Any = None, is_segment_finished: bool = False, **rest: Any
    ) -> None:
        if self.custom_process_next_stage_input_func and not request.resumable and not _replayed(self, request, rest):
            side = self.omnilab_latches.of(request.external_req_id)["async_save"]
            queue = build_on_engine if side == BASELINE else build_on_sender
            output = multimodal_output
            if queue is build_on_engine and isinstance(output, Mapping):
                output = module.unflatten_payload(output)
            last = bool(is_segment_finished or rest.get("force_request_finished") or request.is_finished())
            multimodal_output = queue(self, output, request, last, tuple(rest.get("new_token_ids") or ()))
        save(self, multimodal_output, request, is_segment_finished, **rest)

    def _clear_sender_state_locked(self: Any, external_req_id: str) -> None:
        forget(self, external_req_id)
        self.omnilab_built.put_req_chunk.pop(external_req_id, None)

    adapter.__init__, adapter.save_async = __init__, save_async
    adapter._clear_sender_state_locked = _clear_sender_state_locked


def _replayed(adapter: Any, request: Any, rest: Mapping[str, Any]) -> bool:
    """Was this step's chunk saved before the request was preempted? The native method will turn it away."""
    computed = rest.get("confirmed_num_computed_tokens")
    if computed is None:
        computed = adapter._confirmed_num_computed_tokens(request)
    return computed < adapter.requests_num_chunks_sent.get(request.external_req_id, 0)


def counted(processor: Processor, panel: Panel) -> Processor:
    """Count and time a processor by the thread it runs on; hand on what was built before."""

    @functools.wraps(processor)  # the adapter inspects its signature
    def run(transfer_manager: Any, multimodal_output: Any, request: Any, is_finished: bool = False, **more: Any) -> Any:
        if isinstance(multimodal_output, Built):
            return multimodal_output.payload
        start = perf_counter_ns()
        payload = processor(
            transfer_manager=transfer_manager, multimodal_output=multimodal_output, request=request,
            is_finished=is_finished, **more,
        )  # fmt: skip
        thread = "send" if threading.current_thread() is transfer_manager.save_thread else "engine"
        stage = transfer_manager.connector.stage_id
        panel.time(stage, thread, "build", perf_counter_ns() - start)
        panel.count(stage, thread, "chunks_built", payload is not None)
        return payload

    return run
