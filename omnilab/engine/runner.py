"""What every runner does: answer messages, keep per-request state, end one request when one request fails."""

from __future__ import annotations

import time
from typing import Any, Generic, TypeVar

import cloudpickle

from omnilab.engine import messages as m
from omnilab.engine.profiling import ProfilerSlot
from omnilab.recipe import Recipe
from omnilab.record import Recorder, Recording, recording

S = TypeVar("S")  # state of one request


class StageRunner(Generic[S]):
    """Base of the three runners. A subclass says how a request joins, leaves and steps."""

    def __init__(self, stage: str, recipe: Recipe) -> None:
        self.stage, self.recipe = stage, recipe
        self.recorder = Recorder(stage, "runner")
        self.profile = ProfilerSlot(stage)
        self.states: dict[str, S] = {}
        self.configure()

    def call(self, message: Any) -> Any:
        """Answer one message."""
        with recording(self.recorder):
            if isinstance(message, m.Work):
                return self._work(message)
            if isinstance(message, m.Collect):
                return collected(self.recorder, message)
            if isinstance(message, m.ReadClock):
                return {"runner": time.monotonic_ns()}
            if isinstance(message, m.StartProfile):
                self.profile.prepare(message)
                return self.profile.start()
            if isinstance(message, m.StopProfile):
                return self.profile.stop()
            if isinstance(message, m.Configure):
                self.recipe = cloudpickle.loads(message.recipe)
                self.configure()
                return True  # a link's None means no answer yet
            if isinstance(message, m.Describe):
                return m.Description(self.recipe.occupants(), {f"{self.stage}/runner": self.entries()})
        raise TypeError(f"a runner cannot answer {type(message).__name__}")

    def close(self) -> None:
        """Free per-request state."""
        for request_id in list(self.states):
            self.leave(request_id)

    def entries(self) -> int:
        """How many per-request entries are held."""
        return len(self.states)

    def configure(self) -> None:
        """Build what the recipe's occupants make."""

    def join(self, request: m.StageRequest) -> S:
        """Take a request in."""
        raise NotImplementedError

    def leave(self, request_id: str) -> None:
        """Forget a request; unknown ids are nothing."""
        raise NotImplementedError

    def run(self, items: list[m.Item]) -> list[m.Output]:
        """Run one step; an exception of one request becomes its output's error."""
        raise NotImplementedError

    def finish(self, work: m.Work) -> None:
        """Handle the requests that have ended; before the step."""
        for request_id in work.finished:
            self.leave(request_id)

    def _work(self, work: m.Work) -> m.StepDone:
        held = self.recorder.hold()
        try:
            outputs = self._step(work)
        finally:
            if held:
                self.recorder.release(idle=not work.items)
        if work.items:
            self.profile.step()
        return m.StepDone(outputs)

    def _step(self, work: m.Work) -> list[m.Output]:
        self.finish(work)
        failed: list[m.Output] = []
        for request in work.new:
            try:
                self.states[request.request_id] = self.join(request)
            except Exception as error:
                failed.append(m.Output(request.request_id, error=what(error)))
        lost = {output.request_id for output in failed}
        return failed + self.run([item for item in work.items if item.request_id not in lost])


def collected(recorder: Recorder, message: m.Collect) -> Recording:
    """Return what a recorder holds, and let it go on as the message says."""
    recording = recorder.collect()
    recorder.spans = message.spans
    return recording


def what(error: Exception) -> str:
    """Return an error's type and text."""
    return f"{type(error).__name__}: {error}"
