"""The Talker's runner: merges what arrives, prefills, then one frame of codes a step for every request in the batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from omnilab.engine import messages as m
from omnilab.engine.draws import DrawsMaker
from omnilab.engine.runner import StageRunner, what
from omnilab.model.sampling import apply_penalties, greedy, pick, suppress
from omnilab.model.talker import Talker
from omnilab.recipe import Recipe
from omnilab.record import count, span
from omnilab.seams import (
    EMBEDDINGS,
    FINISHED,
    HIDDEN_STATES,
    PROMPT_IDS,
    TTS_ROWS,
    Draws,
    Lookup,
    Payload,
    Phase,
)


@dataclass(frozen=True, slots=True)
class TalkerPrompt:
    """What the Talker is told of a prompt beside the rows that cross the edge."""

    positions: Tensor  # [3, U + 9]
    position_delta: int
    speaker: str


class _Ends(NamedTuple):
    """Projected rows [T] of tts eos and pad."""

    eos: Tensor
    pad: Tensor


@dataclass(slots=True)
class _State:
    request: m.StageRequest
    slot: int
    next_position: int  # rotary position of the next frame
    payload: Payload | None = None  # merged so far
    prompt: Tensor | None = None  # [U + 9, T] while it is prefilled
    ends: _Ends | None = None
    next_row: int = 0  # position in the Thinker's sequence of the next text row
    text_ended: bool = False
    embedding_sum: Tensor | None = None  # [T] of the last frame


class TalkerRunner(StageRunner[_State]):
    """Codes of one frame a request and step: first code by the Talker, the others by the recipe's predictor."""

    def __init__(self, network: Talker, recipe: Recipe, *, max_num_seqs: int, lookup: Lookup) -> None:
        self._network, self._max_num_seqs, self._lookup = network, max_num_seqs, lookup
        residual = (network.num_code_groups - 1, network.codebook_size)
        self._draws = DrawsMaker("talker", network.device, network.vocab_size, residual)
        # first codes each slot has generated, for the repetition penalty; the last row is the padding's of a graph
        self._seen = torch.zeros(max_num_seqs + 1, network.vocab_size, dtype=torch.bool, device=network.device)
        super().__init__("talker", recipe)

    def configure(self) -> None:
        """Build what the recipe's occupants make."""
        self._reader = self.recipe.thinker_payload()
        self._predict_codes = self.recipe.predict_codes(self._network.predictor, self._max_num_seqs)
        self._decode_step = self.recipe.decode_step(self._network, self._network.cache, self._tail, self._max_num_seqs)

    def entries(self) -> int:
        """How many per-request entries are held."""
        return len(self.states) + self._draws.entries()

    def join(self, request: m.StageRequest) -> _State:
        """Take a slot."""
        self._draws.join(request)
        slot = self._network.join()
        self._seen[slot] = False
        first_position = request.num_prompt_tokens + request.prompt.position_delta
        return _State(request, slot, first_position, next_row=len(request.prompt_ids) + 1)

    def leave(self, request_id: str) -> None:
        """Give the slot back."""
        if (state := self.states.pop(request_id, None)) is not None:
            self._network.leave(state.slot)
        self._draws.leave(request_id)

    def run(self, items: list[m.Item]) -> list[m.Output]:
        """Merge every payload, then prefill parts one by one, then decode the batch."""
        outputs: list[m.Output] = []
        ready: list[_State] = []
        for item in items:
            try:
                state = self._merged(item)
                if item.phase is Phase.PREFILL:
                    outputs.append(self._prefill(state, item))
                else:
                    self._add_text(state)
                    ready.append(state)
            except Exception as error:
                outputs.append(m.Output(item.request_id, error=what(error)))
        return outputs + self._decode(ready)

    def _merged(self, item: m.Item) -> _State:
        state = self.states[item.request_id]
        if item.payload is not None:
            with span("merge", item.request_id):
                merged = self.recipe.merge(state.payload, item.payload)
            _count_merge(merged, item.payload)
            state.payload = merged
        return state

    def _prefill(self, state: _State, item: m.Item) -> m.Output:
        with span("embed", item.request_id):
            if state.prompt is None:
                self._begin(state)
        assert state.prompt is not None
        with span("forward", item.request_id):
            positions = state.request.prompt.positions[:, item.start : item.end]
            hidden = self._network.prefill(state.slot, state.prompt[item.start : item.end], positions)
        if not item.last_part:
            return m.Output(item.request_id)
        state.prompt = None
        with span("sample", item.request_id):
            draws = self._draws.make([state.request])
        with span("forward", item.request_id):
            return self._outputs([state], self._tail(hidden[None], torch.tensor([state.slot]), draws))[0]

    def _begin(self, state: _State) -> None:
        payload = state.payload
        assert payload is not None
        state.prompt = self._network.prompt_inputs(
            payload[PROMPT_IDS],
            payload[EMBEDDINGS],
            payload[HIDDEN_STATES],
            payload[TTS_ROWS],
            state.request.prompt.speaker,
        )
        if len(state.prompt) != state.request.num_prompt_tokens:
            raise ValueError(f"{len(state.prompt)} rows of prompt, {state.request.num_prompt_tokens} were announced")
        _, eos, pad = self._network.project_text(payload[TTS_ROWS]).unbind()
        state.ends = _Ends(eos, pad)

    def _add_text(self, state: _State) -> None:
        """Add the text row of this step to the last frame's embedding: the next token, then tts eos once, then pad."""
        assert state.payload is not None and state.ends is not None and state.embedding_sum is not None
        row = self._reader.read(state.payload, state.next_row, self._lookup)
        if row is not None:
            state.next_row += 1
            text = self._network.project_text(row[None])[0]
        elif not state.payload[FINISHED]:
            raise LookupError(f"the row at position {state.next_row} has not come, nor the end of the text")
        else:
            text = state.ends.pad if state.text_ended else state.ends.eos
            state.text_ended = True
        state.embedding_sum = state.embedding_sum + text

    def _decode(self, states: list[_State]) -> list[m.Output]:
        if not states:
            return []
        try:
            with span("sample"):
                draws = self._draws.make([s.request for s in states])
            with span("forward"):
                inputs = torch.stack([_required(s.embedding_sum) for s in states])
                positions = torch.tensor([s.next_position for s in states])
                slots = torch.tensor([s.slot for s in states])
                outputs = self._outputs(states, self._decode_step(inputs, positions, slots, draws))
        except Exception as error:
            return [m.Output(s.request.request_id, error=what(error)) for s in states]
        for state in states:
            state.next_position += 1
        return outputs

    def _tail(self, hidden: Tensor, slots: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
        """Sample the first codes and predict the others; nothing is read back to the host."""
        network = self._network
        slots = slots.to(network.device, non_blocking=True)
        logits = apply_penalties(network.logits(hidden), self._seen[slots], draws.repetition_penalty)
        logits = suppress(logits, network.suppressed_ids)
        end = logits[:, network.eos_id]
        logits[:, network.eos_id] = torch.where(draws.no_end, -torch.inf, end)
        if draws.all_greedy:
            code0 = greedy(logits)
        else:
            code0 = pick(logits, draws.first, draws.temperature, draws.top_k, draws.top_p)
        self._seen[slots, code0] = True
        return self._predict_codes(hidden, code0, draws)

    def _outputs(self, states: list[_State], step: tuple[Tensor, Tensor]) -> list[m.Output]:
        codes, embedding_sums = step
        outputs: list[m.Output] = []
        for state, frame, embedding_sum in zip(states, codes.tolist(), embedding_sums, strict=True):
            state.embedding_sum = embedding_sum
            ended = frame[0] == self._network.eos_id
            outputs.append(m.Output(state.request.request_id, frame[0], () if ended else tuple(frame)))
        return outputs


def _required(rows: Tensor | None) -> Tensor:
    assert rows is not None
    return rows


def _count_merge(merged: Payload, payload: Payload) -> None:
    """Count from outside what the merge did: a list that is not the payload's own was rebuilt element by element."""
    rebuilt: list[Any] = [v for k, v in payload.items() if isinstance(v, list) and merged[k] is not v]
    count("merges")
    count("elements_visited", sum(len(value) for value in rebuilt))
