"""The pipeline's view of its requests: which stages have them, what has come out, when, and how they ended."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from omnilab.engine import messages as m
from omnilab.engine.spec import STAGES
from omnilab.errors import RequestFailed, StageFailed
from omnilab.trial import RequestRecord


@dataclass(slots=True, eq=False)
class Tracked:
    """One request. `news` holds what its caller has not taken yet; `on_news` is called, on any thread, with more.

    A request whose `requests` are the Thinker's alone has ended with its text.
    """

    record: RequestRecord
    requests: dict[str, m.StageRequest]  # by stage
    sample_rate: int
    num_code_groups: int
    started: float  # time.monotonic()
    news: deque[m.Tokens | m.Audio] = field(default_factory=deque)
    audio: list[Any] = field(default_factory=list)
    admitted: list[str] = field(default_factory=list)
    text_ended: bool = False
    speech_ended: bool = False
    audio_ended: bool = False
    finish_reasons: dict[str, str] = field(default_factory=dict)
    error: RequestFailed | None = None
    done: bool = False
    on_news: Callable[[], None] | None = None

    @property
    def request_id(self) -> str:
        """The pipeline's own id."""
        return self.record.request_id

    @property
    def complete(self) -> bool:
        """Has every stage that was asked given its last?"""
        if not self.spoken:
            return self.text_ended
        return self.text_ended and self.speech_ended and self.audio_ended

    @property
    def spoken(self) -> bool:
        """Do the Talker and Code2Wav take part?"""
        return STAGES[-1] in self.requests

    def tell(self) -> None:
        """Say that there is news, or the end."""
        if self.on_news is not None:
            self.on_news()


class Tracker:
    """Takes the stages' events. Every method holds the lock; callers read a request once it is done."""

    def __init__(self, send: Callable[[str, Any], None]) -> None:
        self._send = send
        self._lock = threading.RLock()
        self._live: dict[str, Tracked] = {}
        self._releasing: dict[str, set[str]] = {}
        self.failure: RequestFailed | None = None
        self.last_event = time.monotonic()

    @property
    def quiet(self) -> bool:
        """Has every stage let go of every request?"""
        return not self._live and not self._releasing

    def entries(self) -> int:
        """How many requests are held."""
        return len(self._live) + len(self._releasing)

    def start(self, tracked: Tracked) -> None:
        """Admit a request to the Thinker; raises what has ended the pipeline."""
        with self._lock:
            if self.failure is not None:
                raise self.failure
            if tracked.done:
                raise tracked.error or StageFailed("the request has ended: prepare another")
            self.last_event = tracked.started = time.monotonic()
            self._live[tracked.request_id] = tracked
            self._admit(tracked, STAGES[0])

    def end(self, tracked: Tracked, error: RequestFailed) -> None:
        """Give a request up; nothing happens when it is done. One that has not started never will."""
        with self._lock:
            if tracked.request_id in self._live:
                self._end(tracked, error)
            elif not tracked.done:
                tracked.error, tracked.done = error, True

    def fail(self, failure: RequestFailed) -> None:
        """The pipeline cannot go on: end every request with `failure`, and refuse those to come with it."""
        with self._lock:
            self._stage_failed(failure)

    def on_event(self, stage: str, event: Any) -> None:
        """Take one event of a stage."""
        now = time.monotonic()
        with self._lock:
            self.last_event = now
            if isinstance(event, m.Released):
                self._released(stage, event.request_id)
            elif event.request_id is None:
                self._stage_failed(event.error)
            elif (tracked := self._live.get(event.request_id)) is not None:
                self._take(tracked, event, now - tracked.started + tracked.record.start_s)
                tracked.tell()

    def _take(self, tracked: Tracked, event: Any, at: float) -> None:
        if isinstance(event, m.Failed):
            assert isinstance(event.error, RequestFailed)
            self._end(tracked, event.error)
            return
        if isinstance(event, m.Tokens):
            self._take_tokens(tracked, event, at)
        elif isinstance(event, m.Spoken):
            tracked.record.codes = event.codes.reshape(len(event.codes), tracked.num_code_groups)
            tracked.record.frames, tracked.speech_ended = len(event.codes), True
            tracked.finish_reasons["talker"] = event.finish_reason
        elif isinstance(event, m.Audio):
            self._take_audio(tracked, event, at)
        if tracked.complete:
            self._end(tracked, None)

    def _take_tokens(self, tracked: Tracked, event: m.Tokens, at: float) -> None:
        record = tracked.record
        record.text_times_s.append(at)
        record.text_token_counts.append(len(event.token_ids))
        record.token_ids.extend(event.token_ids)
        record.output_tokens += len(event.token_ids)
        tracked.news.append(event)
        if event.finish_reason is not None:
            tracked.text_ended = True
            tracked.finish_reasons["thinker"] = event.finish_reason
        for stage in tracked.requests:
            if stage not in tracked.admitted:  # later stages get a request with its first token, as in vLLM-Omni
                self._admit(tracked, stage)

    def _take_audio(self, tracked: Tracked, event: m.Audio, at: float) -> None:
        if len(event.samples):
            tracked.record.audio_times_s.append(at)
            tracked.record.audio_samples.append(len(event.samples))
            tracked.audio.append(event.samples)
            tracked.news.append(event)
        tracked.audio_ended = event.finished

    def _admit(self, tracked: Tracked, stage: str) -> None:
        tracked.admitted.append(stage)
        self._send(stage, m.Admit(tracked.requests[stage]))

    def _end(self, tracked: Tracked, error: RequestFailed | None) -> None:
        if self._live.pop(tracked.request_id, None) is None:
            return
        record = tracked.record
        record.end_s = time.monotonic() - tracked.started + record.start_s
        record.audio = np.concatenate(tracked.audio) if tracked.audio else np.zeros(0, dtype=np.float32)
        record.audio_s = len(record.audio) / tracked.sample_rate
        tracked.audio.clear()
        tracked.error = error
        record.error = str(error) if error is not None else None
        record.finish_reason = "error" if error is not None else _reason(tracked.finish_reasons)
        if self.failure is None:
            self._releasing[tracked.request_id] = set(tracked.admitted)
            for stage in tracked.admitted:
                self._send(stage, m.Release(tracked.request_id))
        tracked.done = True
        tracked.tell()

    def _released(self, stage: str, request_id: str) -> None:
        stages = self._releasing.get(request_id)
        if stages is not None:
            stages.discard(stage)
            if not stages:
                del self._releasing[request_id]

    def _stage_failed(self, error: Exception) -> None:
        failure = error if isinstance(error, RequestFailed) else StageFailed(str(error))
        self.failure = self.failure or failure
        self._releasing.clear()
        for tracked in list(self._live.values()):
            text = f"{failure.args[0]} (request {tracked.request_id})"
            self._end(tracked, type(failure)(text, stage=failure.stage, request=tracked.request_id))


def _reason(reasons: dict[str, str]) -> str:
    """Length wins over stop: a caller must be able to tell a cut-off answer, in text or in speech."""
    return "length" if "length" in reasons.values() else "stop"
