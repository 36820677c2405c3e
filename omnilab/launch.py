"""A server started by a command line of its user's, and ended with everything below it, however its starter ends.

Between the two stands a process of ours, which runs `main`: it takes in what the server's processes orphan, and
ends them all when its standard input closes, which the kernel does too when the starter is killed.
"""

from __future__ import annotations

import ctypes
import math
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from omnilab.errors import BadInput, Error

STOP_S = 30.0  # for a server that was asked to end, before it is killed
GONE_S = 15.0  # for what was killed, and for its port
TAIL = 15  # lines of the log that an error shows
ADOPT_ORPHANS = 36  # PR_SET_CHILD_SUBREAPER of Linux's prctl
SHARED = Path("/dev/shm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What is started: words, where, with which additions to the environment, its output to which log."""

    words: Sequence[str]
    log: Path
    folder: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    port: int | None = None  # that it will listen on
    stop_s: float = STOP_S
    after: Sequence[str] = ()  # what our process runs once all has ended: words of a program that needs no environment


class LeftBehind(Error):
    """A server has ended, and something of it has not."""


class Running:
    """A server's processes while they live."""

    def __init__(self, command: Command, process: subprocess.Popen[bytes]) -> None:
        """`process` is ours, above the server's."""
        self.command, self._process = command, process
        self._before, self._shared = set(SHARED.glob("*")), set[Path]()

    def ended(self, within_s: float = 0.0) -> str | None:
        """Say with which status it has ended, or does `within_s`, and its last words; None while it runs."""
        try:
            status = self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            return None
        return (
            f"{self.command.words[0]} ended with status {status}; the end of {self.command.log}:\n{self.last_words()}"
        )

    def last_words(self) -> str:
        """Return the last lines of its log."""
        with suppress(OSError):
            return "\n".join(self.command.log.read_text(errors="replace").splitlines()[-TAIL:])
        return ""

    def processes(self) -> list[psutil.Process]:
        """Return all that live below ours, the server's first."""
        with suppress(psutil.Error):
            return psutil.Process(self._process.pid).children(recursive=True)
        return []

    def cpu_s(self) -> float:
        """Processor seconds so far of all its processes, ended ones included."""
        total = 0.0
        for process in self.processes():
            with suppress(psutil.Error):
                total += sum(process.cpu_times()[:4])  # user, system, and both of children that it has waited for
        return total

    def resident_mib(self) -> float:
        """Resident memory of all its processes; pages that they share count in each."""
        total = 0
        for process in self.processes():
            with suppress(psutil.Error):
                total += process.memory_info().rss
        return total / 2**20

    def look(self) -> set[Path]:
        """Return the files in /dev/shm that its processes had mapped whenever this looked, less those there before."""
        for process in self.processes():
            with suppress(OSError):
                maps = Path(f"/proc/{process.pid}/maps").read_text()
                self._shared |= {Path(path) for path in re.findall(rf"{SHARED}/[^\s]+", maps)} - self._before
        return self._shared


@contextmanager
def running(command: Command) -> Iterator[Running]:
    """Start a server and end it with everything below it. BadInput where it cannot be started.

    LeftBehind when something of it is left at the end: a process, its port, or shared memory.
    """
    if command.port is not None and not port_is_free(command.port):
        raise BadInput(f"port {command.port} is taken: end what listens there, or choose another")
    process = _start(command)
    server = Running(command, process)
    try:
        yield server
    except Exception as error:
        if left := _end(server, process):
            raise LeftBehind(f"{error}; and {_said(command, left)}") from error
        raise
    except BaseException:
        _end(server, process)
        raise
    if left := _end(server, process):
        raise LeftBehind(_said(command, left))


def _said(command: Command, left: str) -> str:
    return f"{command.words[0]} left behind {left}: end or remove it, for it disturbs what comes next"


def _start(command: Command) -> subprocess.Popen[bytes]:
    environment = {**os.environ, **command.environment}
    program, *arguments = command.words
    if command.folder is not None and not command.folder.is_dir():
        raise BadInput(f"{command.folder}: no such folder to start {program} in")
    found = found_program(program, command.folder, command.environment)
    # Isolated: what the environment says to Python is meant for the server, not for ours.
    here = str(Path(__file__).resolve().parents[1])
    ours = f"import sys; sys.path.insert(0, {here!r}); from omnilab.launch import main; sys.exit(main(sys.argv[1:]))"
    words = [
        sys.executable, "-I", "-c", ours, str(command.stop_s), str(len(command.after)), *command.after, found,
        *arguments,
    ]  # fmt: skip
    with open(command.log, "ab") as log:
        return subprocess.Popen(
            words, cwd=command.folder, env=environment, stdin=subprocess.PIPE, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip


def found_program(program: str, folder: Path | None, environment: Mapping[str, str]) -> str:
    """Return a program's path, looked for as a shell in `folder` would; BadInput when it is not there."""
    if os.sep in program:
        path = (folder or Path.cwd()).absolute() / program
        found = str(path) if path.is_file() and os.access(path, os.X_OK) else None
    else:
        found = shutil.which(program, path=environment.get("PATH", os.environ.get("PATH")))
    if found is None:
        raise BadInput(f"{program}: no such program; give its path, or set PATH in the environment that it gets")
    return found


def _end(server: Running, process: subprocess.Popen[bytes]) -> str:
    """End it and return what is left, in words; "" when nothing is."""
    below, shared = server.processes(), server.look()
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(server.command.stop_s + 2 * GONE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    _, alive = psutil.wait_procs(below, timeout=0.1)
    for one in alive:
        with suppress(psutil.Error):
            one.kill()
    _, alive = psutil.wait_procs(alive, timeout=GONE_S)
    left = [f"process {one.pid}" for one in alive]
    port = server.command.port
    if port is not None and not _comes_free(port):
        left.append(f"something on port {port}")
    return ", ".join([*left, *(str(path) for path in sorted(shared) if path.exists())])


def check_start_s(start_s: float) -> None:
    """Raise BadInput unless a server may take so many seconds to be ready."""
    if not 0 < start_s < math.inf:
        raise BadInput(f"start_s: must be a number of seconds above 0, not {start_s:g}")


def port_is_free(port: int) -> bool:
    """Can a server listen there now?"""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: connections in TIME_WAIT are none
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """Return a port on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _comes_free(port: int) -> bool:
    until = time.monotonic() + GONE_S
    while not port_is_free(port):
        if time.monotonic() > until:
            return False
        time.sleep(0.1)
    return True


def main(argv: Sequence[str]) -> int:
    """Run a command until it ends or standard input closes, then end all below and run what comes after.

    `argv`: seconds to stop in, how many words come after, these words, and those of the command. Return its status.
    """
    stop_s, count, *rest = argv
    after, words = rest[: int(count)], rest[int(count) :]
    if ctypes.CDLL(None, use_errno=True).prctl(ADOPT_ORPHANS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl: this kernel gives no orphans to their grandparent")
    child = subprocess.Popen(words, stdin=subprocess.DEVNULL)
    try:
        ended = os.pidfd_open(child.pid)
        select.select([sys.stdin.fileno(), ended], [], [])
    finally:
        status = child.poll()
        end = time.monotonic() + float(stop_s)
        if status is None:
            child.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                child.wait(float(stop_s))
        _end_all_below(end)
        if after:
            subprocess.run(after, stdin=subprocess.DEVNULL, timeout=GONE_S, check=False)
    if status is None:
        return 0
    return status if status >= 0 else 128 - status


def _end_all_below(end: float) -> None:
    """Ask until `end` (time.monotonic()), then kill, until nothing is left; what dies may leave orphans: they are ours.

    A wrapper such as `conda run` ends at once, and the server below it has its time, too.
    """
    for number in range(5):
        below = psutil.Process().children(recursive=True)
        for process in below:
            with suppress(psutil.Error):
                process.terminate() if number == 0 else process.kill()
        _, alive = psutil.wait_procs(below, timeout=3 if number else max(3, end - time.monotonic()))
        if not alive and not psutil.Process().children(recursive=True):
            return
