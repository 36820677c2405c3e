"""A server of vLLM-Omni with our toggles as what an experiment measures: one server a block, its switches set a trial.

It counts as the lab's stages do, so that the same rules tell a toggle that had no effect.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import psutil
from numpy.typing import NDArray

from omnilab.client.server import Server
from omnilab.errors import BadInput, Error, ToggleConflict
from omnilab.toggle import Toggle, occupant_name, source_hash
from omnilab.trial import Trial
from omnilab.vllm_omni.board import BASELINE, OPTIMIZED, STAGES, WRONG, Board, since
from omnilab.vllm_omni.sampling import by_stage
from omnilab.vllm_omni.sent_codes import Window, joined, windows, written
from omnilab.vllm_omni.server import Served, ServerSpec, serving
from omnilab.vllm_omni.toggles import TOGGLES, UNSAFE
from omnilab.workload import Workload

_ENGINE = re.compile(r"_stage(\d+)_")  # in the title that vLLM-Omni gives an engine's process


NAMES = tuple(toggle.name for toggle in TOGGLES)


@dataclass(frozen=True, slots=True)
class Sides:
    """Which toggles are on: all others of the four are on their baseline. `UNSAFE` may be one of them."""

    on: tuple[Toggle[Any], ...] = ()

    def __post_init__(self) -> None:
        if unknown := [toggle.name for toggle in self.on if toggle not in (*TOGGLES, UNSAFE)]:
            raise BadInput(f"{', '.join(unknown)}: no toggle of vLLM-Omni; there are {', '.join(NAMES)}")
        if UNSAFE in self.on and any(toggle.seam == UNSAFE.seam for toggle in self.on if toggle is not UNSAFE):
            raise ToggleConflict(f"{UNSAFE.name} and another toggle fill {UNSAFE.seam}: leave one of them out")

    def switches(self) -> dict[str, int]:
        """Return the side of each switch."""
        filled = {toggle.seam: WRONG if toggle is UNSAFE else OPTIMIZED for toggle in self.on}
        return {toggle.name: filled.get(toggle.seam, BASELINE) for toggle in TOGGLES}

    def occupants(self) -> dict[str, str]:
        """Return what fills each seam: name and source hash."""
        return occupants(self.switches())


def occupants(switches: Mapping[str, int]) -> dict[str, str]:
    """Return what fills each seam with the switches as given: name and source hash."""
    filled = {}
    for toggle in TOGGLES:
        wrong = UNSAFE.optimized if toggle.seam == UNSAFE.seam else None
        occupant = {BASELINE: toggle.baseline, OPTIMIZED: toggle.optimized, WRONG: wrong}[switches[toggle.name]]
        filled[toggle.seam] = f"{occupant_name(occupant)} {source_hash(occupant)}"
    return filled


class OmniServer(Server):
    """Our client with the lengths and sampling of every stage in each request, as vLLM-Omni takes them."""

    def bodies(self, workload: Workload) -> list[bytes]:
        """Return what is sent for each request."""
        bodies = [msgspec.json.decode(body) for body in super().bodies(workload)]
        for body, item in zip(bodies, workload.requests, strict=True):
            body["sampling_params_list"] = by_stage(item.sampling)
        return [msgspec.json.encode(body) for body in bodies]


class Subject:
    """A server while it runs."""

    def __init__(self, served: Served, board: Board, server: OmniServer) -> None:
        self._served, self._board, self._server = served, board, server

    def apply(self, setting: Sides) -> None:
        """Set the switches; at once in every process, and no request may be running."""
        self._board.switch(setting.switches())

    def run(self, workload: Workload) -> Trial:
        """Measure one trial. Error, with its last words, when the server has ended."""
        process = self._served.process
        counts, cpu = self._board.counts(), cpu_by_stage(process.processes())
        earlier = written(self._board.folder)
        trial = self._server.run(workload)
        if (ended := process.ended()) is not None:
            raise Error(ended)
        counted, after = since(counts, self._board.counts()), cpu_by_stage(process.processes())
        trial.counter_rows = [row for row in counted.counters if row.value]
        trial.lost_rows = [row for row in counted.times if row.number]
        trial.cpu_s = {stage: after[stage] - cpu.get(stage, 0.0) for stage in after}
        trial.occupants = {"server": occupants(self._board.sides)}
        sent = windows(self._board.folder, earlier)
        for record in trial.records:
            record.codes = _codes_of(record.request_id, sent)
        return trial


def _codes_of(request: str, sent: Mapping[str, list[Window]]) -> NDArray[np.int64] | None:
    """Return a request's codes [frames, 16]; 0.30.0 puts words of its own before and after the id that we gave."""
    return next((joined(of_one) for name, of_one in sent.items() if name.startswith(f"chatcmpl-{request}-")), None)


@contextmanager
def subject(spec: ServerSpec, *, request_s: float = 900.0) -> Iterator[Subject]:
    """Start a server with a board and end it; residual codes are greedy and kept, so that outputs can be compared.

    Prompts of random tokens have their length by the model's own tokenizer, what the chat template adds not counted.
    """
    if spec.board is None:
        raise BadInput("a server without a board has no toggles; give one, or compare servers by their commands")
    spec.board.switch({"greedy_codes": OPTIMIZED, "sent_codes": OPTIMIZED})
    with serving(spec) as served:
        server = OmniServer(served.url, served.name, timeout_s=request_s, tokenizer=spec.model)
        yield Subject(served, spec.board, server)


def cpu_by_stage(processes: Sequence[psutil.Process]) -> Mapping[str, float]:
    """Sum processor seconds over each stage's engine with its workers; "server" is all else."""
    stages: dict[int, str] = {}  # by process
    total: dict[str, float] = dict.fromkeys(("server", *STAGES), 0.0)
    for process in processes:  # a parent before its children
        with suppress(psutil.Error):
            title = _ENGINE.search(" ".join(process.cmdline()))
            above = stages.get(process.ppid(), "server")
            stages[process.pid] = STAGES[int(title[1])] if title and int(title[1]) < len(STAGES) else above
            total[stages[process.pid]] += sum(process.cpu_times()[:2])
    return total
