"""The tour in a real JupyterLab, to its panel; screenshots as in test_panel. A killed kernel: notebook/test_kernel."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from omnilab.notebook.lessons import VARIABLE
from tests.browser import jupyter
from tests.conftest import leftovers

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(jupyter.MISSING, reason="no jupyterlab: pip install 'omnilab[notebook]'"),
]
TOUR = jupyter.ROOT / "notebooks" / "00_tour.ipynb"
OPEN = "from omnilab.notebook import Panel\nsecond = Panel('tiny')\nsecond"


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[str]:
    """A JupyterLab with the tour, on tiny, and a cell more: a second panel."""
    tour, second = json.loads(TOUR.read_text(encoding="utf-8")), jupyter.of_cells(OPEN)
    notebooks = {"tour.ipynb": {**tour, "cells": [*tour["cells"], *second["cells"]]}}
    with jupyter.laboratory(tmp_path, notebooks, {VARIABLE: "tiny"}) as url:
        yield url


def test_the_tour_to_its_panel(lab: str, open_page: Callable[..., Any], tmp_path: Path) -> None:
    """Run all; press, run, look, stop and run again beside a second panel; restart."""
    orphans = leftovers()[0]
    page = open_page(viewport={"width": 1400, "height": 1000})
    page.set_default_timeout(jupyter.LONG_MS)
    jupyter.run_all(page, lab, "tour.ipynb")
    panel, second = (page.locator(".jp-CodeCell").nth(number) for number in (-2, -1))
    for one in (panel, second):
        one.get_by_text("ready", exact=True).wait_for()
    assert not page.locator(".jp-OutputArea [data-mime-type*=stderr]").count(), "a cell failed or warned"
    first = a_run(panel)
    jupyter.picture(page, panel, jupyter.shots_in(tmp_path) / "tour-panel.png")
    drawn(page)
    beside_a_second(panel, second)
    assert jupyter.figures(panel) != first, "the numbers did not change"
    before = jupyter.stages()
    assert len(before) >= 6, "two pipelines, three stages each"
    jupyter.restart(lab)
    ended(before, orphans)


def a_run(panel: Any) -> list[str]:
    """Press a toggle and run; return the figures."""
    jupyter.button(panel, "shallow_merge").click()
    jupyter.type_numbers(panel, {0: 40, 1: 6, 4: 2})  # input tokens, output tokens, pairs
    assert not panel.locator("table", has_text="other / base").count(), "figures before there was a run"
    jupyter.button(panel, "Run").click()
    panel.get_by_text(re.compile("^#1 done in")).wait_for()
    found = jupyter.figures(panel)
    assert len(found) == 9
    command = panel.locator(".jp-OutputArea pre").all_text_contents()[-1]
    assert command.startswith("python -m omnilab.ablate --model tiny --base BEFORE_1378 --toggles shallow_merge")
    return found


def drawn(page: Any) -> None:
    """No figure of the tour or of its panel is blank."""
    canvases = page.locator(".jp-OutputArea canvas")
    assert canvases.count() == 4, "two trials in the tour, two in the panel"
    for canvas in canvases.all():
        canvas.scroll_into_view_if_needed()
        assert jupyter.colours(canvas.screenshot()) > 8, "a timeline is blank"
    waveforms = page.locator(".jp-OutputArea svg[role=img]", has_text="waveform")
    assert waveforms.count() == 2, "the tour's first words, the panel's live request"
    for waveform in waveforms.all():
        waveform.scroll_into_view_if_needed()
        assert jupyter.colours(waveform.screenshot()) > 2, "a waveform is blank"


def beside_a_second(panel: Any, second: Any) -> None:
    """Stop a long run while the second panel waits for its end; then both have their results, and one more run."""
    shown = jupyter.figures(panel)
    jupyter.button(panel, "idle_skip").click()
    jupyter.type_numbers(panel, {1: 30, 4: 20})  # longer than the second panel's typing takes on a busy machine
    jupyter.button(panel, "Run").click()
    panel.get_by_text(re.compile("^trial [0-9]+ of 40, .* left$")).wait_for()
    jupyter.type_numbers(second, {0: 20, 1: 4, 4: 1})
    jupyter.button(second, "Run").click()
    second.get_by_text("waiting: another panel of this kernel is measuring").wait_for()
    panel.get_by_text(re.compile("^trial ([3-9]|[1-3][0-9]) of 40, .* left$")).wait_for()
    assert jupyter.figures(panel) == shown, "the first panel's result changed before its run was over"
    jupyter.button(panel, "Stop").click()
    panel.get_by_text(re.compile("^stopped after [0-9]+ of 20 pairs; #2 done in")).wait_for()
    second.get_by_text(re.compile("^#1 done in")).wait_for()
    assert not panel.locator("td", has_text="#3").count()
    jupyter.type_numbers(panel, {1: 6, 4: 1})
    jupyter.button(panel, "Run").click()
    panel.get_by_text(re.compile("^#3 done in")).wait_for()


def ended(stages: set[int], orphans: set[str]) -> None:
    """Wait until these stages have ended and nothing of theirs is in shared memory."""
    left = lambda: [*(jupyter.stages() & stages), *(leftovers()[0] - orphans)]  # noqa: E731
    jupyter.wait_for(lambda: not left(), 60, lambda: f"left: {left()}")
