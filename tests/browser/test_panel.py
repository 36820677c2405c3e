"""The panel in a real JupyterLab: pressed, run, stopped and looked at; a restart of the kernel leaves nothing.

Screenshots go to $OMNILAB_SHOTS, else to the test's folder.
"""

from __future__ import annotations

import importlib.util
import io
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import leftovers

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        importlib.util.find_spec("jupyterlab") is None and not os.environ.get("CI"),
        reason="no jupyterlab: pip install 'omnilab[notebook]'",
    ),
]
LONG_MS = 180_000
TOKEN = "t0k"
CELLS = ("from omnilab.notebook import Panel", "panel = Panel('tiny')\npanel")
ROOT = Path(__file__).resolve().parents[2]
RUN_ALL = """async () => {
  const app = window.jupyterapp;
  await app.restored;
  const panel = app.shell.currentWidget;
  await panel.context.ready;
  await panel.sessionContext.ready;
  await app.commands.execute('application:toggle-left-area');
  await app.commands.execute('notebook:run-all-cells');
}"""


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[str]:
    """A JupyterLab server with one notebook; when it ends, so has everything that it started."""
    before = leftovers()[0]
    home = tmp_path / "home"
    (tmp_path / "root").mkdir()
    settings = home / "LAB_SETTINGS_DIR" / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True)
    (settings / "notification.jupyterlab-settings").write_text('{"fetchNews": "false"}', encoding="utf-8")
    (tmp_path / "root" / "panel.ipynb").write_text(json.dumps(notebook()), encoding="utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folders = ("CONFIG_DIR", "DATA_DIR", "RUNTIME_DIR", "LAB_SETTINGS_DIR", "LAB_WORKSPACES_DIR")
    env = {**os.environ, **{f"JUPYTER{'' if name[:3] == 'LAB' else '_'}{name}": str(home / name) for name in folders}}
    env |= {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]), "OMP_NUM_THREADS": "1"}
    options = {
        "port": port, "ip": "127.0.0.1", "IdentityProvider.token": TOKEN, "ServerApp.root_dir": tmp_path / "root",
        "ServerApp.port_retries": 0, "LabApp.news_url": "", "LabApp.expose_app_in_browser": True,
        "LabApp.check_for_updates_class": "jupyterlab.NeverCheckForUpdate",
    }  # fmt: skip
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"]
    with open(tmp_path / "lab.log", "w", encoding="utf-8") as log:
        server = subprocess.Popen(
            [*command, *(f"--{name}={value}" for name, value in options.items())], stdout=log, stderr=log, env=env
        )
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for(lambda: answers(f"{url}/api?token={TOKEN}"), 90, (tmp_path / "lab.log").read_text)
        yield url
    finally:
        server.terminate()
        server.wait(60)
    left = lambda: [*(leftovers()[0] - before), *stages()]  # noqa: E731
    wait_for(lambda: not left(), 60, lambda: f"left: {left()}")  # the browser's processes stay for other tests


@pytest.fixture
def shots(tmp_path: Path) -> Path:
    """Where screenshots go."""
    folder = Path(os.environ.get("OMNILAB_SHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def test_a_reader_lives_in_the_panel(
    lab: str, open_page: Callable[..., Any], shots: Path, record_property: Any
) -> None:
    """Open, run all, press, type, run, look, stop, run again, restart."""
    page = open_page(viewport={"width": 1400, "height": 1000})
    page.set_default_timeout(LONG_MS)
    opened(page, lab)
    assert len(stages()) >= 3
    press_and_type(page)
    for name, seconds in first_run(page).items():
        record_property(name, seconds)
        print(f"from click to {name}: {seconds:.2f} s")
    first = figures(page)
    assert len(first) == 9
    whole(page, shots / "panel.png")
    assert colours(page.locator(".jp-OutputArea canvas").first.screenshot()) > 8, "the timeline is blank"
    assert colours(page.locator(".jp-OutputArea svg[role=img]").first.screenshot()) > 2, "the waveform is blank"
    copied(page)
    stop_and_go_on(page)
    assert figures(page) != first, "the numbers did not change"
    before = stages()
    restart(lab)
    wait_for(lambda: not stages() & before, 60, lambda: f"left: {stages()}")


def opened(page: Any, lab: str) -> None:
    """Open the notebook, run all of it, and wait until the panel is ready."""
    page.goto(f"{lab}/lab/tree/panel.ipynb?token={TOKEN}&reset")
    page.locator(".jp-NotebookPanel:not(.lm-mod-hidden)").wait_for()
    page.locator(".jp-Notebook-ExecutionIndicator[data-status=idle]").wait_for()
    page.evaluate(RUN_ALL)
    page.get_by_text("ready", exact=True).wait_for()


def press_and_type(page: Any) -> None:
    """Press a toggle, type a wrong value, then right ones."""
    toggle, run = button(page, "shallow_merge"), button(page, "Run")
    assert toggle.get_attribute("title").startswith("merge: a merge costs the number of keys")
    toggle.click()
    page.locator("button.mod-active", has_text="shallow_merge").wait_for()
    type_numbers(page, {0: 99_999})
    page.locator("span", has_text="must lie between 1 and 4,000, not 99,999").wait_for()
    assert run.is_disabled()
    type_numbers(page, {0: 40, 1: 6, 4: 2})  # input tokens, output tokens, pairs
    wait_for(run.is_enabled, 10, lambda: "Run stays disabled")


def first_run(page: Any) -> dict[str, float]:
    """Run; return seconds from the click to the first update and to the first token shown."""
    clicked = time.monotonic()
    button(page, "Run").click()
    token = page.get_by_text("first token after").first
    page.get_by_text("waiting for the first token").or_(token).first.wait_for()
    update_s = time.monotonic() - clicked
    token.wait_for()
    token_s = time.monotonic() - clicked
    page.get_by_text(re.compile("^#1 done in")).wait_for()
    assert page.locator(".jp-OutputArea audio").count() == 3  # live, base, other
    return {"the first update": update_s, "the first token shown": token_s}


def copied(page: Any) -> None:
    """What is copied is what was run."""
    button(page, "Copy").click()
    page.locator("button", has_text=re.compile("Copied|Selected")).wait_for()
    code, command = page.locator(".jp-OutputArea pre").all_text_contents()[-2:]
    assert 'recipe_with("shallow_merge", base=recipes.BEFORE_1378)' in code
    assert command.startswith("python -m omnilab.ablate --model tiny --base BEFORE_1378 --toggles shallow_merge")


def stop_and_go_on(page: Any) -> None:
    """Stop in the middle of many pairs; then run one more."""
    button(page, "idle_skip").click()
    type_numbers(page, {4: 20})
    button(page, "Run").click()
    page.get_by_text(re.compile("^trial [2-9] of 40, .* left$")).wait_for()
    button(page, "Stop").click()
    page.get_by_text(re.compile("^stopped after [0-9]+ of 20 pairs; #2 done in")).wait_for()
    type_numbers(page, {4: 1})
    button(page, "Listen").click()
    button(page, "Run").click()
    page.get_by_text(re.compile("^#3 done in")).wait_for()
    heard = page.locator("[data-seconds]").get_attribute("data-seconds")
    assert float(heard) == pytest.approx(18 * 1920 / 24_000, abs=0.1), "live audio was not played"


def button(page: Any, text: str) -> Any:
    return page.locator(".jp-OutputArea button", has_text=text).first


def type_numbers(page: Any, values: dict[int, int]) -> None:
    """Type into the number fields, in their order, and leave each."""
    for index, value in values.items():
        field = page.locator(".jp-OutputArea input[type=number]").nth(index)
        field.fill(str(value))
        field.press("Tab")


def notebook() -> dict[str, Any]:
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    cells = [
        {
            "cell_type": "code",
            "id": f"cell{i}",
            "execution_count": None,
            "metadata": {},
            "outputs": [],
            "source": source,
        }
        for i, source in enumerate(CELLS)
    ]
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def figures(page: Any) -> list[str]:
    """Return the rows of the shown result's table."""
    table = page.locator(".jp-OutputArea table", has_text="other / base").first
    return table.locator("tbody tr").all_text_contents()


def colours(png: bytes) -> int:
    from PIL import Image

    found = Image.open(io.BytesIO(png)).convert("RGB").getcolors(1 << 24)
    return 0 if found is None else len(found)


def whole(page: Any, path: Path) -> None:
    """Take a picture of all of the panel."""
    height = page.locator(".jp-OutputArea").last.bounding_box()["height"]
    before = page.viewport_size
    page.set_viewport_size({"width": 1400, "height": min(3200, int(height) + 320)})
    page.wait_for_timeout(800)  # the timeline draws anew
    page.screenshot(path=path)
    page.set_viewport_size(before)


def stages() -> set[int]:
    """Return the stage processes below this one."""
    found = set()
    for child in psutil.Process().children(recursive=True):
        try:
            if any("omnilab.engine" in word for word in child.cmdline()):
                found.add(child.pid)
        except psutil.NoSuchProcess:
            continue
    return found


def restart(lab: str) -> None:
    """Restart the notebook's kernel, as its menu does."""
    headers = {"Authorization": f"token {TOKEN}"}
    with urllib.request.urlopen(urllib.request.Request(f"{lab}/api/kernels", headers=headers), timeout=30) as answer:
        kernel = json.load(answer)[0]["id"]
    asked = urllib.request.Request(f"{lab}/api/kernels/{kernel}/restart", headers=headers, method="POST", data=b"")
    with urllib.request.urlopen(asked, timeout=120) as answer:
        assert answer.status == 200


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2):
            return True
    except OSError:
        return False


def wait_for(true: Callable[[], object], within_s: float, said: Callable[[], str]) -> None:
    """Wait until something is so; say what is known when it does not come."""
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline, said()
        time.sleep(0.1)
