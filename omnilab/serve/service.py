"""The pipeline as it is served: takes what is asked, in its turn, and counts how it ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from omnilab import metrics
from omnilab.engine.tracker import Tracked
from omnilab.errors import Aborted
from omnilab.pipeline import Pipeline
from omnilab.serve.admission import Admission, Ticket
from omnilab.serve.asked import Asked
from omnilab.serve.errors import ApiError, told
from omnilab.serve.limits import Allowed, Limits
from omnilab.serve.metrics import PipelineMetrics
from omnilab.speech import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What a server says of itself, and what it takes."""

    model: str  # the name under which clients ask for it
    recipe: str
    changed: dict[str, str] = field(default_factory=dict)  # seam -> what fills it, where BEFORE_1378 has another
    max_running: int = 8
    max_waiting: int = 128
    api_key: str | None = None
    limits: Limits = field(default_factory=Limits)
    allowed: Allowed = field(default_factory=Allowed)
    profile_dir: str | None = None


class Accepted:
    """One request that has a place. `close` in any case: it ends what is left of it, wherever that is."""

    def __init__(self, service: Service, ticket: Ticket, tracked: Tracked) -> None:
        """Made by Service.accept."""
        self._service, self._ticket, self.tracked = service, ticket, tracked
        self._closed = False

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return self.tracked.record.input_tokens

    @property
    def output_tokens(self) -> int:
        """Text tokens that have come so far, whether taken or not."""
        return self.tracked.record.output_tokens

    @property
    def sample_rate(self) -> int:
        """Hz."""
        return self.tracked.sample_rate

    @property
    def queue_ms(self) -> float:
        """Milliseconds for which the request waited for its turn; they are in no other time."""
        return 1e3 * self._ticket.queued_s

    async def events(self) -> AsyncGenerator[Event]:
        """Wait for the request's turn, then yield its events; ApiError when it fails.

        It is counted when they end: before its client reads the end of the answer, and may ask for the metrics.
        """
        pipe = self._service.pipe
        try:
            await self._ticket.turn()
            async with aclosing(pipe.follow(self.tracked)) as events:
                async for event in events:
                    yield event
            self.close()
        except ApiError:
            raise
        except Exception as error:
            raise told(error, ended=pipe.failure is not None) from error

    def measured(self) -> dict[str, Any]:
        """Return what vLLM-Omni's clients read of a finished request, and its times."""
        record = self.tracked.record
        times = {name: metrics.PER_REQUEST[name](record) for name in ("ttft_ms", "tpot_ms", "e2el_ms")}
        if self.tracked.spoken:
            times |= {name: metrics.PER_REQUEST[name](record) for name in ("audio_ttfp_ms", "audio_rtf", "audio_s")}
        return {
            "num_tokens_in": record.input_tokens, "num_tokens_out": record.output_tokens, "stage_id": 0,
            "num_frames": record.frames, "final_output_type": "text", "queue_ms": self.queue_ms, **times,
        }  # fmt: skip

    def close(self) -> None:
        """Give the place back; a request that has not ended is aborted in every stage."""
        if not self._closed:
            self._closed = True
            self._service.end(self.tracked)
            self._ticket.leave()


class Service:
    """One pipeline and its clients. Its methods are called on the event loop."""

    def __init__(self, pipe: Pipeline, served: Served) -> None:
        """`pipe` has its stages in processes, and stays the caller's to close."""
        self.pipe, self.served = pipe, served
        self.admission = Admission(served.max_running, served.max_waiting)
        self._metrics = PipelineMetrics(served.model)
        self._live: set[Tracked] = set()
        # one thread: tokenizers are not made for several, and a prompt's features are the processor's time anyway
        self._intake = ThreadPoolExecutor(1, thread_name_prefix="omnilab/intake")

    def find(self, model: str | None) -> None:
        """Raise ApiError 404 for a model that is not served."""
        if model is not None and model != self.served.model:
            said = f"The model `{model[:100]}` does not exist. This server has `{self.served.model}`."
            raise ApiError(404, said, "model")

    def place(self) -> Ticket:
        """Return a place for a request; ApiError 503 when the pipeline has ended, 429 when all are taken."""
        if (failure := self.pipe.failure) is not None:
            raise ApiError(503, f"{failure}; start the server again")
        return self.admission.take()

    async def accept(self, ticket: Ticket, asked: Asked) -> Accepted:
        """Decode and tokenize what is asked. Raises ApiError 400, and gives the place back then."""
        try:
            work = partial(self._prepared, asked)
            tracked = await asyncio.get_running_loop().run_in_executor(self._intake, work)
        except BaseException:
            ticket.leave()
            raise
        self._live.add(tracked)
        return Accepted(self, ticket, tracked)

    def end(self, tracked: Tracked) -> None:
        """Abort a request, if it has not ended, and count it."""
        self.pipe.abandon(tracked, Aborted("the client has gone", request=tracked.request_id))
        self._live.discard(tracked)
        record = tracked.record
        if record.error is None and tracked.error is not None:
            record.error = str(tracked.error)
        self._metrics.observe(record)

    async def in_intake(self, work: Any, *given: Any) -> Any:
        """Run `work` where prompts are read."""
        return await asyncio.get_running_loop().run_in_executor(self._intake, work, *given)

    def exposition(self) -> bytes:
        """Return the metrics as Prometheus reads them."""
        self._metrics.set_live(self.admission.running, self.admission.waiting)
        for stage, running in self._running().items():
            self._metrics.set_stage(stage, running)
        return self._metrics.render()

    def close(self) -> None:
        """End the intake; the pipeline is its opener's."""
        self._intake.shutdown(wait=True, cancel_futures=True)

    def _running(self) -> dict[str, int]:
        live = [one for one in self._live if not one.done]
        return {
            "thinker": sum("thinker" in one.admitted and not one.text_ended for one in live),
            "talker": sum("talker" in one.admitted and not one.speech_ended for one in live),
            "code2wav": sum("code2wav" in one.admitted and not one.audio_ended for one in live),
        }

    def _prepared(self, asked: Asked) -> Tracked:
        prompt = asked.prompt(self.served.limits)
        tracked = self.pipe.prepare(prompt, asked.sampling, spoken=asked.audio)
        tracked.requests = {s: asked.stage_request(s, request) for s, request in tracked.requests.items()}
        return tracked
