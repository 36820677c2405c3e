"""Switches and counts shared with a server's processes, as small memory-mapped files of one folder.

switches         a byte a switch: written by the client, read by every process (no call, no lock)
counts.PID       written by the process PID alone: counts, and times by name, a cell each by stage and thread
requests.PID     a line a request that it sent chunks of
codes.PID        a line a window of codes that it sent, while the switch `sent_codes` is on
process.PID      JSON: its version of vLLM-Omni, what was installed in it, or why nothing was

Light: no torch.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from omnilab.errors import BadInput, ToggleUnavailable
from omnilab.record import CounterRow, LostRow

BOARD = "OMNILAB_VLLM_OMNI_BOARD"  # environment variable: the folder
STAGES = ("thinker", "talker", "code2wav")  # by stage id
BASELINE, OPTIMIZED, WRONG = 0, 1, 2
# What 0.30.0 does by itself. The last two are no toggles: `greedy_codes` takes residual codes by the largest logit, so
# that audio repeats, and `sent_codes` keeps the codes that Code2Wav is sent.
AS_SHIPPED = {
    "async_save": OPTIMIZED, "prefill_only_hidden_states": OPTIMIZED, "idle_skip": OPTIMIZED,
    "shallow_merge": BASELINE, "greedy_codes": BASELINE, "sent_codes": BASELINE,
}  # fmt: skip
COUNTERS = (
    ("engine", "chunks_built"), ("send", "chunks_built"),
    ("send", "hidden_rows_resent"), ("send", "ids_resent"), ("send", "rows_dropped"),
    ("receive", "hidden_rows_accumulated"), ("receive", "ids_accumulated"),
    ("runner", "steps"), ("runner", "idle_steps"), ("runner", "updates_while_idle"),
    ("runner", "merges"), ("runner", "elements_visited"),
)  # fmt: skip
TIMES = (
    ("engine", "build"), ("send", "build"), ("receive", "accumulate"), ("runner", "merge"), ("runner", "update_states")
)  # fmt: skip
_PER_STAGE = len(COUNTERS) + 2 * len(TIMES)  # of a time its number and its nanoseconds
CELLS = len(STAGES) * _PER_STAGE


class Counts(NamedTuple):
    """What was counted: rows as a trial's, and the time under each name, of which no single span is kept."""

    counters: list[CounterRow]
    times: list[LostRow]

    def total(self, counter: str, *, stage: str | None = None, thread: str | None = None) -> int:
        """Sum a counter over the stages and threads, or over one."""
        rows = (row for row in self.counters if row.counter == counter)
        return sum(row.value for row in rows if stage in (None, row.stage) and thread in (None, row.thread))


@dataclass(frozen=True, slots=True)
class Board:
    """The folder as its client sees it."""

    folder: Path

    @classmethod
    def create(cls, folder: Path) -> Board:
        """Make the folder with every switch as shipped."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "switches").write_bytes(bytes(AS_SHIPPED.values()))
        return cls(folder)

    @property
    def sides(self) -> dict[str, int]:
        """Side in force by switch."""
        return dict(zip(AS_SHIPPED, (self.folder / "switches").read_bytes(), strict=True))

    def switch(self, sides: Mapping[str, int]) -> None:
        """Put switches on the given sides; the others stay. Do it while no request runs.

        Effective at once in every process. A request keeps what it started with where a change would split it.
        """
        for name, side in sides.items():
            if name not in AS_SHIPPED:
                raise BadInput(f"no switch is named {name!r}; there are {', '.join(AS_SHIPPED)}")
            if side not in (BASELINE, OPTIMIZED, WRONG):
                raise BadInput(f"{name}: a side is 0 (baseline), 1 (optimized) or 2 (wrong on purpose), not {side!r}")
        with open(self.folder / "switches", "r+b", buffering=0) as file:
            for name, side in sides.items():
                os.pwrite(file.fileno(), bytes([side]), list(AS_SHIPPED).index(name))

    def counts(self) -> Counts:
        """Return everything counted so far, over all processes; see `since` for a trial's part."""
        cells = [0] * CELLS
        for path in self.folder.glob("counts.*"):
            for index, value in enumerate(memoryview(path.read_bytes()).cast("q")):
                cells[index] += value
        return Counts(list(_counters(cells)), list(_times(cells)))

    def processes(self) -> list[dict[str, Any]]:
        """Return what each process said of itself."""
        return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(self.folder.glob("process.*"))]

    def requests(self) -> set[str]:
        """Return the external ids of all requests of which a chunk was to be sent."""
        lines = (line for path in self.folder.glob("requests.*") for line in path.read_text("utf-8").splitlines())
        return {json.loads(line) for line in lines}

    def check(self) -> None:
        """Raise ToggleUnavailable where a process refused the toggles, or none has installed one of them."""
        said = self.processes()
        if refused := [process["refused"] for process in said if process["refused"]]:
            raise ToggleUnavailable(refused[0])
        missing = set(AS_SHIPPED) - {name for process in said for name in process["installed"]}
        if missing:
            raise ToggleUnavailable(
                f"not installed in any process: {', '.join(sorted(missing))}; is omnilab installed in the environment "
                f"of the server (`pip install --no-deps omnilab`), and was the server started with {BOARD}?"
            )


def since(before: Counts, now: Counts) -> Counts:
    """Return what was counted between two readings."""
    counters = [
        late._replace(value=late.value - early.value) for early, late in zip(before.counters, now.counters, strict=True)
    ]
    times = [
        late._replace(number=late.number - early.number, ns=late.ns - early.ns)
        for early, late in zip(before.times, now.times, strict=True)
    ]
    return Counts(counters, times)


def counter_cell(stage: int, thread: str, counter: str) -> int:
    """Return the cell of a counter."""
    return stage * _PER_STAGE + COUNTERS.index((thread, counter))


def time_cell(stage: int, thread: str, name: str) -> int:
    """Return the first of a time's two cells."""
    return stage * _PER_STAGE + len(COUNTERS) + 2 * TIMES.index((thread, name))


def map_file(path: Path, size: int) -> mmap.mmap:
    """Map a file of at least `size` bytes, made of zeros where it is not there."""
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if os.fstat(file).st_size < size:
            os.ftruncate(file, size)
        return mmap.mmap(file, size)
    finally:
        os.close(file)


def _counters(cells: list[int]) -> Iterator[CounterRow]:
    for number, stage in enumerate(STAGES):
        for thread, counter in COUNTERS:
            yield CounterRow(stage, thread, counter, cells[counter_cell(number, thread, counter)])


def _times(cells: list[int]) -> Iterator[LostRow]:
    for number, stage in enumerate(STAGES):
        for thread, name in TIMES:
            first = time_cell(number, thread, name)
            yield LostRow(stage, thread, name, cells[first], cells[first + 1])
