"""Bounded admission: so many requests run, so many wait in the order of their coming, the rest are refused at once."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque

from omnilab.serve.errors import ApiError

LONGEST_RETRY_S = 120


class Ticket:
    """One request's place. `leave` gives it back, once is enough."""

    def __init__(self, admission: Admission) -> None:
        """Made by Admission.take."""
        self._admission = admission
        self.may_run = asyncio.Event()
        self.queued_s = 0.0
        self.started = 0.0  # time.monotonic(), once it runs

    async def turn(self) -> None:
        """Wait until the request may run; being cancelled does not give the place back: `leave` does."""
        began = time.monotonic()
        self._admission.queue(self)
        await self.may_run.wait()
        self.queued_s = time.monotonic() - began

    def leave(self) -> None:
        """Give the place back to who waits longest."""
        self._admission.drop(self)


class Admission:
    """Places for `max_running` requests and `max_waiting` more. Called on the event loop alone."""

    def __init__(self, max_running: int, max_waiting: int) -> None:
        """Neither may change."""
        self._max_running, self._most = max_running, max_running + max_waiting
        self._places: set[Ticket] = set()
        self._queue: deque[Ticket] = deque()
        self._running: set[Ticket] = set()
        self._paused = False
        self._nothing_runs = asyncio.Event()
        self._nothing_runs.set()
        self._usual_s = 1.0  # what a request takes, lately

    @property
    def running(self) -> int:
        """How many run."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """How many have a place and do not run."""
        return len(self._places) - len(self._running)

    def take(self) -> Ticket:
        """Return a place; ApiError 429 with Retry-After when there is none."""
        if len(self._places) >= self._most:
            seconds = math.ceil(self._usual_s * (self.waiting + 1) / self._max_running)
            retry = str(max(1, min(seconds, LONGEST_RETRY_S)))
            said = f"{self.running} requests run and {self.waiting} wait, which is all that is taken: try again"
            raise ApiError(429, said, headers={"Retry-After": retry})
        ticket = Ticket(self)
        self._places.add(ticket)
        return ticket

    def queue(self, ticket: Ticket) -> None:
        """Let a ticket run, or stand in the queue."""
        self._queue.append(ticket)
        self._move()

    def drop(self, ticket: Ticket) -> None:
        """Take a ticket out, wherever it stands."""
        if ticket not in self._places:
            return
        self._places.discard(ticket)
        if ticket in self._running:
            self._running.discard(ticket)
            self._usual_s += 0.2 * (time.monotonic() - ticket.started - self._usual_s)
        elif ticket in self._queue:
            self._queue.remove(ticket)
        self._move()

    async def pause(self) -> None:
        """Let none begin to run, and wait until none runs; `resume` in any case."""
        self._paused = True
        await self._nothing_runs.wait()

    def resume(self) -> None:
        """Go on after `pause`."""
        self._paused = False
        self._move()

    def _move(self) -> None:
        while self._queue and not self._paused and len(self._running) < self._max_running:
            ticket = self._queue.popleft()
            self._running.add(ticket)
            ticket.started = time.monotonic()
            ticket.may_run.set()
        if self._running:
            self._nothing_runs.clear()
        else:
            self._nothing_runs.set()
