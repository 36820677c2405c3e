"""The tour in a real JupyterLab, and its panel: pressed, typed into, run, looked at, copied from, stopped, listened to.

Screenshots go to $OMNILAB_SCREENSHOTS, else to the test's folder. What a killed kernel leaves: notebook/test_kernel.
"""

from __future__ import annotations

import json
import re
import time
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


def test_the_tour_and_a_reader_who_lives_in_its_panel(
    lab: str, open_page: Callable[..., Any], tmp_path: Path, record_property: Any
) -> None:
    """Run all; press, type, run, look, copy; stop and run again beside a second panel; restart."""
    orphans = leftovers()[0]
    page = open_page(viewport={"width": 1400, "height": 1000})
    page.set_default_timeout(jupyter.LONG_MS)
    jupyter.run_all(page, lab, "tour.ipynb")
    panel, second = (page.locator(".jp-CodeCell").nth(number) for number in (-2, -1))
    for one in (panel, second):
        one.get_by_text("ready", exact=True).wait_for()
    assert not page.locator(".jp-OutputArea [data-mime-type*=stderr]").count(), "a cell failed or warned"
    press_and_type(panel)
    for name, seconds in first_run(panel).items():
        record_property(name, seconds)
        print(f"from click to {name}: {seconds:.2f} s")
    first = jupyter.figures(panel)
    assert len(first) == 9
    jupyter.picture(page, panel, jupyter.shots_in(tmp_path) / "tour-panel.png")
    drawn(page)
    copied(panel)
    beside_a_second(panel, second)
    assert jupyter.figures(panel) != first, "the numbers did not change"
    before = jupyter.stages()
    assert len(before) >= 6, "two pipelines, three stages each"
    jupyter.restart(lab)
    ended(before, orphans)


def press_and_type(panel: Any) -> None:
    """Press a toggle, type a wrong value, then right ones."""
    toggle, run = jupyter.button(panel, "shallow_merge"), jupyter.button(panel, "Run")
    assert toggle.get_attribute("title").startswith("merge: a merge costs the number of keys")
    toggle.click()
    panel.locator("button.mod-active", has_text="shallow_merge").wait_for()
    jupyter.type_numbers(panel, {0: 99_999})
    panel.locator("span", has_text="must lie between 1 and 4,000, not 99,999").wait_for()
    jupyter.wait_for(run.is_disabled, 10, lambda: "Run stays enabled")  # its own message comes after the text's
    jupyter.type_numbers(panel, {0: 40, 1: 6, 4: 2})  # input tokens, output tokens, pairs
    jupyter.wait_for(run.is_enabled, 10, lambda: "Run stays disabled")


def first_run(panel: Any) -> dict[str, float]:
    """Run; return seconds from the click to the first update and to the first token shown."""
    assert not panel.locator("table", has_text="other / base").count(), "figures before there was a run"
    clicked = time.monotonic()
    jupyter.button(panel, "Run").click()
    token = panel.get_by_text("first token after").first
    panel.get_by_text("waiting for the first token").or_(token).first.wait_for()
    update_s = time.monotonic() - clicked
    token.wait_for()
    token_s = time.monotonic() - clicked
    panel.get_by_text(re.compile("^#1 done in")).wait_for()
    players = panel.locator(".jp-OutputArea audio")  # live, base, other
    jupyter.wait_for(lambda: players.count() == 3, 10, lambda: f"{players.count()} players")
    return {"the first update": update_s, "the first token shown": token_s}


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


def copied(panel: Any) -> None:
    """What is copied is what was run."""
    jupyter.button(panel, "Copy").click()
    panel.locator("button", has_text=re.compile("Copied|Selected")).wait_for()
    code, command = panel.locator(".jp-OutputArea pre").all_text_contents()[-2:]
    assert 'recipe_with("shallow_merge", base=recipes.BEFORE_1378)' in code
    assert command.startswith("python -m omnilab.ablate --model tiny --base BEFORE_1378 --toggles shallow_merge")


def beside_a_second(panel: Any, second: Any) -> None:
    """Stop a long run while the second panel waits for its end; then both have their results, and one is heard."""
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
    jupyter.button(panel, "Listen").click()
    jupyter.button(panel, "Run").click()
    panel.get_by_text(re.compile("^#3 done in")).wait_for()
    heard = panel.locator("[data-seconds]").get_attribute("data-seconds")
    assert float(heard) == pytest.approx(18 * 1920 / 24_000, abs=0.1), "live audio was not played"


def ended(stages: set[int], orphans: set[str]) -> None:
    """Wait until these stages have ended and nothing of theirs is in shared memory."""
    left = lambda: [*(jupyter.stages() & stages), *(leftovers()[0] - orphans)]  # noqa: E731
    jupyter.wait_for(lambda: not left(), 60, lambda: f"left: {left()}")
