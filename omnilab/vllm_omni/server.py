"""vLLM-Omni's server, started on a free port from an environment of its own, and ended with all it started."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from glob import escape
from pathlib import Path

from omnilab.client.ready import wait_ready
from omnilab.errors import BadInput, Error
from omnilab.launch import SHARED, Command, Running, free_port, running
from omnilab.vllm_omni.board import BOARD, Board

START_S, STOP_S = 600.0, 30.0  # a slow pair of cores takes 220 s
_PROGRAM = "vllm_omni.entrypoints.cli.main"
# Nothing is fetched or reported, and several engines share few cores. PYTHONPATH is of the environment that starts it.
_ALWAYS = {
    "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_DO_NOT_TRACK": "1",
    "PYTHONPATH": "",
}  # fmt: skip
_ON_A_CPU = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSpec:
    """What is served: `python` of an environment with vLLM-Omni, a model folder, a deploy file, where its log goes.

    `board`: where its processes find their switches; None starts it without our toggles.
    """

    python: Path
    model: Path
    deploy: Path
    folder: Path
    board: Board | None = None
    name: str = "omni"
    on_cpu: bool = True
    start_s: float = START_S
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    def check(self) -> None:
        """Raise BadInput for what is not there; starts nothing."""
        if not (self.python.is_file() and os.access(self.python, os.X_OK)):
            raise BadInput(f"{self.python}: no such program; `make vllm-omni` builds the environment on a CPU")
        for path in (self.model / "config.json", self.deploy):
            if not path.is_file():
                raise BadInput(f"{path}: no such file; give a model folder and a deploy file that exist")

    def command(self, port: int) -> Command:
        """Return how it is started on a port of this machine."""
        words = (
            str(self.python), "-m", _PROGRAM, "serve", str(self.model), "--omni",
            "--deploy-config", str(self.deploy), "--host", "127.0.0.1", "--port", str(port),
            "--served-model-name", self.name, *self.arguments,
        )  # fmt: skip
        environment = {**_ALWAYS, **(_ON_A_CPU if self.on_cpu else {}), **self.environment}
        if self.board is not None:
            environment[BOARD] = str(self.board.folder)
        return Command(
            words=words, log=self.folder / "server.log", port=port, environment=environment, stop_s=STOP_S,
            after=() if self.board is None else _sweeping(self.board.folder),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Served:
    """A server that answers."""

    url: str
    name: str
    process: Running
    board: Board | None


@contextmanager
def serving(spec: ServerSpec) -> Iterator[Served]:
    """Start a server, wait until it answers, and end it. Error with the end of its log where it does not."""
    spec.check()
    with running(spec.command(free_port())) as process:
        url = f"http://127.0.0.1:{process.command.port}"
        _wait(url, process, spec.start_s)
        if spec.board is not None:
            spec.board.check()
        yield Served(url, spec.name, process, spec.board)


def sweep(board: Path) -> None:
    """Remove what the connectors left of requests: KEY and shm_KEY_lockfile.lock, where KEY begins with a request's id.

    0.30.0 leaves lock files where speech ends before the text, and both where a server is killed. `board`: its folder.
    """
    for request in Board(board).requests():
        for path in (*SHARED.glob(f"{escape(request)}_*"), *SHARED.glob(f"shm_{escape(request)}_*")):
            path.unlink(missing_ok=True)


def _sweeping(board: Path) -> tuple[str, ...]:
    """Return the words of a program that sweeps; it outlives a starter that is killed, as its server's end does."""
    here = str(Path(__file__).resolve().parents[2])
    does = f"import sys; sys.path.insert(0, {here!r}); from omnilab.vllm_omni.server import Path, sweep"
    return sys.executable, "-I", "-c", f"{does}; sweep(Path(sys.argv[1]))", str(board)


def _wait(url: str, process: Running, within_s: float) -> None:
    try:
        wait_ready(url, timeout_s=within_s, alive=process.ended)
    except Error as error:
        if process.ended():
            raise
        log = process.command.log
        raise Error(f"{error} (start_s); the end of {log}:\n{process.last_words()}") from None
