"""A run folder of five variants in five blocks, with known spans on every loop and a sound a variant."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path

import pytest

from omnilab.experiment.experiment import Experiment
from omnilab.experiment.reports.report import Report
from omnilab.record import SpanRow
from omnilab.toggles import THE_FOUR
from omnilab.workload import Workload
from tests.experiment.conftest import MS, Script

BASELINE, FASTEST = "BEFORE_1378", "prefill_only_hidden_states"
VARIANTS = [BASELINE, f"{BASELINE} (A/A)", *(toggle.name for toggle in THE_FOUR)]
# stage, loop, name, chunk, start and end in ms, bytes: one request whose chunk goes over both edges
KNOWN = [
    ("thinker", "runner", "forward", -1, 0, 40, -1),
    ("thinker", "send", "put", 0, 40, 44, 8_192),
    ("talker", "receive", "get", 0, 48, 52, 8_192),
    ("talker", "runner", "forward", -1, 60, 150, -1),
    ("talker", "send", "put", 0, 150, 154, 1_024),
    ("code2wav", "receive", "get", 0, 156, 160, 1_024),
    ("code2wav", "runner", "vocode", -1, 160, 200, -1),
]


def spans(stretch: int = 1) -> list[SpanRow]:
    """Return the known spans, with every time `stretch` times as long."""
    return [
        SpanRow(stage, loop, name, "r0", chunk, MS * start * stretch, MS * end * stretch, size)
        for stage, loop, name, chunk, start, end, size in KNOWN
    ]


def make_run(folder: Path, blocks: int = 5) -> Path:
    """Measure a scripted run into a new folder. The baseline's spans take twice the time of all others."""
    script = Script(factors={FASTEST: 0.5})

    @contextmanager
    def opened(recipe):
        with script.open(recipe) as bench:
            rows = bench.rows

            def with_spans(on, factor):
                merge, counters = rows(on, factor)
                return [*spans(1 if on else 2), *(row._replace(start_ns=0) for row in merge)], counters

            bench.rows = with_spans
            yield bench

    workload = Workload.random(num_prompts=2, input_len=8, output_len=6, frames=30)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Report, "figures", lambda self: {})  # a second a run
        experiment = Experiment(name="planted", model="none", workload=workload, device="cpu", blocks=blocks)
        experiment.run(folder, open_pipeline=opened)
    return folder
