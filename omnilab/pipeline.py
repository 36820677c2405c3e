"""Thinker -> Talker -> Code2Wav, wired: open it, speak, stream, run a workload, rewire it with another recipe."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Mapping
from contextlib import aclosing, suppress
from dataclasses import fields
from pathlib import Path
from types import TracebackType
from typing import Any

from omnilab import recipes
from omnilab.answer import Answer
from omnilab.clock import on_our_clock, read_clocks
from omnilab.engine import messages as m
from omnilab.engine.devices import device_of
from omnilab.engine.spec import STAGES, MakeRunner, StageSpec, network_runner
from omnilab.engine.topology import ProcessStages, SteppedStages, Topology
from omnilab.engine.tracker import Tracked, Tracker
from omnilab.errors import Aborted, BadInput, RequestFailed, StageFailed, Timeout
from omnilab.intake import Intake
from omnilab.prompt import Prompt, Sampling, at_least, one_of
from omnilab.recipe import Recipe
from omnilab.record import Recording
from omnilab.speech import Event, EventStream, Finished, Speech
from omnilab.thinkers import THINKERS, ThinkerKind
from omnilab.trial import RequestRecord, Trial
from omnilab.workload import Workload

NAP_S = 1.0  # the longest sleep of a caller that waits for news
TOPOLOGIES = ("processes", "inline", "interleaved")
CONNECTORS = ("shared_memory", "memory")


class Pipeline:
    """Three stages. Use `Pipeline.open(...)`, and `with`, or `close()`: processes and shared memory end with it."""

    def __init__(
        self,
        intake: Intake,
        topology: Callable[[Any], Topology],
        *,
        timeout_s: float,
        seed: int,
        thinker: ThinkerKind = THINKERS["transformers"],
    ) -> None:
        """Wire an intake and a topology together; `open` is what users call."""
        self._intake, self._timeout_s, self._seed, self._thinker = intake, timeout_s, seed, thinker
        self.opened: dict[str, Any] = {}  # the arguments that `open` was given
        self._ids = itertools.count()
        self._tracker = Tracker(lambda stage, command: self._topology.send(stage, command))
        self._topology = topology(self._tracker.on_event)

    @classmethod
    def open(
        cls,
        model: str | Path = "thin",
        *,
        recipe: Recipe = recipes.BEST,
        device: str | Mapping[str, str] = "auto",
        dtype: str | None = None,
        topology: str = "processes",
        connector: str = "shared_memory",
        interleave_seed: int = 0,
        max_num_seqs: int = 8,
        max_model_len: int | None = None,
        max_num_batched_tokens: int = 32768,
        codec_chunk_frames: int = 25,
        codec_left_context_frames: int = 25,
        timeout_s: float = 60,
        seed: int = 0,
        edge_dtype: str = "bfloat16",
        thinker: str = "transformers",
        make_runner: MakeRunner = network_runner,
    ) -> Pipeline:
        """Open a size ("tiny", "parity", "thin", "full"), a Qwen3-Omni-MoE folder or a hub id.

        `device` may be a dict by stage; "auto" is cuda where there is one. `dtype` None is float32 on a CPU and
        bfloat16 elsewhere. `max_num_batched_tokens` bounds the tokens of a step: longer prompts are prefilled in parts.
        `timeout_s` bounds every wait. With `thinker` "vllm" a vLLM engine writes the text: greedy answers to text
        prompts, under a recipe whose `thinker_payload` is TokenIdsOnly. Raises BadInput (ModelNotFound) before any
        stage starts, StageFailed when one does not start.
        """
        opened = {name: value for name, value in locals().items() if name != "cls"}
        at_least("max_num_seqs", max_num_seqs, 1)
        at_least("max_num_batched_tokens", max_num_batched_tokens, 1)
        at_least("codec_chunk_frames", codec_chunk_frames, 1)
        if codec_left_context_frames < 0 or timeout_s <= 0:
            raise BadInput("codec_left_context_frames must not be negative and timeout_s must be positive")
        one_of("topology", topology, TOPOLOGIES)
        one_of("connector", connector, CONNECTORS)
        one_of("thinker", thinker, tuple(THINKERS))
        if topology == "processes" and connector == "memory":
            raise BadInput("the memory connector joins stages of one process: take topology='inline' or shared_memory")
        intake, writer = Intake.of(model, max_model_len), THINKERS[thinker]
        writer.check_pipeline(intake.folder, topology, device_of(device, "thinker"))
        writer.check_recipe(recipe)
        runners = writer.runners(make_runner)
        specs = {
            stage: StageSpec(
                stage=stage,
                make_runner=runners[stage],
                model=str(intake.folder),
                device=device_of(device, stage),
                dtype=dtype,
                edge_dtype=edge_dtype,
                max_num_seqs=max_num_seqs,
                max_model_len=intake.max_model_len,
                max_num_batched_tokens=max_num_batched_tokens,
                codec_chunk_frames=codec_chunk_frames,
                codec_left_context_frames=codec_left_context_frames,
                timeout_s=timeout_s,
                seed=seed,
            )
            for stage in STAGES
        }

        def start(on_event: Callable[[str, Any], None]) -> Topology:
            if topology == "processes":
                return ProcessStages(specs, recipe, on_event)
            order = interleave_seed if topology == "interleaved" else None
            shared = connector == "shared_memory"
            return SteppedStages(specs, recipe, on_event, shared_memory=shared, interleave_seed=order)

        pipe = cls(intake, start, timeout_s=timeout_s, seed=seed, thinker=writer)
        pipe.opened = opened
        return pipe

    def check(self, workload: Workload) -> None:
        """Raise what `run` would refuse a workload for, BadInput (PromptTooLong); asks no stage anything."""
        for index, item in enumerate(workload.requests):
            requests, _ = self._intake.stage_requests("check", item.prompt, item.sampling, 0, str(index))
            self._thinker.check_request(requests["thinker"])

    def speak(self, prompt: str | Prompt, **sampling: Any) -> Speech:
        """Answer a prompt; keywords are those of Sampling. Raises what ended the request."""
        return self._finished(self._submit(_prompt(prompt), _sampling(sampling)))

    def stream(self, prompt: str | Prompt, **sampling: Any) -> EventStream:
        """Yield TextDelta and AudioChunk as they come, then Finished. Leaving the loop early aborts the request.

        The request starts with the call, not with the first `next`.
        """
        tracked = self._submit(_prompt(prompt), _sampling(sampling))
        return EventStream(self._events(tracked), lambda: self._give_up(tracked))

    def run(self, workload: Workload, *, spans: bool = True, stop: Callable[[], bool] | None = None) -> Trial:
        """Run a workload and measure it. Requests that fail are rows with an error, not exceptions.

        Without `spans` only counters are recorded: to see what recording costs. `stop` is asked while it runs; once it
        says yes, the trial is given up: Aborted.
        """
        items = [self._prepare(item.prompt, item.sampling, index) for index, item in enumerate(workload.requests)]
        self._ready()
        clocks = read_clocks(lambda: self._topology.ask(m.ReadClock()))
        self._topology.ask(m.Collect(spans))  # what came before is not this trial's
        cpu_before = self._topology.cpu_seconds()
        started = time.monotonic()
        due = workload.arrivals.start_times(len(items), workload.seed)
        self._run_all(items, due, workload.arrivals.max_concurrency or len(items), started, stop)
        wall_s = time.monotonic() - started
        self._settle()
        cpu_after = self._topology.cpu_seconds()
        recordings = self._recordings()
        occupants = self.occupants() if self._tracker.failure is None else {}
        return Trial(
            [tracked.record for tracked in items],
            on_our_clock((row for recording in recordings for row in recording.spans), clocks),
            [row for recording in recordings for row in recording.counters],
            lost=[row for recording in recordings for row in recording.lost],
            clocks=clocks,
            wall_s=wall_s,
            cpu_s={stage: after - cpu_before.get(stage, 0.0) for stage, after in cpu_after.items()},
            occupants=occupants,
            sample_rate=self._intake.sample_rate,
        )

    def apply(self, recipe: Recipe) -> None:
        """Rewire with another recipe; weights stay loaded, unless `worker_link` changes. Waits for running requests."""
        if not isinstance(recipe, Recipe):
            raise BadInput(f"apply takes a Recipe, not {recipe!r}: see recipes.recipe_named and recipe_with")
        self._thinker.check_recipe(recipe)
        self._ready()
        try:
            self._topology.apply(recipe)
        except Exception as error:
            ended = f"a recipe could not be applied ({error}); open the pipeline again"
            self._tracker.fail(StageFailed(ended))  # stages may now hold different recipes
            raise

    @property
    def intake(self) -> Intake:
        """The model's processor and limits."""
        return self._intake

    @property
    def failure(self) -> RequestFailed | None:
        """What has ended the pipeline, if anything has: nothing more can be asked then."""
        return self._tracker.failure

    def occupants(self) -> dict[str, dict[str, str]]:
        """Ask every stage, engine and runner, what fills its seams: stage -> seam -> name and source hash."""
        self._ready()
        return {stage: answer.occupants for stage, answer in self._topology.ask(m.Describe()).items()}

    def tables(self) -> dict[str, int]:
        """Count the entries of every per-request table: all must be 0, for this waits until no request is live."""
        self._ready()
        answers = self._topology.ask(m.Describe())
        tables = {name: count for answer in answers.values() for name, count in answer.tables.items()}
        return {"pipeline": self._tracker.entries(), **tables}

    async def aspeak(self, prompt: str | Prompt, **sampling: Any) -> Speech:
        """`speak` without blocking the event loop; cancelling aborts the request."""
        async for event in self.astream(prompt, **sampling):
            if isinstance(event, Finished):
                return event.speech
        raise Aborted("the stream ended without its end")

    async def astream(self, prompt: str | Prompt, **sampling: Any) -> AsyncIterator[Event]:
        """`stream` without blocking the event loop; leaving the loop early aborts the request."""
        tracked = await asyncio.to_thread(self.prepare, _prompt(prompt), _sampling(sampling))
        async with aclosing(self.follow(tracked)) as events:
            async for event in events:
                yield event

    def prepare(self, prompt: Prompt, sampling: Sampling, *, spoken: bool = True) -> Tracked:
        """Return a request for `follow` to start: all that may be refused is refused here, BadInput or PromptTooLong.

        Not `spoken`: the Thinker alone answers, in text.
        """
        return self._prepare(prompt, sampling, spoken=spoken)

    async def follow(self, tracked: Tracked) -> AsyncGenerator[Event]:
        """Start a prepared request and yield its events; leaving early, or being cancelled, aborts it."""
        wake, loop = asyncio.Event(), asyncio.get_running_loop()

        def on_news() -> None:
            with suppress(RuntimeError):  # the caller's loop has ended: nobody is there to be told
                loop.call_soon_threadsafe(wake.set)

        tracked.on_news = on_news
        answer = Answer(self._intake)
        try:
            await asyncio.to_thread(self._tracker.start, tracked)  # pickles features: not on the loop's thread
            while True:
                wake.clear()
                done = tracked.done  # before the news: what comes with the end is not missed
                for event in answer.take(tracked):
                    yield event
                if done:
                    break
                await self._news(wake)
            if tracked.error is not None:
                raise tracked.error
            yield Finished(answer.speech(tracked.record))
        finally:
            tracked.on_news = None
            self._give_up(tracked)

    def abandon(self, tracked: Tracked, error: RequestFailed) -> None:
        """Give a prepared request up with `error`, started or not, unless it is done."""
        self._tracker.end(tracked, error)

    async def _news(self, wake: asyncio.Event) -> None:
        """Wait a moment for an event; stages that are not processes are stepped meanwhile."""
        if isinstance(self._topology, ProcessStages):
            self._silence_until(time.monotonic())
            with suppress(TimeoutError):
                async with asyncio.timeout(NAP_S):
                    await wake.wait()
        elif not wake.is_set():
            await asyncio.to_thread(self._advance, None)

    async def arun(self, workload: Workload) -> Trial:
        """`run` without blocking the event loop."""
        return await asyncio.to_thread(self.run, workload)

    def close(self) -> None:
        """End the stages; running requests are given up, and later calls refused. Once is enough."""
        self._tracker.fail(Aborted("the pipeline is closed: open another"))
        self._topology.close()

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _prepare(self, prompt: Prompt, sampling: Sampling, index: int | None = None, *, spoken: bool = True) -> Tracked:
        ordinal = next(self._ids)
        request_id = f"request-{ordinal}"
        seed, key = (sampling.seed, "") if sampling.seed is not None else (self._seed, str(index or ordinal))
        requests, num_tokens = self._intake.stage_requests(request_id, prompt, sampling, seed, key, spoken=spoken)
        self._thinker.check_request(requests["thinker"])
        record = RequestRecord(index=index or 0, request_id=request_id, start_s=0.0, input_tokens=num_tokens)
        intake = self._intake
        return Tracked(record, requests, intake.sample_rate, intake.num_code_groups, started=time.monotonic())

    def _submit(self, prompt: Prompt, sampling: Sampling) -> Tracked:
        tracked = self._prepare(prompt, sampling)
        self._tracker.start(tracked)
        return tracked

    def _run_all(
        self, items: list[Tracked], due: list[float], most: int, started: float, stop: Callable[[], bool] | None
    ) -> None:
        queued = list(zip(items, due, strict=True))[::-1]
        running: list[Tracked] = []
        try:
            while queued or running:
                if stop is not None and stop():
                    raise Aborted("the trial was stopped")
                running = [tracked for tracked in running if not tracked.done]
                now = time.monotonic() - started
                while queued and len(running) < most and queued[-1][1] <= now:
                    tracked, _ = queued.pop()
                    tracked.record.start_s = time.monotonic() - started
                    self._start_or_fail(tracked)
                    running.append(tracked)
                if running or queued:
                    self._advance(queued[-1][1] + started if queued and len(running) < most else None)
        except BaseException:
            for tracked in running:
                self._tracker.end(tracked, Aborted(f"the trial was interrupted (request {tracked.request_id})"))
            raise

    def _start_or_fail(self, tracked: Tracked) -> None:
        try:
            self._tracker.start(tracked)
        except Exception as error:
            tracked.record.error, tracked.done = str(error), True

    def _finished(self, tracked: Tracked) -> Speech:
        for event in self._events(tracked):
            if isinstance(event, Finished):
                return event.speech
        raise Aborted("the request was given up", request=tracked.request_id)

    def _events(self, tracked: Tracked) -> Generator[Event]:
        answer = Answer(self._intake)
        try:
            while True:
                done = tracked.done  # before the news: what comes with the end is not missed
                yield from answer.take(tracked)
                if done:
                    break
                if not tracked.done:
                    self._advance(None)
            if tracked.error is not None:
                raise tracked.error
            yield Finished(answer.speech(tracked.record))
        finally:
            self._give_up(tracked)

    def _give_up(self, tracked: Tracked) -> None:
        """Abort a request, if it is not done."""
        request = tracked.request_id
        self._tracker.end(tracked, Aborted(f"the caller gave the request up (request {request})", request=request))

    def _advance(self, until: float | None) -> None:
        """Let the stages go on for a moment; give up when none of them has said anything for too long.

        The receivers' own deadlines are shorter and name the stage: this one is for a stage that hangs.
        """
        now = time.monotonic()
        limit = until or self._silence_until(now)
        self._topology.advance(min(now + 0.1, limit))

    def _silence_until(self, now: float) -> float:
        """Return until when no stage has to say anything; raise Timeout when that is past."""
        limit = self._tracker.last_event + 1.5 * self._timeout_s + 1
        if now > limit:
            raise Timeout(f"no stage has said anything for {now - self._tracker.last_event:.0f} s: is one stuck?")
        return limit

    def _ready(self) -> None:
        """Raise what has ended the pipeline, if anything has; wait until no request is live."""
        if self._tracker.failure is not None:
            raise self._tracker.failure
        self._settle()

    def _settle(self) -> None:
        """Wait until every stage has let go of every request."""
        deadline = time.monotonic() + self._timeout_s
        while not self._tracker.quiet:
            if time.monotonic() > deadline:
                raise Timeout(f"requests are still running after {self._timeout_s:g} s: wait for them, or abort them")
            self._topology.advance(time.monotonic() + 0.05)

    def _recordings(self) -> list[Recording]:
        if self._tracker.failure is not None:
            return []
        return [recording for part in self._topology.ask(m.Collect()).values() for recording in part]


def _prompt(prompt: str | Prompt) -> Prompt:
    if isinstance(prompt, Prompt):
        return prompt
    if not isinstance(prompt, str):
        raise BadInput(f"a prompt is a text or a Prompt, not {type(prompt).__name__}")
    return Prompt(text=prompt)


def _sampling(given: Mapping[str, Any]) -> Sampling:
    known = {field.name for field in fields(Sampling)}
    if unknown := sorted(set(given) - known):
        raise BadInput(
            f"unknown: {', '.join(unknown)}. Sampling takes {', '.join(sorted(known))}; "
            "audio, image, system and messages belong into a Prompt"
        )
    return Sampling(**given)
