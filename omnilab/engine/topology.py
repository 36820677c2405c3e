"""Where the loops live: a process a stage, or all of them stepped by one thread in a fixed or a seeded random order."""

from __future__ import annotations

import random
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol, TypeAlias

import cloudpickle
import psutil

from omnilab.engine import messages as m
from omnilab.engine.spec import STAGES, StageSpec
from omnilab.engine.stage import Stage
from omnilab.engine.stage_process import START_WITHIN_S, Start
from omnilab.engine.worker import end_process, name_thread, start_process
from omnilab.errors import StageFailed, Timeout
from omnilab.recipe import Recipe
from omnilab.transfer.connector import Connector, EdgeFolder, MemoryConnector, SharedMemoryConnector, sweep
from omnilab.transfer.doorbell import Doorbell

OnEvent: TypeAlias = Callable[[str, Any], None]  # (stage, event)
KILLED_S = 30.0  # for a killed worker to be gone
EDGES = (("thinker", "talker"), ("talker", "code2wav"))


class Topology(Protocol):
    """The three stages, however they run."""

    def send(self, stage: str, command: Any) -> None:
        """Give a stage a command."""
        ...

    def advance(self, deadline: float) -> None:
        """Step the stages once, or sleep until an event has come or `deadline` (time.monotonic())."""
        ...

    def ask(self, command: Any) -> dict[str, Any]:
        """Ask every stage; return its answers. Only while no request is live."""
        ...

    def apply(self, recipe: Recipe) -> None:
        """Rewire every stage. Only while no request is live."""
        ...

    def cpu_seconds(self) -> dict[str, float]:
        """CPU seconds used so far, by stage where stages are processes."""
        ...

    def close(self) -> None:
        """End everything and leave nothing behind."""
        ...


class _Answers:
    """Replies of the stages to one question at a time."""

    def __init__(self) -> None:
        self.by_stage: dict[str, Any] = {}

    def take(self, stage: str, event: Any) -> bool:
        """Keep a reply; return whether the event was one."""
        if isinstance(event, m.Reply):
            self.by_stage[stage] = event.value
            return True
        return False

    def result(self) -> dict[str, Any]:
        """Return all replies; raise the first that is an error."""
        answers, self.by_stage = self.by_stage, {}
        for answer in answers.values():
            if isinstance(answer, Exception):
                raise answer
        return answers


class SteppedStages:
    """All loops on the caller's thread: in a fixed order, or, given a seed, in a random one."""

    def __init__(
        self,
        specs: dict[str, StageSpec],
        recipe: Recipe,
        on_event: OnEvent,
        *,
        shared_memory: bool,
        interleave_seed: int | None = None,
        wrap: Callable[[Connector], Connector] = lambda connector: connector,
    ) -> None:
        self._on_event, self._answers = on_event, _Answers()
        self._random = None if interleave_seed is None else random.Random(interleave_seed)
        self._timeout_s = next(iter(specs.values())).timeout_s
        self._folder = EdgeFolder() if shared_memory else None
        self._bells = [Doorbell() for _ in EDGES]
        edges: dict[str, list[Connector]] = {"into": [], "from": []}
        for bell in self._bells:
            ends = self._edge(bell)
            edges["from"].append(wrap(ends[0]))
            edges["into"].append(wrap(ends[1]))
        inward: dict[str, Connector] = dict(zip(STAGES[1:], edges["into"], strict=True))
        outward: dict[str, Connector] = dict(zip(STAGES[:-1], edges["from"], strict=True))
        self.stages = {
            name: Stage(
                specs[name],
                recipe,
                inward=inward.get(name),
                outward=outward.get(name),
                emit=lambda event, name=name: self._event(name, event),
                own_process=False,
            )
            for name in STAGES
        }
        self._list_loops()

    def send(self, stage: str, command: Any) -> None:
        """Give a stage a command."""
        self.stages[stage].engine.commands.append(command)

    def advance(self, deadline: float) -> None:
        """Step every loop once, or one loop a few times."""
        if self._random is None:
            worked = [step() for step in self._steps]  # a list: every loop steps
        else:
            step = self._random.choice(self._steps)
            worked = [step() for _ in range(self._random.choice((1, 1, 1, 2, 5)))]
        if self._random is None and not any(worked):
            time.sleep(0.0002)  # something is waited for that only time can bring

    def ask(self, command: Any) -> dict[str, Any]:
        """Ask every stage; return its answers."""
        for stage in STAGES:
            self.send(stage, command)
        deadline = time.monotonic() + self._timeout_s
        while len(self._answers.by_stage) < len(STAGES):
            if time.monotonic() > deadline:
                raise Timeout(f"no answer to {type(command).__name__} within {self._timeout_s:g} s")
            self.advance(deadline)
        return self._answers.result()

    def apply(self, recipe: Recipe) -> None:
        """Rewire every stage."""
        for stage in self.stages.values():
            stage.configure(recipe)
        self._list_loops()

    def cpu_seconds(self) -> dict[str, float]:
        """CPU seconds of this process: stages cannot be told apart."""
        return {"pipeline": time.process_time()}

    def close(self) -> None:
        """End the runners and remove the edges."""
        for stage in self.stages.values():
            stage.close()
        for bell in self._bells:
            bell.close()
        if self._folder is not None:
            self._folder.destroy()

    def _edge(self, bell: Doorbell) -> tuple[Connector, Connector]:
        if self._folder is None:
            edge = MemoryConnector(bell)
            return edge, edge
        path = self._folder.new_edge()
        return SharedMemoryConnector(path, bell), SharedMemoryConnector(path, bell)

    def _event(self, stage: str, event: Any) -> None:
        if not self._answers.take(stage, event):
            self._on_event(stage, event)

    def _list_loops(self) -> None:
        # upstream last within a round: a chunk sent in one round is received in the next, as between processes
        self._steps = [loop.step for name in reversed(STAGES) for loop in self.stages[name].loops()]


class ProcessStages:
    """A process a stage, started by child.py; a thread of this process takes their events."""

    def __init__(self, specs: dict[str, StageSpec], recipe: Recipe, on_event: OnEvent) -> None:
        sweep()  # what pipelines that were killed have left
        self._on_event, self._answers = on_event, _Answers()
        self._timeout_s = next(iter(specs.values())).timeout_s
        self._changed = threading.Condition()
        self._failure: Exception | None = None
        self._closing = False
        self._folder = EdgeFolder()
        self._connections: dict[str, Connection] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._events = threading.Thread(target=self._take_events, name="omnilab/events", daemon=True)
        try:
            self._start(specs, recipe)
        except BaseException:
            self.close()
            raise

    def send(self, stage: str, command: Any) -> None:
        """Give a stage a command; a stage that has ended is reported by its end."""
        try:
            self._connections[stage].send_bytes(cloudpickle.dumps(command))
        except OSError:
            return

    def advance(self, deadline: float) -> None:
        """Sleep until an event has come or `deadline`."""
        with self._changed:
            self._changed.wait(max(0.0, deadline - time.monotonic()))

    def ask(self, command: Any) -> dict[str, Any]:
        """Ask every stage; return its answers."""
        for stage in STAGES:
            self.send(stage, command)
        return self._all_answers(self._timeout_s, type(command).__name__)

    def ask_each(self, command: Any, within_s: float) -> dict[str, Any]:
        """Ask every stage; return what each answered, or as a StageFailed why it did not within `within_s`.

        With such a failure in it the pipeline is to be closed: a late answer would pass for that to the next question.
        """
        for stage in STAGES:
            self.send(stage, command)
        deadline = time.monotonic() + within_s
        with self._changed:
            while self._silent() and time.monotonic() < deadline:
                self._changed.wait(0.1)
            answers, self._answers.by_stage = self._answers.by_stage, {}
        what = f"no answer to {type(command).__name__} within {within_s:g} s, or its process has ended"
        return {stage: answers.get(stage, StageFailed(f"{stage}: {what}", stage=stage)) for stage in STAGES}

    def apply(self, recipe: Recipe) -> None:
        """Rewire every stage."""
        self.ask(m.Configure(cloudpickle.dumps(recipe)))

    def cpu_seconds(self) -> dict[str, float]:
        """CPU seconds of each stage with its worker."""
        return {stage: _cpu_of(process.pid) for stage, process in self._processes.items()}

    def pids(self) -> dict[str, int]:
        """Process ids of the stages."""
        return {stage: process.pid for stage, process in self._processes.items()}

    def close(self) -> None:
        """Remove the edges, tell the stages to end, kill those that do not."""
        self._closing = True
        self._folder.destroy()  # first: who is killed in what follows leaves nothing, for the stages were told to end
        for stage in self._connections:
            self.send(stage, m.Close())
        workers = [worker for process in self._processes.values() for worker in _children(process.pid)]
        for process in self._processes.values():
            end_process(process)
        for worker in workers:
            _end_worker(worker)
        if self._events.is_alive() and self._events is not threading.current_thread():
            self._events.join(5)
        for connection in self._connections.values():
            connection.close()

    def _start(self, specs: dict[str, StageSpec], recipe: Recipe) -> None:
        bells = [Doorbell() for _ in EDGES]
        inward: dict[str, tuple[str, int]] = {}
        outward: dict[str, tuple[str, int]] = {}
        for bell, (producer, consumer) in zip(bells, EDGES, strict=True):
            outward[producer] = inward[consumer] = (str(self._folder.new_edge()), bell.fileno())
        for stage in STAGES:
            here, there = socket.socketpair()
            edges = (inward.get(stage), outward.get(stage))
            with there:
                fds = [edge[1] for edge in edges if edge is not None]
                self._processes[stage] = start_process("stage_process", there.fileno(), *fds)
            self._connections[stage] = Connection(here.detach())
            self.send(stage, Start(specs[stage], recipe, *edges))
        for bell in bells:
            bell.close()
        self._events.start()
        self._all_answers(START_WITHIN_S, "start")

    def _silent(self) -> list[str]:
        """Return the stages that live and owe an answer."""
        return [s for s in STAGES if s not in self._answers.by_stage and self._processes[s].poll() is None]

    def _all_answers(self, within_s: float, what: str) -> dict[str, Any]:
        deadline = time.monotonic() + within_s
        with self._changed:
            while len(self._answers.by_stage) < len(STAGES):
                if self._failure is not None:
                    raise self._failure
                if time.monotonic() > deadline:
                    missing = ", ".join(s for s in STAGES if s not in self._answers.by_stage)
                    raise Timeout(f"{missing}: no answer to {what} within {within_s:g} s", stage=missing)
                self._changed.wait(0.1)
            return self._answers.result()

    def _take_events(self) -> None:
        name_thread()
        open_ends = {connection: stage for stage, connection in self._connections.items()}
        while open_ends and not (self._closing and all(p.poll() is not None for p in self._processes.values())):
            for connection in wait(list(open_ends), timeout=0.2):
                assert isinstance(connection, Connection)
                stage = open_ends[connection]
                try:
                    event = cloudpickle.loads(connection.recv_bytes())
                except (EOFError, OSError):
                    del open_ends[connection]
                    event = None if self._closing else m.Failed(None, self._ended(stage))
                if event is not None:
                    self._take_event(stage, event)

    def _take_event(self, stage: str, event: Any) -> None:
        with self._changed:
            if not self._answers.take(stage, event):
                if isinstance(event, m.Failed) and event.request_id is None:
                    self._failure = self._failure or event.error
                self._on_event(stage, event)
            self._changed.notify_all()

    def _ended(self, stage: str) -> StageFailed:
        process = self._processes[stage]
        try:
            code = process.wait(2)
        except subprocess.TimeoutExpired:
            code = None
        return StageFailed(
            f"{stage}: its process has ended (exit code {code}); open the pipeline again. Its stderr says more",
            stage=stage,
        )


def _children(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _end_worker(worker: psutil.Process) -> None:
    """A worker ends with its stage's socket; one that does not within a moment is killed."""
    try:
        worker.wait(3)
    except psutil.TimeoutExpired:
        worker.kill()
        worker.wait(KILLED_S)  # the kernel takes its time on a machine that is overrun
    except psutil.NoSuchProcess:
        return


def _cpu_of(pid: int) -> float:
    """CPU seconds of a process and its children that are alive."""
    total = 0.0
    try:
        process = psutil.Process(pid)
        for one in (process, *process.children(recursive=True)):
            times = one.cpu_times()
            total += times.user + times.system
    except psutil.NoSuchProcess:
        return total
    return total
