"""What runs in the next step: requests waiting for a slot, running, or waiting for a chunk. One scheduler a stage."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from omnilab.engine.messages import Audio, Item, Output, Spoken, StageRequest, Tokens, Work
from omnilab.engine.request import Live
from omnilab.record import count
from omnilab.seams import FINISHED, NUM_OUTPUTS, Attach, Payload, Phase, TalkerRows


class Scheduler:
    """Requests of one stage in the order of their admission. Called by the engine's loop alone."""

    def __init__(self, *, max_num_seqs: int, max_num_batched_tokens: int, attach: Attach) -> None:
        self._max_num_seqs, self._budget, self._attach = max_num_seqs, max_num_batched_tokens, attach
        self._queued: deque[Live] = deque()
        self._running: dict[str, Live] = {}
        self._gone: list[str] = []  # to be told to the runner with the next step
        self.ended: list[Live] = []  # ended without a step; the engine takes them

    @property
    def pending(self) -> bool:
        """Is any request here?"""
        return bool(self._queued or self._running)

    @property
    def unreported(self) -> bool:
        """Are there ended requests the runner has not been told of?"""
        return bool(self._gone)

    def entries(self) -> int:
        """How many per-request entries are held."""
        return len(self._queued) + len(self._running) + len(self._gone)

    def admit(self, live: Live) -> None:
        """Queue a request."""
        self._queued.append(live)

    def forget(self, live: Live) -> None:
        """Take a request out, if it is here; the runner is told with the next step."""
        if self._running.pop(live.request_id, None) is not None:
            if live.known_to_runner:
                self._gone.append(live.request_id)
        elif live in self._queued:
            self._queued.remove(live)

    def arrived(self, live: Live, held: Payload) -> None:
        """A chunk has come for a request."""
        live.held, live.fresh, live.waiting = held, True, False

    def schedule(self) -> tuple[Work, list[Live]]:
        """Return the next step and the requests that now want their next chunk."""
        while self._queued and len(self._running) < self._max_num_seqs:
            live = self._queued.popleft()
            self._running[live.request_id] = live
        new: list[StageRequest] = []
        items: list[Item] = []
        wants: list[Live] = []
        budget = self._budget
        for live in list(self._running.values()):
            if self._blocked(live):
                if not live.waiting:
                    live.waiting = True
                    wants.append(live)
                continue
            if (item := self._item(live, budget)) is None:
                continue
            budget -= max(item.end - item.start, 1)
            items.append(item)
            if not live.known_to_runner:
                live.known_to_runner = True
                new.append(live.request)
        gone, self._gone = self._gone, []
        return Work(new, items, gone), wants

    def advance(self, live: Live, output: Output) -> tuple[Any, Any]:
        """Take a step's output in; return the rows to save and the event to report, or None for either."""
        raise NotImplementedError

    def _blocked(self, live: Live) -> bool:
        """Must the request wait for a chunk?"""
        raise NotImplementedError

    def _item(self, live: Live, budget: int) -> Item | None:
        """Return the request's part in this step; None: nothing fits, or it has just ended."""
        raise NotImplementedError

    def _prefill_part(self, live: Live, budget: int, payload: Payload | None) -> Item | None:
        start = live.num_computed
        end = min(start + budget, live.request.num_prompt_tokens)
        if end <= start:
            return None
        live.num_computed = end
        return Item(live.request_id, Phase.PREFILL, start, end, live.prefilled, payload)

    def _end(self, live: Live, reason: str) -> None:
        live.finished, live.finish_reason = True, reason


class ThinkerScheduler(Scheduler):
    """Prefill in parts, then a token a step. Waits for nothing."""

    def advance(self, live: Live, output: Output) -> tuple[Any, Any]:
        """Append the token; end by an end token or by length."""
        if output.token is None:
            return output.rows, None
        sampling = live.request.sampling
        live.output_ids.append(output.token)
        if output.token in live.request.eos_ids and not sampling.ignore_eos:
            self._end(live, "stop")
        elif len(live.output_ids) >= sampling.max_outputs:
            self._end(live, "length")
        return output.rows, Tokens(live.request_id, [output.token], live.finish_reason or None)

    def _blocked(self, live: Live) -> bool:
        return False

    def _item(self, live: Live, budget: int) -> Item | None:
        if not live.prefilled:
            return self._prefill_part(live, budget, None)
        return Item(live.request_id, Phase.DECODE) if budget > 0 else None


class TalkerScheduler(Scheduler):
    """Prefill once chunk 0 is there, then a frame a step; each takes one chunk until the finished one has come."""

    def advance(self, live: Live, output: Output) -> tuple[Any, Any]:
        """Append the frame; end by the codec's end code or by length."""
        if output.codes:
            live.codes.append(output.codes)
            live.output_ids.append(output.codes[0])
        if output.token is not None and output.token in live.request.eos_ids:
            self._end(live, "stop")
        elif len(live.codes) >= live.request.sampling.max_outputs:
            self._end(live, "length")
        if not live.finished:
            return TalkerRows(output.codes), None
        codes = np.array(live.codes, dtype=np.int64) if live.codes else np.zeros((0, 0), dtype=np.int64)
        return TalkerRows(output.codes), Spoken(live.request_id, codes, live.finish_reason)

    def _blocked(self, live: Live) -> bool:
        if live.held is None:
            return True
        return live.prefilled and not live.fresh and not live.held[FINISHED]

    def _item(self, live: Live, budget: int) -> Item | None:
        held = live.held
        assert held is not None
        if held[FINISHED] and held[NUM_OUTPUTS] <= 1:  # an empty answer: there is no first token to speak
            self._end(live, "stop")
            self.ended.append(live)
            return None
        if budget <= 0:
            return None
        payload = self._attach(held, live.fresh, held[FINISHED])
        count("payloads_attached", int(payload is not None))
        live.fresh = False
        if not live.prefilled:
            return self._prefill_part(live, budget, payload)
        return Item(live.request_id, Phase.DECODE, payload=payload)


class Code2WavScheduler(Scheduler):
    """One chunk a step."""

    def advance(self, live: Live, output: Output) -> tuple[Any, Any]:
        """Report the samples; end with the finished chunk."""
        assert live.held is not None and output.samples is not None
        if live.held[FINISHED]:
            self._end(live, "stop")
        return None, Audio(live.request_id, output.samples, live.finished)

    def _blocked(self, live: Live) -> bool:
        return not live.fresh

    def _item(self, live: Live, budget: int) -> Item | None:
        live.fresh = False
        return Item(live.request_id, Phase.DECODE, payload=live.held)


SCHEDULERS: dict[str, type[Scheduler]] = {
    "thinker": ThinkerScheduler,
    "talker": TalkerScheduler,
    "code2wav": Code2WavScheduler,
}
