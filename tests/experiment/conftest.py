"""A scripted bench: outputs from the request's seed, times from a formula, so that planted effects can be found."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from omnilab.experiment.experiment import Experiment
from omnilab.experiment.reports.report import Report
from omnilab.record import CounterRow, SpanRow
from omnilab.toggles import THE_FOUR
from omnilab.trial import RequestRecord, Trial
from omnilab.workload import Workload

MS = 1_000_000


@dataclass
class Script:
    """What the bench does. `factors` are on wall time; `spoil` may change a record; `explode` may raise."""

    factors: Mapping[str, float] = field(default_factory=dict)
    together: Mapping[frozenset[str], float] = field(default_factory=dict)  # on wall time, where all of a set are on
    again: float = 1.0  # on wall time of every second trial of the baseline
    silent: frozenset[str] = frozenset()  # toggles that change no counter
    noise: float = 0.01
    block_noise: float = 0.05
    spoil: Callable[[set[str], RequestRecord], None] = lambda on, record: None
    explode: Callable[[set[str], int], None] = lambda on, trials: None
    wrong_label: bool = False
    opened: int = 0
    trials: int = 0
    measured: list[tuple[str, ...]] = field(default_factory=list)

    @contextmanager
    def open(self, recipe: Any) -> Iterator[Scripted]:
        self.opened += 1
        yield Scripted(self, recipe, np.random.default_rng(self.opened))


class Scripted:
    def __init__(self, script: Script, recipe: Any, random: np.random.Generator) -> None:
        self.script, self.recipe, self.random = script, recipe, random
        self.baselines = 0
        self.block_factor = float(np.exp(random.normal(0, script.block_noise)))

    def apply(self, recipe: Any) -> None:
        self.recipe = recipe

    def run(self, workload: Workload) -> Trial:
        on = {toggle.name for toggle in THE_FOUR if getattr(self.recipe, toggle.seam) is toggle.optimized}
        self.script.trials += 1
        self.script.measured.append(tuple(sorted(on)))
        self.script.explode(on, self.script.trials)
        factor = self.block_factor * float(np.prod([self.script.factors.get(name, 1.0) for name in on]))
        factor *= float(np.prod([times for names, times in self.script.together.items() if names <= on]))
        if not on and workload.requests[0].sampling.max_text_tokens > 4:  # not the warm-up
            self.baselines += 1
            factor *= self.script.again if self.baselines % 2 == 0 else 1.0
        records = [self.answer(index, item.sampling) for index, item in enumerate(workload.requests)]
        wall = 0.0
        for record in records:
            took = 2.0 * factor * float(np.exp(self.random.normal(0, self.script.noise)))
            record.start_s, record.text_times_s, record.text_token_counts = (
                wall,
                [wall + took / 4],
                [record.output_tokens],
            )
            record.audio_times_s, record.end_s = [wall + took / 2, wall + took], wall + took
            wall += took
            self.script.spoil(on, record)
        return Trial(records, *self.rows(on, factor), wall_s=wall, cpu_s={"talker": wall}, occupants=self.occupants())

    def occupants(self) -> dict[str, dict[str, str]]:
        seams = self.recipe.occupants()
        return {"talker": {**seams, "merge": "something_else 123"} if self.script.wrong_label else seams}

    def answer(self, index: int, sampling: Any) -> RequestRecord:
        random = np.random.default_rng(sampling.seed)
        frames = sampling.frame_limit
        return RequestRecord(
            index=index,
            request_id=f"r{index}",
            start_s=0.0,
            input_tokens=10,
            output_tokens=sampling.max_text_tokens,
            token_ids=random.integers(0, 99, sampling.max_text_tokens).tolist(),
            frames=frames,
            codes=random.integers(0, 2048, (frames, 16)),
            audio=random.normal(0, 0.1, frames * 40).astype(np.float32),
            audio_s=frames * 0.08,
        )

    def rows(self, on: set[str], factor: float) -> tuple[list[SpanRow], list[CounterRow]]:
        visited = 10 if "shallow_merge" in on else 1000
        merge_ms = (5 if "shallow_merge" in on else 36) * factor
        counters = [
            CounterRow("talker", "engine", "steps", 40),
            CounterRow("code2wav", "engine", "idle_steps", int(self.random.integers(100, 200))),  # the clock's
            *(CounterRow("talker", "runner", f"did_{name}", 7) for name in sorted(on - self.script.silent)),
        ]
        if "shallow_merge" not in self.script.silent:
            counters.append(CounterRow("talker", "runner", "elements_visited", visited))
        return [SpanRow("talker", "runner", "merge", "r0", -1, 0, round(merge_ms * MS))], counters


@pytest.fixture(autouse=True)
def undrawn(request, monkeypatch):
    """Leave figures out: drawing takes a second a run. Tests that look at them are marked `drawn`."""
    if request.node.get_closest_marker("drawn") is None:
        monkeypatch.setattr(Report, "figures", lambda self: {})


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """Where a module keeps a run that it makes once; its tests change copies of it."""
    return tmp_path_factory.mktemp("kept") / "run"


@pytest.fixture
def script() -> type[Script]:
    """Make a Script."""
    return Script


@pytest.fixture
def small() -> Callable[..., Experiment]:
    """Make a small experiment."""

    def make(**changes: Any) -> Experiment:
        workload = Workload.random(num_prompts=2, input_len=8, output_len=6, frames=30)
        given: dict[str, Any] = {"name": "small", "model": "none", "workload": workload, "device": "cpu"}
        return Experiment(**{**given, **changes})

    return make
