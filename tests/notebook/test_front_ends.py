"""Front ends without widgets: what each thing shows there, and what is said where the widgets' packages are missing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from IPython.core.formatters import DisplayFormatter

from omnilab import TOGGLES, Pipeline, Workload, recipes
from omnilab.experiment.paired import paired
from omnilab.notebook import Panel, Timeline

WIDGET = "application/vnd.jupyter.widget-view+json"
PLAIN = """
import sys
for missing in ("ipywidgets", "anywidget"):
    sys.modules[missing] = None  # as where it is not installed
from omnilab import TOGGLES, Pipeline, Workload, recipes
from omnilab.notebook.lessons import counted, size
from IPython.core.formatters import DisplayFormatter
pipe = size().open(recipes.BEFORE_1378)
workload = Workload.random(num_prompts=1, input_len=10, output_len=3)
trial = pipe.run(workload)
speech = pipe.speak("Hello.", max_text_tokens=3, max_frames=3)
for shown in (speech, trial, TOGGLES[0], recipes.BEST):
    data, _ = DisplayFormatter().format(shown)
    assert data["text/plain"] and "<table" in data["text/html"] or "<audio" in data["text/html"], data
pipe.close()
from omnilab.notebook import {name}
"""


@pytest.fixture(scope="module")
def pipe() -> Iterator[Pipeline]:
    """One inline pipeline."""
    with Pipeline.open("tiny", topology="inline", connector="memory", recipe=recipes.BEFORE_1378) as pipeline:
        yield pipeline


def shown(thing: Any) -> dict[str, str]:
    """Return what a notebook gets of it, by MIME type."""
    data, _ = DisplayFormatter().format(thing)
    return data


def test_without_a_widget_front_end_tables_appear(pipe: Pipeline) -> None:
    """Widgets show as tables of text; a front end that has widgets gets no HTML that it might prefer to them."""
    workload = Workload.random(num_prompts=1, input_len=10, output_len=3)
    trial = pipe.run(workload)
    timeline = shown(Timeline.of(("BEFORE_1378", trial)))
    lines = timeline["text/plain"].splitlines()
    assert lines[1].split("  ")[0] == "loop" and lines[1].endswith("BEFORE_1378, ms")
    forward = next(line.split() for line in lines if line.startswith("talker/runner") and " forward " in line)
    ns = sum(row.end_ns - row.start_ns for row in trial.span_rows if (row.stage, row.name) == ("talker", "forward"))
    assert forward[2] == f"{ns / 1e6:,.2f}"
    panel = Panel(pipe)
    text = shown(panel)["text/plain"]
    assert "merge_elementwise" in text and "paired(" in text and "no runs yet" in text
    for data in (timeline, shown(panel)):
        assert WIDGET in data and "text/html" not in data
    panel.close()


def test_what_is_no_widget_shows_as_text_and_as_a_table(pipe: Pipeline) -> None:
    """Speech, trial, toggle, recipe and a paired result: a line or table of text, and HTML without a script."""
    workload = Workload.random(num_prompts=1, input_len=10, output_len=3)
    things = [
        pipe.speak("Hello.", max_text_tokens=3, max_frames=3),
        pipe.run(workload),
        TOGGLES[0],
        recipes.BEST,
        paired(pipe, recipes.BEFORE_1378, recipes.AFTER_1378, workload, pairs=1),
    ]
    for thing in things:
        data = shown(thing)
        assert data["text/plain"].strip() and " at 0x" not in data["text/plain"]
        assert "<script" not in data["text/html"] and ("<table" in data["text/html"] or "<audio" in data["text/html"])


@pytest.mark.parametrize("name", ["Panel", "Timeline"])
def test_without_the_packages_it_says_what_to_install(name: str, tmp_path: Path) -> None:
    """Everything else shows as ever; only what is a widget is refused, in one line that says what to do."""
    root = str(Path(__file__).resolve().parents[2])
    env = {**os.environ, "PYTHONPATH": root, "OMNILAB_NOTEBOOK_MODEL": "tiny", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", PLAIN.replace("{name}", name)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=tmp_path, timeout=180, check=False)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last == f"ImportError: {name} needs anywidget and ipywidgets: pip install 'omnilab[notebook]'"
