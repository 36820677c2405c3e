"""Toggle of the real engine: layer-24 rows and the output-id list with the prefill only, not with every decode chunk.

0.30.0 ships the optimized side. Restored for the baseline: each decode chunk carries its hidden row and the whole
output-id list again, the receiver concatenates both to what it has, and all of it is attached to the next step. Unlike
in February 2026, embeddings are not accumulated (0.30.0 replaces them on both sides), and the payload has two levels.
`UNSAFE` is wrong on purpose: it shows that a run would notice.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import perf_counter_ns
from types import ModuleType
from typing import Any

from omnilab.toggle import Toggle
from omnilab.vllm_omni.board import BASELINE, OPTIMIZED, WRONG
from omnilab.vllm_omni.panel import Panel
from omnilab.vllm_omni.processors import then

Decode = Callable[[Any, Any, Any, Any], Any]
DROPPED_TOKEN = 5  # of the text


def with_every_chunk(adapter: Any, output: Any, request: Any, payload: Any) -> Any:
    """Baseline: add the token's hidden row [1, H] and all output ids so far to a decode chunk."""
    from vllm_omni.data_entry_keys import (  # pyright: ignore[reportMissingImports]
        HiddenStatesStruct,
        IdsStruct,
    )

    processors = sys.modules["vllm_omni.model_executor.stage_input_processors.qwen3_omni"]
    layer = processors._get_accept_hidden_layer_index(adapter)
    rows = output["hidden_states"]["layers"]
    row = rows[layer] if layer in rows else rows[str(layer)]
    payload.hidden_states = HiddenStatesStruct(output=row.detach().cpu())
    payload.ids = IdsStruct(all=list(request.output_token_ids))
    return payload


def with_the_prefill_only(adapter: Any, output: Any, request: Any, payload: Any) -> Any:
    """Optimized: a decode chunk is the token's embedding."""
    return payload


def drop_a_row(adapter: Any, output: Any, request: Any, payload: Any) -> Any:
    """Wrong on purpose: the chunk of one text token is not sent, and no error says so."""
    return None if len(request.output_token_ids) == DROPPED_TOKEN else payload


_SIDES: dict[int, Decode] = {BASELINE: with_every_chunk, OPTIMIZED: with_the_prefill_only, WRONG: drop_a_row}
TOGGLE: Toggle[Decode] = Toggle(
    name="prefill_only_hidden_states",
    seam="vllm_omni.thinker_payload",
    baseline=with_every_chunk,
    optimized=with_the_prefill_only,
    claim="Decode chunks without hidden rows and id list make the Talker's host work per step independent of length.",
)

UNSAFE: Toggle[Decode] = Toggle(
    name="dropped_row",
    seam=TOGGLE.seam,
    baseline=with_every_chunk,
    optimized=drop_a_row,
    claim="A run notices that one row is dropped.",
)


def install(module: ModuleType, panel: Panel) -> None:
    """Put the sides behind the processor of the Thinker's sender, and what follows from them into the receiver."""
    adapter = module.OmniChunkTransferAdapter
    make, commit, forget = adapter.__init__, adapter._commit_received_chunk, adapter._clear_receiver_state_locked

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        self.omnilab_received = {}
        if (processor := self.custom_process_next_stage_input_func) is not None:
            self.custom_process_next_stage_input_func = sided(processor, panel)

    def _commit_received_chunk(self: Any, request: Any, result: Any, **about: Any) -> bool:
        if self.model_mode == "ar" and not request.resumable:
            start = perf_counter_ns()
            rows, ids = accumulate(self.omnilab_received, about["req_id"], about["chunk_id"], result[0] or {})
            if rows:
                panel.time(about["stage_id"], "receive", "accumulate", perf_counter_ns() - start)
                panel.count(about["stage_id"], "receive", "hidden_rows_accumulated", rows)
                panel.count(about["stage_id"], "receive", "ids_accumulated", ids)
        return commit(self, request, result, **about)

    def _clear_receiver_state_locked(self: Any, request_id: str) -> None:
        forget(self, request_id)
        self.omnilab_received.pop(request_id, None)

    adapter.__init__, adapter._commit_received_chunk = __init__, _commit_received_chunk
    adapter._clear_receiver_state_locked = _clear_receiver_state_locked


def accumulate(received: dict[str, Any], request: str, chunk: int, payload: dict[str, Any]) -> tuple[int, int]:
    """Join a chunk's hidden rows [n, H] and ids to those received before; return the length of both.

    Chunk 0 only begins the list, and (0, 0) is returned; so it is for a chunk without hidden rows.
    """
    import torch

    hidden = (payload.get("hidden_states") or {}).get("output")
    if hidden is None:
        return 0, 0
    ids = (payload.get("ids") or {}).get("all") or []
    before = received.get(request) if chunk else None
    if before is not None:
        hidden = payload["hidden_states"]["output"] = torch.cat((before[0], hidden))
        ids = payload["ids"]["all"] = before[1] + ids
    received[request] = hidden, ids
    return (len(hidden), len(ids)) if before is not None else (0, 0)


def sided(processor: Callable[..., Any], panel: Panel) -> Callable[..., Any]:
    """Let the side of the request have its way with each decode chunk that a processor made."""

    def choose(adapter: Any, output: Any, request: Any, payload: Any) -> Any:
        embed = None if payload is None else payload.embed
        if embed is None or embed.decode is None or request.resumable:
            return payload
        side = adapter.omnilab_latches.of(request.external_req_id)["prefill_only_hidden_states"]
        chosen = _SIDES[side](adapter, output, request, payload)
        _count(panel, adapter.connector.stage_id, chosen)
        return chosen

    return then(processor, choose)


def _count(panel: Panel, stage: int, payload: Any) -> None:
    if payload is None:
        panel.count(stage, "send", "rows_dropped")
    elif payload.hidden_states is not None:
        panel.count(stage, "send", "hidden_rows_resent", len(payload.hidden_states.output))
        panel.count(stage, "send", "ids_resent", len(payload.ids.all))
