"""vLLM-Omni as the subject of an experiment: `Experiment(subject=VllmOmni(...))`, `ablate --subject vllm-omni`."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omnilab.errors import BadInput
from omnilab.installed import installed
from omnilab.launch import check_start_s
from omnilab.toggle import Toggle
from omnilab.vllm_omni.board import Board
from omnilab.vllm_omni.deploy import Deploy
from omnilab.vllm_omni.server import START_S, ServerSpec
from omnilab.vllm_omni.subject import Sides, Subject, subject
from omnilab.vllm_omni.toggles import TOGGLES
from omnilab.workload import Workload

MADE_HERE = Path(".vllm-omni/bin/python")  # by `make vllm-omni`


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmOmni:
    """A server of vLLM-Omni, started anew for every block; its toggles switch between trials.

    `python` is that of an environment with vLLM-Omni and omnilab. `folder`: a size of the lab's, or a model folder.
    `deploy`: how its stages run on a CPU, or a deploy file of one's own (then `on_cpu` says what machine it is for).
    """

    python: Path = MADE_HERE
    folder: str | Path = "parity"
    deploy: Deploy | Path = field(default_factory=Deploy)
    on_cpu: bool = True
    start_s: float = START_S
    request_s: float = 900.0

    def __post_init__(self) -> None:
        check_start_s(self.start_s)

    @property
    def model(self) -> str:
        """What is served."""
        return f"{self.folder} on vLLM-Omni"

    @property
    def baseline(self) -> str:
        """All of the four on their restored side."""
        return "all off"

    @property
    def toggles(self) -> tuple[Toggle[Any], ...]:
        """The four."""
        return TOGGLES

    def setting(self, toggles: Sequence[Toggle[Any]]) -> Sides:
        """Return the sides with these toggles on."""
        return Sides(tuple(toggles))

    def check(self, workloads: Iterable[Workload]) -> None:
        """Raise BadInput for an environment, folder or deploy file that is not there, and for prompts of no text."""
        from omnilab.model.folder import resolve

        model = resolve(self.folder)
        if isinstance(self.deploy, Path) and not self.deploy.is_file():
            raise BadInput(f"deploy: no file {self.deploy}")
        ServerSpec(python=self.python, model=model, deploy=model / "config.json", folder=model).check()
        if any(item.prompt.image is not None for workload in workloads for item in workload.requests):
            raise BadInput("prompts with images: not tried on vLLM-Omni here; leave them out of workload and gate")

    @contextmanager
    def open(self, setting: Sides, folder: Path) -> Iterator[Subject]:
        """Start a server and end it; its log and board go to a folder of their own below `folder`."""
        from omnilab.model.folder import resolve

        here = next(path for number in itertools.count(1) if not (path := folder / f"server-{number}").exists())
        here.mkdir(parents=True)
        environment = self.deploy.environment if isinstance(self.deploy, Deploy) else {}
        spec = ServerSpec(
            python=self.python.absolute(), model=resolve(self.folder),
            deploy=self.deploy.write(here / "deploy.yaml") if isinstance(self.deploy, Deploy) else self.deploy,
            folder=here, board=Board.create(here / "board"), on_cpu=self.on_cpu, start_s=self.start_s,
            environment=environment,
        )  # fmt: skip
        with subject(spec, request_s=self.request_s) as one:
            one.apply(setting)
            yield one

    def to_dict(self) -> dict[str, Any]:
        """Return it for run.json."""
        deploy = self.deploy.as_dict() if isinstance(self.deploy, Deploy) else self.deploy.read_text(encoding="utf-8")
        return {
            "engine": "vllm-omni", "python": str(self.python), "folder": str(self.folder), "on_cpu": self.on_cpu,
            "deploy": deploy, "versions": installed(self.python),
        }  # fmt: skip
