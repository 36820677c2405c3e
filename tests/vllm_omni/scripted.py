"""Modules of vLLM-Omni as far as the toggles touch them, so that both sides run without it."""

from __future__ import annotations

import threading
from collections import defaultdict
from types import ModuleType, SimpleNamespace
from typing import Any


class Processor:
    """Builds a chunk of every output; notes the chunk id that it saw."""

    def __init__(self) -> None:
        self.chunk_ids: list[int] = []

    def __call__(self, transfer_manager: Any, multimodal_output: Any, request: Any, is_finished: bool = False) -> Any:
        if multimodal_output == "fails":
            raise ValueError("no such layer")
        self.chunk_ids.append(transfer_manager.put_req_chunk[request.external_req_id])
        return None if multimodal_output == "held back" else SimpleNamespace(embed=None, output=multimodal_output)


class Adapter:
    """Queues outputs; `drain` is what the save thread does."""

    def __init__(self) -> None:
        self.connector = SimpleNamespace(stage_id=0)
        self.custom_process_next_stage_input_func: Any = Processor()
        self.processor = self.custom_process_next_stage_input_func
        self.put_req_chunk: dict[str, int] = defaultdict(int)
        self.requests_num_chunks_sent: dict[str, int] = {}
        self.save_thread: threading.Thread | None = None
        self.model_mode = "ar"
        self.queue: list[tuple[Any, Any, bool]] = []
        self.put: list[Any] = []
        self.committed: list[Any] = []

    def save_async(self, multimodal_output=None, request: Any = None, is_segment_finished=False, **_: Any) -> None:
        self.queue.append((multimodal_output, request, request.is_finished()))

    def drain(self) -> None:
        self.save_thread = threading.Thread(target=self._drain)
        self.save_thread.start()
        self.save_thread.join()

    def _drain(self) -> None:
        for output, request, finished in self.queue:
            payload = self.custom_process_next_stage_input_func(
                transfer_manager=self, multimodal_output=output, request=request, is_finished=finished
            )
            if payload is not None:
                self.put_req_chunk[request.external_req_id] += 1
                self.put.append(payload)
        self.queue.clear()

    def _accepts_new_token_ids(self, processor: Any) -> bool:
        return False

    def _confirmed_num_computed_tokens(self, request: Any) -> int:
        return request.computed

    def _commit_received_chunk(self, request: Any, result: Any, **_: Any) -> bool:
        self.committed.append(result[0])
        return True

    def _clear_sender_state_locked(self, external_req_id: str) -> None:
        self.put_req_chunk.pop(external_req_id, None)

    def _clear_receiver_state_locked(self, request_id: str) -> None: ...


def adapter_module() -> Any:
    """The adapter's module, its class made anew so that each test may change it."""
    module: Any = ModuleType("chunk_transfer_adapter")
    module.OmniChunkTransferAdapter = type("OmniChunkTransferAdapter", (Adapter,), {**vars(Adapter)})
    module.unflatten_payload = lambda flat: {"unflattened": flat}
    return module


def request(name: str = "r", *, finished: bool = False, computed: int = 1, **more: Any) -> Any:
    """A request as the adapter sees it."""
    about = {"resumable": False, "output_token_ids": [1], "is_finished": lambda: finished, "computed": computed}
    return SimpleNamespace(external_req_id=name, **{**about, **more})


def runner_module() -> Any:
    """The runners' module: a worker's buffer with the native merge of two levels."""

    class Runner:
        def __init__(self, stage: int = 1) -> None:
            self.model_config = SimpleNamespace(stage_id=stage, async_chunk=True)
            self.requests = {"r": SimpleNamespace()}
            self.model_intermediate_buffer: dict[str, Any] = {}
            self.updates = self.states = 0

        def _update_additional_information(self, scheduler_output: Any) -> None:
            for name, payload in scheduler_output.payloads.items():
                self._update_intermediate_buffer(name, payload)

        def _update_intermediate_buffer(self, req_id: str, upd: Any) -> None:
            if req_id not in self.requests:
                return
            have = self.model_intermediate_buffer.setdefault(req_id, {})
            for name, value in upd.items():
                if isinstance(value, dict):
                    part = have.setdefault(name, {})
                    part.update({k: list(v) if isinstance(v, list) else v for k, v in value.items()})
                else:
                    have[name] = list(value) if isinstance(value, list) else value
            self.requests[req_id].additional_information_cpu = have

        def _update_request_states(self, scheduler_output: Any) -> None:
            self.updates += 1

        def _update_states(self, scheduler_output: Any) -> str:
            self.states += 1
            return "deferred"

    module: Any = ModuleType("runners")
    module.OmniGPUModelRunner = module.GPUGenerationModelRunner = Runner
    return module
