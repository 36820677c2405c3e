"""One stage put together: engine, sender and receiver around a link to the runner. A topology steps its loops."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cloudpickle

from omnilab.engine import messages as m
from omnilab.engine.engine import Engine
from omnilab.engine.profiling import ProfilerSlot
from omnilab.engine.runner import collected
from omnilab.engine.scheduler import SCHEDULERS
from omnilab.engine.spec import PRODUCER, StageSpec
from omnilab.engine.worker import StageRunnerFactory
from omnilab.errors import RequestFailed, StageFailed
from omnilab.recipe import Recipe
from omnilab.record import Recorder
from omnilab.seams import Payload, WorkerLink
from omnilab.transfer.codec_chunks import CodecChunks
from omnilab.transfer.connector import Connector
from omnilab.transfer.doorbell import Bells, Doorbell
from omnilab.transfer.receiver import Receiver
from omnilab.transfer.sender import Builder, Sender

NAP_S = 0.1  # the longest sleep of a loop that has nothing to do
# Of two stages that wait in a row the one whose chunk is lost must speak first: it knows which stage is to blame.
PATIENCE = {"talker": 1.0, "code2wav": 1.25}


@dataclass(frozen=True, slots=True)
class Loop:
    """One loop of a stage: its body, and what it does after each step in a live topology."""

    name: str
    step: Callable[[], bool]
    rest: Callable[[bool], None]
    wake: Callable[[], None]


def newest(held: Payload | None, chunk: Payload) -> Payload:
    """Code2Wav keeps no more than the newest chunk: each brings its own context."""
    return chunk


class Stage:
    """Built from a spec and a recipe; `configure` rewires it while the runner, and its weights, stay."""

    def __init__(
        self,
        spec: StageSpec,
        recipe: Recipe,
        *,
        inward: Connector | None,
        outward: Connector | None,
        emit: Callable[[Any], None],
        own_process: bool,
    ) -> None:
        self.spec, self.recipe = spec, recipe
        self._inward, self._outward, self._emit = inward, outward, emit
        self._own_process = own_process
        self.bell = Doorbell()  # the engine's
        self._sender_bell = Doorbell()
        self._recorders = [Recorder(spec.stage, name) for name in ("engine", "send", "receive")]
        self.profile = ProfilerSlot(f"{spec.stage}.engine")
        self.link = self._make_link()
        self._wire()

    def configure(self, recipe: Recipe) -> None:
        """Rewire with another recipe. Only while no loop is stepping and no request is live.

        StageFailed when the runner cannot be rewired.
        """
        self._finish_step()
        before, self.recipe = self.recipe, recipe
        if recipe.worker_link is before.worker_link:
            self.ask(m.Configure(cloudpickle.dumps(recipe)))
        else:
            self.link.close()
            self.link = self._make_link()
            self.ask(m.Describe())
        self._wire()

    def ask(self, message: Any, within_s: float | None = None) -> Any:
        """Put one message to the runner and wait for its answer, while the engine is not stepping."""
        deadline = time.monotonic() + (within_s or self.spec.timeout_s)
        try:
            self.link.submit(message)
            while (answer := self.link.poll()) is None:
                if time.monotonic() > deadline:
                    raise TimeoutError("its runner did not answer")
                self._nap(deadline)
        except (EOFError, OSError) as error:
            raise StageFailed(f"{self.spec.stage}: {error!r}", stage=self.spec.stage) from error
        if isinstance(answer, Exception):
            raise StageFailed(f"{self.spec.stage}: {answer}", stage=self.spec.stage)
        return answer

    def loops(self) -> list[Loop]:
        """Return the loops in the order in which `inline` steps them."""
        loops: list[Loop] = []
        if self.receiver is not None:
            loops.append(Loop("receive", self.receiver.step, self._rest_receiver, self._wake_receiver))
        loops.append(Loop("engine", self.engine.step, self._rest_engine, self.bell.ring))
        if self.sender is not None:
            loops.append(Loop("send", self.sender.step, self._rest_sender, self._sender_bell.ring))
        return loops

    def entries(self) -> dict[str, int]:
        """Count per-request entries of every table on this side of the link."""
        tables = {"engine": self.engine.entries()}
        if self.receiver is not None:
            tables["receive"] = self.receiver.entries()
        if self._outward is not None:
            tables["edge"] = self._outward.held()
        return {f"{self.spec.stage}/{name}": entries for name, entries in tables.items()}

    def close(self) -> None:
        """End the runner and give the bells back; after the loops have ended."""
        self.link.close()
        self.bell.close()
        self._sender_bell.close()

    def _finish_step(self) -> None:
        """Wait for the runner's answer and tell it of the last requests that ended: a new engine knows of neither."""
        deadline = time.monotonic() + self.spec.timeout_s
        while self.engine.in_flight or self.engine.untold:
            if time.monotonic() > deadline:
                raise StageFailed(f"{self.spec.stage}: its runner did not answer", stage=self.spec.stage)
            if not self.engine.step() and self.engine.in_flight:
                self._nap(deadline)

    def _make_link(self) -> WorkerLink:
        factory = StageRunnerFactory(self.spec, self.recipe, own_process=self._own_process)
        return self.recipe.worker_link(factory)

    def _wire(self) -> None:
        engine_recorder, send_recorder, receive_recorder = self._recorders
        self.sender = self._make_sender(send_recorder)
        self.receiver = self._make_receiver(receive_recorder)
        scheduler = SCHEDULERS[self.spec.stage](
            max_num_seqs=self.spec.max_num_seqs,
            max_num_batched_tokens=self.spec.max_num_batched_tokens,
            attach=self.recipe.attach,
        )
        self.engine = Engine(
            stage=self.spec.stage,
            scheduler=scheduler,
            link=self.link,
            sender=self.sender,
            receiver=self.receiver,
            inward=self._inward,
            outward=self._outward,
            recorder=engine_recorder,
            emit=self._emit,
            complete=self._complete,
            stepped=self.profile.step,
        )

    def _make_sender(self, recorder: Recorder) -> Sender | None:
        if self._outward is None:
            return None
        return Sender(
            stage=self.spec.stage,
            connector=self._outward,
            builder=self._builder(),
            make_save=self.recipe.save,
            recorder=recorder,
            saved=self._sender_bell.ring,
            failed=self._failed,
        )

    def _builder(self) -> Builder:
        if self.spec.stage == "thinker":
            return self.recipe.thinker_payload().build
        vocode = self.recipe.vocode(self.spec.codec_left_context_frames)
        return CodecChunks(vocode, self.recipe.first_chunk, self.spec.codec_chunk_frames)

    def _make_receiver(self, recorder: Recorder) -> Receiver | None:
        if self._inward is None:
            return None
        return Receiver(
            stage=self.spec.stage,
            producer=PRODUCER[self.spec.stage],
            connector=self._inward,
            accumulate=self.recipe.accumulate if self.spec.stage == "talker" else newest,
            recorder=recorder,
            timeout_s=self.spec.timeout_s * PATIENCE[self.spec.stage],
            arrived=self.bell.ring,
            failed=self._failed,
        )

    def _failed(self, error: RequestFailed) -> None:
        self.engine.failures.append(error)
        self.bell.ring()

    def _complete(self, asked: Any, answer: Any) -> Any:
        """Add this side's part to the runner's answer."""
        if isinstance(asked, m.Collect):
            return [answer, *(collected(recorder, asked) for recorder in self._recorders)]
        if isinstance(asked, m.ReadClock):
            return {**answer, "engine": time.monotonic_ns()}
        if isinstance(asked, m.StartProfile) and isinstance(answer, m.Profiled):
            if answer.pid == os.getpid():  # the runner lives here: one profiler sees both
                self.profile.clear()
                return [answer]
            return [answer, self.profile.start()]
        if isinstance(asked, m.StopProfile) and isinstance(answer, m.Profiled):
            return [answer, self.profile.stop()] if self.profile.filled else [answer]
        if isinstance(asked, m.Describe) and isinstance(answer, m.Description):
            here = self.recipe.occupants()
            there = answer.occupants
            if here != there:
                raise StageFailed(f"{self.spec.stage}: engine and runner hold other recipes: {here} and {there}")
            return m.Description(here, {**answer.tables, **self.entries()})
        return answer

    def _rest_engine(self, worked: bool) -> None:
        engine, deadline = self.engine, time.monotonic() + NAP_S
        if engine.in_flight:
            fileno = self.link.fileno()
            if not worked and fileno is not None:  # an answer wakes at once, whatever fills engine_wait
                Bells(self.bell, [fileno]).wait(deadline)
        else:
            self.recipe.engine_wait(worked, engine.pending, self.bell, deadline)

    def _rest_receiver(self, worked: bool) -> None:
        assert self.receiver is not None and self._inward is not None
        pending = self.receiver.pending
        self.recipe.receive_wait(worked, pending, self._inward.bell, time.monotonic() + NAP_S)

    def _rest_sender(self, worked: bool) -> None:
        if not worked:
            self._sender_bell.wait(time.monotonic() + NAP_S)

    def _wake_receiver(self) -> None:
        if self._inward is not None:
            self._inward.bell.ring()

    def _nap(self, deadline: float) -> None:
        fileno = self.link.fileno()
        if fileno is not None:
            Bells(self.bell, [fileno]).wait(deadline)
