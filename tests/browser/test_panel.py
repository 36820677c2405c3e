"""The panel in a real JupyterLab: pressed, typed into, run, looked at, copied from; a restart leaves nothing.

Screenshots go to $OMNILAB_SCREENSHOTS, else to the test's folder.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser import jupyter

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(jupyter.MISSING, reason="no jupyterlab: pip install 'omnilab[notebook]'"),
]
CELLS = ("from omnilab.notebook import Panel", "panel = Panel('tiny')\npanel")


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[str]:
    """A JupyterLab server with one notebook; when it ends, so has everything that it started."""
    with jupyter.laboratory(tmp_path, {"panel.ipynb": jupyter.of_cells(*CELLS)}, {}) as url:
        yield url


def test_a_reader_lives_in_the_panel(
    lab: str, open_page: Callable[..., Any], tmp_path: Path, record_property: Any
) -> None:
    """Open, run all, press, type, run, look, stop, run again, restart."""
    page = open_page(viewport={"width": 1400, "height": 1000})
    page.set_default_timeout(jupyter.LONG_MS)
    jupyter.run_all(page, lab, "panel.ipynb")
    page.get_by_text("ready", exact=True).wait_for()
    assert len(jupyter.stages()) >= 3
    press_and_type(page)
    for name, seconds in first_run(page).items():
        record_property(name, seconds)
        print(f"from click to {name}: {seconds:.2f} s")
    first = jupyter.figures(page)
    assert len(first) == 9
    jupyter.picture(page, page.locator(".jp-OutputArea").last, jupyter.shots_in(tmp_path) / "panel.png")
    looked_at(page)
    copied(page)
    stop_and_go_on(page)
    assert jupyter.figures(page) != first, "the numbers did not change"
    before = jupyter.stages()
    jupyter.restart(lab)
    jupyter.wait_for(lambda: not jupyter.stages() & before, 60, lambda: f"left: {jupyter.stages()}")


def press_and_type(page: Any) -> None:
    """Press a toggle, type a wrong value, then right ones."""
    toggle, run = jupyter.button(page, "shallow_merge"), jupyter.button(page, "Run")
    assert toggle.get_attribute("title").startswith("merge: a merge costs the number of keys")
    toggle.click()
    page.locator("button.mod-active", has_text="shallow_merge").wait_for()
    jupyter.type_numbers(page, {0: 99_999})
    page.locator("span", has_text="must lie between 1 and 4,000, not 99,999").wait_for()
    jupyter.wait_for(run.is_disabled, 10, lambda: "Run stays enabled")  # its own message comes after the text's
    jupyter.type_numbers(page, {0: 40, 1: 6, 4: 2})  # input tokens, output tokens, pairs
    jupyter.wait_for(run.is_enabled, 10, lambda: "Run stays disabled")


def first_run(page: Any) -> dict[str, float]:
    """Run; return seconds from the click to the first update and to the first token shown."""
    clicked = time.monotonic()
    jupyter.button(page, "Run").click()
    token = page.get_by_text("first token after").first
    page.get_by_text("waiting for the first token").or_(token).first.wait_for()
    update_s = time.monotonic() - clicked
    token.wait_for()
    token_s = time.monotonic() - clicked
    page.get_by_text(re.compile("^#1 done in")).wait_for()
    players = page.locator(".jp-OutputArea audio")  # live, base, other
    jupyter.wait_for(lambda: players.count() == 3, 10, lambda: f"{players.count()} players")
    return {"the first update": update_s, "the first token shown": token_s}


def looked_at(page: Any) -> None:
    """Figures have something in them."""
    timeline, waveform = (page.locator(f".jp-OutputArea {kind}").first for kind in ("canvas", "svg[role=img]"))
    assert jupyter.colours(timeline.screenshot()) > 8, "the timeline is blank"
    assert jupyter.colours(waveform.screenshot()) > 2, "the waveform is blank"


def copied(page: Any) -> None:
    """What is copied is what was run."""
    jupyter.button(page, "Copy").click()
    page.locator("button", has_text=re.compile("Copied|Selected")).wait_for()
    code, command = page.locator(".jp-OutputArea pre").all_text_contents()[-2:]
    assert 'recipe_with("shallow_merge", base=recipes.BEFORE_1378)' in code
    assert command.startswith("python -m omnilab.ablate --model tiny --base BEFORE_1378 --toggles shallow_merge")


def stop_and_go_on(page: Any) -> None:
    """Stop in the middle of many pairs; then run one more."""
    jupyter.button(page, "idle_skip").click()
    jupyter.type_numbers(page, {4: 20})
    jupyter.button(page, "Run").click()
    page.get_by_text(re.compile("^trial [2-9] of 40, .* left$")).wait_for()
    jupyter.button(page, "Stop").click()
    page.get_by_text(re.compile("^stopped after [0-9]+ of 20 pairs; #2 done in")).wait_for()
    jupyter.type_numbers(page, {4: 1})
    jupyter.button(page, "Listen").click()
    jupyter.button(page, "Run").click()
    page.get_by_text(re.compile("^#3 done in")).wait_for()
    heard = page.locator("[data-seconds]").get_attribute("data-seconds")
    assert float(heard) == pytest.approx(18 * 1920 / 24_000, abs=0.1), "live audio was not played"
