"""The engine's loop: take commands and chunks, schedule, hand a step to the runner, take its answer, save its rows.

`step()` never waits for another loop. A step is in flight between `submit` and its answer, one at a time, as in vLLM
without asynchronous scheduling.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable
from typing import Any

from omnilab.engine import messages as m
from omnilab.engine.request import Live
from omnilab.engine.scheduler import Scheduler
from omnilab.errors import RequestFailed, StageFailed
from omnilab.record import Recorder, count, recording, span
from omnilab.seams import WorkerLink
from omnilab.transfer.connector import Connector
from omnilab.transfer.receiver import Receiver
from omnilab.transfer.sender import Sender


class Engine:
    """One stage's engine loop, E. Commands are appended from outside; events leave through `emit`."""

    def __init__(
        self,
        *,
        stage: str,
        scheduler: Scheduler,
        link: WorkerLink,
        sender: Sender | None,
        receiver: Receiver | None,
        inward: Connector | None,
        outward: Connector | None,
        recorder: Recorder,
        emit: Callable[[Any], None],
        complete: Callable[[Any, Any], Any],
        stepped: Callable[[], None],
    ) -> None:
        self.stage, self.link = stage, link
        self._scheduler, self._sender, self._receiver = scheduler, sender, receiver
        self._inward, self._outward, self._recorder = inward, outward, recorder
        self._emit, self._complete, self._stepped = emit, complete, stepped
        self._lives: dict[str, Live] = {}  # admitted and not released yet
        self.commands: deque[Any] = deque()
        self.failures: deque[RequestFailed] = deque()  # from sender and receiver
        self._flight: m.Work | None = None
        self._asked: Any = None  # a command to the runner other than work is in flight
        self._broken: StageFailed | None = None

    @property
    def in_flight(self) -> bool:
        """Is an answer of the runner due?"""
        return self._flight is not None or self._asked is not None

    @property
    def untold(self) -> bool:
        """Have requests ended that the runner does not know of yet?"""
        return self._scheduler.unreported and self._broken is None

    @property
    def pending(self) -> bool:
        """Are there requests?"""
        return self._scheduler.pending

    def entries(self) -> int:
        """How many per-request entries are held here."""
        return self._scheduler.entries() + len(self._lives) + len(self.failures)

    def step(self) -> bool:
        """Do what can be done now; return whether anything but an idle step was done."""
        with recording(self._recorder):
            worked = self._take_commands()
            worked |= self._take_chunks()
            if self.in_flight:
                answered = self._take_answer()
                if answered is None:
                    return worked
                worked |= answered
                if not worked:
                    return False  # an idle step has ended: pause before the next
            if self._broken is None:
                worked |= self._submit()
            return worked

    def stop(self, error: StageFailed) -> None:
        """The stage cannot go on: end every request with `error`, refuse those to come."""
        if self._broken is not None:
            return
        self._broken = error
        self._emit(m.Failed(None, error))
        for live in self._lives.values():
            self._drop(live)
            self._emit(m.Failed(live.request_id, _for_request(error, live.request_id)))

    def _take_commands(self) -> bool:
        worked = False
        while self.commands:
            command = self.commands[0]
            if not isinstance(command, m.Admit | m.Release) and (self.in_flight or self.untold):
                break  # the runner answers one message at a time, and what it then counts has ended
            self.commands.popleft()
            self._take_command(command)
            worked = True
        while self.failures:
            failure = self.failures.popleft()
            if (live := self._lives.get(failure.request)) is not None:
                self._fail(live, failure)
            worked = True
        return worked

    def _take_command(self, command: Any) -> None:
        if isinstance(command, m.Admit):
            request_id = command.request.request_id
            if self._broken is None:
                self._lives[request_id] = live = Live.of(command.request)
                self._scheduler.admit(live)
            else:
                self._emit(m.Failed(request_id, _for_request(self._broken, request_id)))
        elif isinstance(command, m.Release):
            if (live := self._lives.pop(command.request_id, None)) is not None:
                self._drop(live)
            if self._inward is not None:
                self._inward.close(command.request_id)
            if self._outward is not None:  # its outbox is closed: no put can follow
                self._outward.close(command.request_id)
                self._outward.forget(command.request_id)
            self._emit(m.Released(command.request_id))
        elif self._broken is not None:
            self._emit(m.Reply(self._broken))
        else:
            self._asked = command
            self._hand_over(command)

    def _take_chunks(self) -> bool:
        worked = False
        while self._receiver is not None and (taken := self._receiver.take()) is not None:
            inlet, held = taken
            live = self._lives.get(inlet.request_id)
            if live is not None and not inlet.closed:
                self._scheduler.arrived(live, held)
            worked = True
        return worked

    def _take_answer(self) -> bool | None:
        """Take the runner's answer in. None: not there yet; False: it was an idle step's."""
        try:
            answer = self.link.poll()
        except (EOFError, OSError) as error:
            self._flight, self._asked = None, None
            ended = f"{self.stage}: its worker has ended ({error!r}); open the pipeline again"
            self.stop(StageFailed(ended, stage=self.stage))
            return True
        except pickle.UnpicklingError as error:
            self._flight, self._asked = None, None
            self.stop(
                StageFailed(
                    f"{self.stage}: its worker's answer cannot be read ({error!r}); open the pipeline again",
                    stage=self.stage,
                )
            )
            return True
        if answer is None:
            return None
        if self._asked is not None:
            asked, self._asked = self._asked, None
            self._emit(m.Reply(self._complete(asked, answer)))
            return True
        work, self._flight = self._flight, None
        assert work is not None
        self._recorder.release(idle=not work.items)
        if isinstance(answer, Exception):
            self.stop(StageFailed(f"{self.stage}: its runner failed: {answer!r}", stage=self.stage))
            return True
        for output in answer.outputs:
            live = self._lives.get(output.request_id)
            if live is not None and not live.finished and not live.inlet.closed:
                self._take_output(live, output)
        if work.items:
            self._stepped()
        return bool(work.items)

    def _take_output(self, live: Live, output: m.Output) -> None:
        if output.error is not None:
            self._fail(live, StageFailed(f"{self.stage}: {output.error} (request {live.request_id})"))
            return
        rows, event = self._scheduler.advance(live, output)
        if self._sender is not None and rows is not None:
            self._sender.save(live, rows)
        if event is not None:
            with span("events", live.request_id):
                self._emit(event)
        if live.finished:
            self._scheduler.forget(live)

    def _submit(self) -> bool:
        self._recorder.hold()  # until the answer is there, or it is clear that there is none to come
        with span("schedule"):
            work, wants = self._scheduler.schedule()
        for live in wants:
            assert self._receiver is not None
            self._receiver.want(live.inlet)
        ended, self._scheduler.ended = self._scheduler.ended, []
        for live in ended:
            self._take_output(live, m.Output(live.request_id))
        if ended:
            self._recorder.release(idle=False)
        if not (work.items or work.finished or self._scheduler.pending):
            self._recorder.release(idle=True)
            return bool(ended)
        count("steps" if work.items else "idle_steps")
        self._flight = work
        self._hand_over(work)
        return bool(work.items or ended)

    def _hand_over(self, message: Any) -> None:
        try:
            self.link.submit(message)
        except (EOFError, OSError, pickle.PicklingError) as error:
            self._flight, self._asked = None, None
            ended = f"{self.stage}: its worker cannot be reached ({error!r}); open the pipeline again"
            self.stop(StageFailed(ended, stage=self.stage))

    def _fail(self, live: Live, error: RequestFailed) -> None:
        error.stage, error.request = self.stage, live.request_id
        self._drop(live)
        self._emit(m.Failed(live.request_id, error))

    def _drop(self, live: Live) -> None:
        """Take a request out of every table; nothing of it leaves any more."""
        live.inlet.closed = True
        with live.outbox.lock:
            live.outbox.closed = True
        self._scheduler.forget(live)


def _for_request(error: StageFailed, request_id: str) -> StageFailed:
    return StageFailed(f"{error.args[0]} (request {request_id})", stage=error.stage, request=request_id)
