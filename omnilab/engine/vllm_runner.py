"""The Thinker's runner where vLLM writes the text: its tokens fall in with our engine's steps, rows come from a table.

Our engine asks for one token a step; vLLM, which steps all its requests at once, may be ahead of it for some. Tokens
that are early wait in their request's queue.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch

from omnilab.engine import messages as m
from omnilab.engine.runner import StageRunner
from omnilab.engine.spec import StageSpec
from omnilab.model.embedding import TokenRows
from omnilab.recipe import Recipe
from omnilab.record import span
from omnilab.seams import Phase, Runner, ThinkerRows


class TokenEngine(Protocol):
    """What writes tokens greedily, many requests at once."""

    def submit(self, request_id: str, prompt_ids: list[int], max_tokens: int) -> None:
        """Take a request in; it gets `max_tokens` tokens, whatever they are, unless it is aborted."""
        ...

    def step(self) -> Iterable[tuple[str, list[int], bool]]:
        """Run one step; return request, its new tokens and whether they are its last. May return nothing."""
        ...

    def abort(self, request_id: str) -> None:
        """Forget a request."""
        ...

    def entries(self) -> int:
        """How many requests are held."""
        ...

    def close(self) -> None:
        """Free what is held."""
        ...


@dataclass(slots=True)
class _State:
    request: m.StageRequest
    tokens: deque[int] = field(default_factory=deque)  # written, not asked for yet
    written: bool = False  # no more will come
    last_token: int = -1


class VllmThinkerRunner(StageRunner[_State]):
    """Tokens from an engine, layer-0 rows for the Talker's first chunk from the table, no accept-layer rows.

    What the engine raises in a step ends the stage: nobody knows then what it still holds.
    """

    def __init__(
        self, engine: TokenEngine, recipe: Recipe, *, lookup: TokenRows, tts_ids: list[int], timeout_s: float
    ) -> None:
        """`tts_ids` are those of tts bos, eos and pad; `timeout_s` bounds the wait for the tokens of a step."""
        self._engine, self._lookup, self._timeout_s = engine, lookup, timeout_s
        self._tts_rows = lookup.rows(tts_ids)
        self._no_rows = self._tts_rows.new_empty(0, self._tts_rows.shape[1])
        super().__init__("thinker", recipe)

    def entries(self) -> int:
        """How many per-request entries are held, the engine's too."""
        return len(self.states) + self._engine.entries()

    def close(self) -> None:
        """Abort what runs and end the engine."""
        super().close()
        self._engine.close()

    def join(self, request: m.StageRequest) -> _State:
        """Hand the whole prompt to the engine: how it is prefilled is its own."""
        self._engine.submit(request.request_id, request.prompt_ids, request.sampling.max_outputs)
        return _State(request)

    def leave(self, request_id: str) -> None:
        """Abort what is not written yet."""
        state = self.states.pop(request_id, None)
        if state is not None and not state.written:
            self._engine.abort(request_id)

    def run(self, items: list[m.Item]) -> list[m.Output]:
        """Step the engine until each request has the token that this step owes it."""
        owed = [self.states[i.request_id] for i in items if i.phase is Phase.DECODE or i.last_part]
        with span("forward"):
            lost = self._fill(owed)
        with span("copy"):
            return [
                m.Output(item.request_id, error=lost[item.request_id])
                if item.request_id in lost
                else self._output(item, self.states[item.request_id])
                for item in items
            ]

    def _fill(self, owed: list[_State]) -> dict[str, str]:
        """Return for each request that got no token why."""
        deadline = time.monotonic() + self._timeout_s
        while missing := [s.request.request_id for s in owed if not s.tokens and not s.written]:
            if time.monotonic() > deadline:
                return dict.fromkeys(missing, f"vLLM has written no token within {self._timeout_s:g} s")
            for request_id, tokens, written in self._engine.step():
                if (state := self.states.get(request_id)) is not None:
                    state.tokens.extend(tokens)
                    state.written = written
        return {s.request.request_id: "vLLM has ended the request too early" for s in owed if not s.tokens}

    def _output(self, item: m.Item, state: _State) -> m.Output:
        prompt = state.request.prompt_ids
        read = prompt[item.start : item.end] if item.phase is Phase.PREFILL else [state.last_token]
        rows = ThinkerRows(item.phase, self._lookup.rows(read), self._no_rows, self._tts_rows)
        if item.phase is Phase.PREFILL and not item.last_part:
            return m.Output(item.request_id, rows=rows)
        state.last_token = state.tokens.popleft()
        return m.Output(item.request_id, token=state.last_token, rows=rows)


def vllm_runner(spec: StageSpec, recipe: Recipe) -> Runner:
    """Start a vLLM engine in this process, which must be the stage's own, and wrap the runner around it."""
    from omnilab.engine.vllm_engine import open_engine
    from omnilab.model.weights import load_config

    folder = Path(spec.model)
    config = load_config(folder)
    dtype = spec.dtype or ("float32" if torch.device(spec.device).type == "cpu" else "bfloat16")
    lookup = TokenRows(folder, torch.device("cpu"), getattr(torch, dtype), getattr(torch, spec.edge_dtype), spec.seed)
    tts_ids = [config.tts_bos_token_id, config.tts_eos_token_id, config.tts_pad_token_id]
    engine = open_engine(spec, config.thinker_config.text_config, dtype)
    return VllmThinkerRunner(engine, recipe, lookup=lookup, tts_ids=tts_ids, timeout_s=spec.timeout_s)
