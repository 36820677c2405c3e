"""py-spy on the processes of a pipeline: one speedscope file each, a profile a thread."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from omnilab.errors import BadInput

RATE = 100  # samples a second
ATTACH_WITHIN_S, WRITE_WITHIN_S = 30.0, 60.0
READY = b"Press Control-C"
YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
SAID = 300  # characters of what py-spy says


def program() -> str:
    """Return py-spy's path; BadInput when it is not installed."""
    found = shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")
    if found is None:
        raise BadInput("py-spy is not installed: pip install 'omnilab[trace]', or leave pyspy out of --passes")
    return found


def refused() -> str | None:
    """Try py-spy on this process: return None when it may look, else why not and which capability it lacks."""
    command = [program(), "dump", "--pid", str(os.getpid())]
    try:
        tried = subprocess.run(command, capture_output=True, text=True, timeout=ATTACH_WITHIN_S, check=False)
    except subprocess.TimeoutExpired:
        return f"py-spy said nothing within {ATTACH_WITHIN_S:g} s"
    said = " ".join((tried.stderr or tried.stdout).split())
    if tried.returncode == 0:
        return None
    if "denied" not in said.lower() and "not permitted" not in said.lower():
        return f"py-spy cannot read a process here: {said[:SAID]}"
    scope = f" (it is {YAMA.read_text().strip()} here)" if YAMA.exists() else ""
    return (
        "py-spy is not permitted to read another process: it lacks the capability CAP_SYS_PTRACE. Run as root, in "
        f"docker with --cap-add SYS_PTRACE, or set kernel.yama.ptrace_scope to 0{scope}. It said: {said[:SAID]}"
    )


class Sampler:
    """One py-spy on one process."""

    def __init__(self, worker: str, pid: int, path: Path, log: Path, *, rate: int, native: bool) -> None:
        self.worker, self.path, self._log = worker, path, log
        self.error: str | None = None
        path.parent.mkdir(parents=True, exist_ok=True)
        command = [program(), "record", "--pid", str(pid), "--format", "speedscope", "--threads", "--rate", str(rate)]
        command += ["--output", str(path), *(["--native"] if native else [])]
        with log.open("wb") as said:  # a session of its own: Ctrl-C is for us, and we tell it
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT, start_new_session=True
            )

    def attached(self, deadline: float) -> None:
        """Wait until it samples; `error` says when it does not."""
        while not self._samples() and self._process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        if not self._samples():
            self._fail("did not attach")

    def stop(self, deadline: float) -> None:
        """End it; it then writes its file. Killed when it does not by `deadline`."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if not self.path.is_file() and self.error is None:
            self._fail("wrote nothing")

    def _fail(self, what: str) -> None:
        said = " ".join(self._log.read_bytes().decode(errors="replace").split())
        self.error = f"{self.worker}: py-spy {what}: {said[-SAID:] or 'it said nothing'}"

    def _samples(self) -> bool:
        return READY in self._log.read_bytes()


@contextmanager
def sampled(
    processes: Mapping[str, int], path_of: Mapping[str, Path], *, rate: int = RATE, native: bool = False
) -> Iterator[list[Sampler]]:
    """Sample processes, by worker, for as long as the block runs; each writes to its path.

    What one could not do is its `error`. All have ended when the block has.
    """
    samplers: list[Sampler] = []
    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stack.callback(_stop, samplers)
        for worker, pid in processes.items():
            samplers.append(Sampler(worker, pid, path_of[worker], logs / worker, rate=rate, native=native))
        deadline = time.monotonic() + ATTACH_WITHIN_S
        for sampler in samplers:
            sampler.attached(deadline)
        yield samplers


def _stop(samplers: list[Sampler]) -> None:
    deadline = time.monotonic() + WRITE_WITHIN_S
    for sampler in samplers:
        sampler.stop(deadline)
