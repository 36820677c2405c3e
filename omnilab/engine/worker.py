"""Where a runner lives: in a process of its own behind a socket (child.py), or in place.

The worker ends when its socket does, so it never outlives its engine, however that ended.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections import deque
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle

from omnilab.engine.child import settle
from omnilab.engine.messages import Work
from omnilab.engine.spec import StageSpec
from omnilab.recipe import Recipe
from omnilab.record import Recorder, count, recording, span
from omnilab.seams import Channel, Runner

CLOSE_WITHIN_S = 5.0


class StageRunnerFactory:
    """Makes a stage's runner where `worker_link` wants it. Satisfies seams.RunnerFactory."""

    def __init__(self, spec: StageSpec, recipe: Recipe, *, own_process: bool) -> None:
        self._spec, self._recipe, self._own_process = spec, recipe, own_process

    def build(self) -> Runner:
        """Make the runner in this process."""
        return self._spec.make_runner(self._spec, self._recipe)

    def spawn(self) -> Channel:
        """Make it in a process of its own; where the topology has but one process, in place behind pickled bytes."""
        if self._own_process:
            return ProcessChannel(self._spec, self._recipe)
        return InPlaceChannel(self.build())


class InPlaceChannel:
    """A runner in this thread that still sees nothing but bytes."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._answers: deque[bytes] = deque()

    def send_bytes(self, data: bytes) -> None:
        """Answer at once."""
        count("bytes_to_worker", len(data))
        self._answers.append(answer(self._runner, data))

    def recv_bytes(self) -> bytes:
        """Take the next answer."""
        data = self._answers.popleft()
        count("bytes_from_worker", len(data))
        return data

    def poll(self) -> bool:
        """Is there an answer?"""
        return bool(self._answers)

    def fileno(self) -> int | None:
        """None: nothing to wait for."""
        return None

    def close(self) -> None:
        """End the runner."""
        self._runner.close()


class ProcessChannel:
    """A runner in a process of its own, started by `python -m`: nothing is forked, nobody's main module is imported."""

    def __init__(self, spec: StageSpec, recipe: Recipe) -> None:
        here, there = socket.socketpair()
        with there:
            self._process = start_process("worker", there.fileno())
        self._connection = Connection(here.detach())
        self._connection.send_bytes(cloudpickle.dumps((spec, recipe)))

    def send_bytes(self, data: bytes) -> None:
        """Send a message; OSError when the worker has ended."""
        count("bytes_to_worker", len(data))
        self._connection.send_bytes(data)

    def recv_bytes(self) -> bytes:
        """Take the next answer; EOFError when the worker has ended."""
        data = self._connection.recv_bytes()
        count("bytes_from_worker", len(data))
        return data

    def poll(self) -> bool:
        """Is an answer, or the worker's end, there?"""
        return self._connection.poll()

    def fileno(self) -> int | None:
        """The socket."""
        return self._connection.fileno()

    def close(self) -> None:
        """Close the socket, which ends the worker; kill it if it does not."""
        self._connection.close()
        end_process(self._process)


def start_process(name: str, fd: int, *more_fds: int) -> subprocess.Popen[bytes]:
    """Start a process of child.py, which inherits just these descriptors. Its stdout is discarded, stderr kept.

    In a process group of its own: neither Ctrl-C nor a notebook's interrupt reaches it, not even while it imports. It
    inherits that SIGINT is blocked, for one could come after the fork and before it has that group.
    """
    fds = (fd, *more_fds)
    environment = {**os.environ, "OMNILAB_PARENT": str(os.getpid()), "TOKENIZERS_PARALLELISM": "false"}
    command = [sys.executable, "-m", "omnilab.engine.child", name, *map(str, fds)]
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return subprocess.Popen(
            command, pass_fds=fds, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, process_group=0
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def end_process(process: subprocess.Popen[bytes], within_s: float = CLOSE_WITHIN_S) -> None:
    """Wait for a process that has been told to end; kill it after `within_s`."""
    try:
        process.wait(within_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def answer(runner: Runner, data: bytes) -> bytes:
    """Unpickle a message, call the runner, pickle its answer. An exception is an answer too."""
    recorder: Recorder = runner.recorder  # pyright: ignore[reportAttributeAccessIssue]
    recorder.hold()
    idle = False
    try:
        with recording(recorder):
            with span("unpickle"):
                message = pickle.loads(data)
            idle = isinstance(message, Work) and not message.items
            result = runner.call(message)
            with span("pickle"):
                return pickle.dumps(result, protocol=5)
    except Exception as error:
        return pickle.dumps(RuntimeError(f"{error!r}\n{traceback.format_exc()}"), protocol=5)
    finally:
        recorder.release(idle=idle)


def receive(connection: Connection, within_s: float) -> Any:
    """Unpickle one message; TimeoutError when none comes, EOFError when the peer has ended."""
    if not select.select([connection], [], [], within_s)[0]:
        raise TimeoutError(f"no message within {within_s:g} s")
    return cloudpickle.loads(connection.recv_bytes())


def name_thread(name: str | None = None) -> None:
    """Give the OS thread the name Python knows it by (15 bytes), or both a new one: traces and py-spy show it."""
    thread = threading.current_thread()
    if name is not None:
        thread.name = name
    pthread_setname = getattr(ctypes.CDLL(None), "pthread_setname_np", None)
    if pthread_setname is not None and thread.ident is not None:
        pthread_setname(ctypes.c_void_p(thread.ident), thread.name.encode()[:15])


def quiet_start() -> None:
    """What every stage process does first: leave Ctrl-C to the parent, end with it, keep transformers quiet."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")


def main() -> int:
    """Serve a runner over the socket named on the command line until it closes."""
    quiet_start()
    with Connection(int(sys.argv[1])) as connection:
        spec, recipe = receive(connection, within_s=60)
        limit_threads(spec.num_threads)
        name_thread(f"{spec.stage}/runner")
        try:
            runner = spec.make_runner(spec, recipe)
        except Exception as error:
            return _serve_failure(connection, error)
        settle()
        with suppress(EOFError, BrokenPipeError, ConnectionResetError):
            while True:
                connection.send_bytes(answer(runner, connection.recv_bytes()))
    return 0


def _serve_failure(connection: Connection, error: Exception) -> int:
    """Answer the first message with why there is no runner."""
    text = f"{error!r}\n{''.join(traceback.format_exception(error))}"
    with suppress(EOFError, OSError):
        connection.recv_bytes()
        connection.send_bytes(pickle.dumps(RuntimeError(text), protocol=5))
        time.sleep(0.1)
    return 1


def limit_threads(num_threads: int) -> None:
    """Set what torch may use in this process: threads of one operation, and no gradients."""
    import torch

    torch.set_num_threads(num_threads)
    torch.set_grad_enabled(False)
