"""Arms: servers as variants. Each is started by a command of the user's, driven by our client, and ended.

Whatever speaks the API can be compared: two checkouts of an engine, two settings, two environments.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omnilab.client import Server, served_models, wait_ready
from omnilab.client.random_text import open_tokenizer
from omnilab.client.wire import Address
from omnilab.errors import BadInput, Error
from omnilab.experiment import secrets
from omnilab.experiment.design import AGAIN, Variant
from omnilab.installed import installed, python_of
from omnilab.launch import STOP_S, Command, Running, check_start_s, found_program, free_port, port_is_free, running
from omnilab.trial import Trial
from omnilab.workload import Workload

EXACT = frozenset({"tokens", "samples"})  # what can be compared of a server: it shows no codes
PORT = "{port}"
LOST = ("cut", "connect")  # faults of requests whose server may have ended
ENDS_WITHIN_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """A server to compare. `{port}` in `command`, `environment` and `url` becomes a port that is free.

    `command` is one line, split as a shell would (no shell runs it), or its words. `ready`: the path that answers 200
    once requests are taken. `model` None: the first that the server names. `extra_body` goes into every request.
    `tokenizer`: a folder, for prompts of random tokens; without one they are common words.
    """

    command: str | Sequence[str]
    folder: str | Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    url: str = "http://127.0.0.1:{port}"
    ready: str = "/health"
    model: str | None = None
    api_key: str | None = None
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    modalities: tuple[str, ...] = ("text", "audio")
    tokenizer: str | Path | None = None
    start_s: float = 900.0
    request_s: float = 900.0
    stop_s: float = STOP_S

    def __post_init__(self) -> None:
        check_start_s(self.start_s)

    @property
    def words(self) -> list[str]:
        """The command's words; BadInput when it has none, or a quote is not closed."""
        try:
            words = shlex.split(self.command) if isinstance(self.command, str) else list(self.command)
        except ValueError as error:
            raise BadInput(f"command {self.command!r}: {error}") from None
        if not words:
            raise BadInput("command: empty; give the line that starts the server")
        return words

    @property
    def where(self) -> Path | None:
        """The folder that it starts in; None for this process's."""
        return None if self.folder is None else Path(self.folder)

    def installed(self) -> dict[str, str]:
        """Return versions and commits of its environment; empty where its program names no Python that tells them."""
        program = next((word for word in self.words if word != "env" and "=" not in word), self.words[0])
        with suppress(BadInput):  # after an option of env's comes no program
            python = python_of(Path(found_program(program, self.where, self.environment)))
            return {} if python is None else installed(python)
        return {}

    def occupants(self) -> dict[str, str]:
        """Return what a run is told of it: an arm fills no seam."""
        return {}

    def to_dict(self) -> dict[str, Any]:
        """Return it for run.json; what looks like a secret only as a hash."""
        whole = {
            "command": self.line, "folder": None if self.folder is None else str(self.folder),
            "environment": dict(self.environment), "url": self.url, "ready": self.ready, "model": self.model,
            "extra_body": dict(self.extra_body), "modalities": self.modalities,
            "tokenizer": None if self.tokenizer is None else str(self.tokenizer),
        }  # fmt: skip
        return secrets.without_any(whole, self.hidden)

    @property
    def line(self) -> str:
        """The command as one line, to be shown: without secrets."""
        return shlex.join(secrets.without(word, self.hidden) for word in self.words)

    @property
    def hidden(self) -> list[str]:
        """What of it must not be kept."""
        given = (
            secrets.in_words(self.words),
            secrets.in_mapping(self.environment),
            secrets.in_mapping(self.extra_body),
        )
        return secrets.worth(itertools.chain([self.api_key or ""], *given))

    def check(self, name: str) -> None:
        """Raise BadInput, naming the arm, for what cannot be started; starts nothing."""
        try:
            if self.where is not None and not self.where.is_dir():
                raise BadInput(f"no folder {self.where}")
            found_program(self.words[0], self.where, self.environment)
            if not self.ready.startswith("/"):
                raise BadInput(f"ready: must be a path such as /health, not {self.ready!r}")
            if (port := self.fixed_port()) is not None and not port_is_free(port):
                raise BadInput(f"port {port} is taken: end what listens there, or write {PORT} for a free one")
            if self.tokenizer is not None:
                if not Path(self.tokenizer).is_dir():
                    raise BadInput(f"tokenizer: no folder {self.tokenizer}")
                open_tokenizer(Path(self.tokenizer))
            _driver(self, _with_port(self.url, self.fixed_port() or free_port()), self.model or "")
        except BadInput as error:
            raise BadInput(f"arm {name}: {error}") from None

    def fixed_port(self) -> int | None:
        """Return the port of its URL; None where it is to be a free one."""
        if PORT in self.url:
            if not any(PORT in text for text in (*self.words, *self.environment.values())):
                raise BadInput(f"the command says no port: put {PORT} where the server takes it, or give url")
            return None
        return Address.of(self.url).port


def variants_of(arms: Mapping[str, Arm], exact: frozenset[str]) -> list[Variant]:
    """Return a variant an arm, each compared with the first; BadInput with fewer than two."""
    if len(arms) < 2:
        raise BadInput("arms: give two or more, the first is what the others are compared with")
    for name, arm in arms.items():
        if not name.strip() or name.endswith(AGAIN):
            raise BadInput(f"arm {name!r}: choose another name")
        arm.check(name)
    if unknown := exact - EXACT:
        raise BadInput(f"exact: {', '.join(sorted(unknown))}; of a server can be compared tokens and samples")
    first, *_ = arms
    return [Variant(name, against=None if name == first else first, keeps=exact) for name in arms]


class Served:
    """A server of an arm while it runs, as something to measure."""

    def __init__(self, arm: Arm, server: Server, process: Running) -> None:
        """`server` drives what `process` is."""
        self.arm, self.server, self.process = arm, server, process

    def apply(self, setting: Any) -> None:
        """Refuse any other arm: a server is what it was started as."""
        if setting != self.arm:
            raise ValueError("another arm needs a server of its own")

    def run(self, workload: Workload) -> Trial:
        """Drive it with a workload; Error, with its last words, when it has ended."""
        before = self.process.cpu_s()
        trial = self.server.run(workload)
        self.process.look()
        if any((record.error or "").startswith(LOST) for record in trial.records):
            ended = self.process.ended(within_s=ENDS_WITHIN_S)
            if ended is not None:
                raise Error(secrets.without(ended, self.arm.hidden))
        trial.cpu_s = {"server": self.process.cpu_s() - before}
        trial.occupants = {"server": {"model": self.server.model}}
        return trial


def servers(arms: Mapping[str, Arm], logs: Path) -> Callable[[Any], AbstractContextManager[Served]]:
    """Return how to start the server of an arm; all that an arm's servers write goes to one log."""

    def start(arm: Any) -> AbstractContextManager[Served]:
        name = next(name for name, known in arms.items() if known == arm)
        logs.mkdir(parents=True, exist_ok=True)
        return served(arm, logs / (re.sub(r"[^\w.+-]+", "_", name) + ".log"))

    return start


@contextmanager
def served(arm: Arm, log: Path) -> Iterator[Served]:
    """Start an arm's server, wait until it is ready, and end it with all that belongs to it. `log` gets its output.

    Error, with the end of its log, when it ends first or is not ready in time, or leaves something behind.
    """
    port = arm.fixed_port() or free_port()
    command = Command(
        words=[_with_port(word, port) for word in arm.words],
        log=log,
        folder=arm.where,
        environment={name: _with_port(value, port) for name, value in arm.environment.items()},
        port=port,
        stop_s=arm.stop_s,
    )
    url = _with_port(arm.url, port)
    with running(command) as process:
        try:
            wait_ready(url, arm.ready, timeout_s=arm.start_s, alive=process.ended, api_key=arm.api_key)
            process.look()
            model = arm.model or served_models(url, api_key=arm.api_key)[0]
        except Error as error:
            raise Error(secrets.without(str(error), arm.hidden)) from None
        yield Served(arm, _driver(arm, url, model), process)


def _driver(arm: Arm, url: str, model: str) -> Server:
    return Server(
        url, model, api_key=arm.api_key, extra_body=arm.extra_body, modalities=arm.modalities, timeout_s=arm.request_s,
        tokenizer=arm.tokenizer,
    )  # fmt: skip


def _with_port(text: str, port: int) -> str:
    return text.replace(PORT, str(port))
