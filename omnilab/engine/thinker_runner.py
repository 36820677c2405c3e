"""The Thinker's runner: prefill parts one by one, all decoding requests in one batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from omnilab.engine import messages as m
from omnilab.engine.draws import DrawsMaker
from omnilab.engine.runner import StageRunner, what
from omnilab.model.sampling import greedy, pick
from omnilab.model.thinker import EmbeddedPrompt, Thinker
from omnilab.recipe import Recipe
from omnilab.record import span
from omnilab.seams import Draws, Phase, ThinkerRows


@dataclass(slots=True)
class _State:
    request: m.StageRequest
    slot: int
    prompt: EmbeddedPrompt
    next_position: int  # rotary position of the next token
    last_token: int = -1


class ThinkerRunner(StageRunner[_State]):
    """Text tokens, and rows for the Talker in the edge's dtype."""

    def __init__(self, network: Thinker, recipe: Recipe, *, max_num_seqs: int, edge_dtype: torch.dtype) -> None:
        self._network, self._max_num_seqs, self._edge_dtype = network, max_num_seqs, edge_dtype
        self._draws = DrawsMaker("thinker", network.device, network.vocab_size, None)
        self._tts_rows = self._copied(network.tts_rows())
        super().__init__("thinker", recipe)

    def configure(self) -> None:
        """Build the decode step."""
        self._decode_step = self.recipe.decode_step(self._network, self._network.cache, self._tail, self._max_num_seqs)

    def entries(self) -> int:
        """How many per-request entries are held."""
        return len(self.states) + self._draws.entries()

    def join(self, request: m.StageRequest) -> _State:
        """Take a slot and embed the prompt, its audio and images too."""
        with span("embed", request.request_id):
            prompt = self._network.embed(request.prompt)
        self._draws.join(request)
        return _State(request, self._network.join(), prompt, request.num_prompt_tokens + prompt.position_delta)

    def leave(self, request_id: str) -> None:
        """Give the slot back."""
        if (state := self.states.pop(request_id, None)) is not None:
            self._network.leave(state.slot)
        self._draws.leave(request_id)

    def run(self, items: list[m.Item]) -> list[m.Output]:
        """Decode first: those requests are waited for."""
        outputs = self._decode([item for item in items if item.phase is Phase.DECODE])
        for item in items:
            if item.phase is Phase.PREFILL:
                try:
                    outputs.append(self._prefill(item))
                except Exception as error:
                    outputs.append(m.Output(item.request_id, error=what(error)))
        return outputs

    def _prefill(self, item: m.Item) -> m.Output:
        state = self.states[item.request_id]
        with span("forward", item.request_id):
            hidden, accepted = self._network.prefill(state.slot, state.prompt, item.start, item.end)
        token = None
        if item.last_part:
            with span("sample", item.request_id):
                slots = torch.tensor([state.slot])
                ids, _ = self._tail((hidden[None], accepted[-1:]), slots, self._draws.make([state.request]))
                token = state.last_token = int(ids)
        with span("copy", item.request_id):
            rows = self._rows(Phase.PREFILL, state.prompt.embeddings[item.start : item.end], accepted)
        return m.Output(item.request_id, token=token, rows=rows)

    def _decode(self, items: list[m.Item]) -> list[m.Output]:
        if not items:
            return []
        states = [self.states[item.request_id] for item in items]
        try:
            with span("sample"):
                draws = self._draws.make([s.request for s in states])
            with span("forward"):
                inputs = self._network.embed_tokens([s.last_token for s in states])
                positions = torch.tensor([s.next_position for s in states])
                ids, accepted = self._decode_step(inputs, positions, torch.tensor([s.slot for s in states]), draws)
                tokens = ids.tolist()
        except Exception as error:
            return [m.Output(item.request_id, error=what(error)) for item in items]
        outputs: list[m.Output] = []
        with span("copy"):
            for row, (state, token) in enumerate(zip(states, tokens, strict=True)):
                state.last_token, state.next_position = token, state.next_position + 1
                rows = self._rows(Phase.DECODE, inputs[row : row + 1], accepted[row : row + 1])
                outputs.append(m.Output(state.request.request_id, token=token, rows=rows))
        return outputs

    def _tail(self, decoded: Any, slots: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
        hidden, accepted = decoded
        logits = self._network.logits(hidden)
        if draws.all_greedy:
            return greedy(logits), accepted
        return pick(logits, draws.first, draws.temperature, draws.top_k, draws.top_p), accepted

    def _rows(self, phase: Phase, embeddings: Tensor, accepted: Tensor) -> ThinkerRows:
        return ThinkerRows(phase, self._copied(embeddings), self._copied(accepted), self._tts_rows)

    def _copied(self, rows: Tensor) -> Tensor:
        """Copy to the CPU, always: a view would take its whole storage across, and buffers are used again."""
        return torch.empty(rows.shape, dtype=self._edge_dtype).copy_(rows)
