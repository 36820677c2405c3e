"""A JupyterLab of a test's own, and what a reader does in it: open, run all, press, type, look."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from tests.conftest import leftovers

MISSING = importlib.util.find_spec("jupyterlab") is None and not os.environ.get("CI")
TOKEN = "t0k"
LONG_MS = 180_000
ROOT = Path(__file__).resolve().parents[2]
RUN_ALL = """async () => {
  const app = window.jupyterapp;
  await app.restored;
  const panel = app.shell.currentWidget;
  await panel.context.ready;
  await panel.sessionContext.ready;
  if (app.shell.leftCollapsed === false) app.shell.collapseLeft();
  await app.commands.execute('notebook:run-all-cells');
}"""


@contextmanager
def laboratory(folder: Path, notebooks: Mapping[str, Any], environment: Mapping[str, str]) -> Iterator[str]:
    """Serve notebooks, by file name, from below `folder`; yield the URL. Afterwards all that it started has ended."""
    before, home, root = leftovers()[0], folder / "home", folder / "root"
    root.mkdir()
    for name, notebook in notebooks.items():
        (root / name).write_text(json.dumps(notebook), encoding="utf-8")
    settings = home / "LAB_SETTINGS_DIR" / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True)
    (settings / "notification.jupyterlab-settings").write_text('{"fetchNews": "false"}', encoding="utf-8")
    log = folder / "lab.log"
    server, url = _started(home, root, log, environment)
    try:
        wait_for(lambda: _answers(f"{url}/api?token={TOKEN}"), 90, log.read_text)
        yield url
    finally:
        server.terminate()
        server.wait(60)

    def left() -> list[object]:
        return [*(leftovers()[0] - before), *stages()]

    wait_for(lambda: not left(), 60, lambda: f"left: {left()}")  # the browser's processes stay for other tests


def _started(home: Path, root: Path, log: Path, environment: Mapping[str, str]) -> tuple[subprocess.Popen[bytes], str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folders = ("CONFIG_DIR", "DATA_DIR", "RUNTIME_DIR", "LAB_SETTINGS_DIR", "LAB_WORKSPACES_DIR")
    env = {**os.environ, **{f"JUPYTER{'' if name[:3] == 'LAB' else '_'}{name}": str(home / name) for name in folders}}
    env |= {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]), "OMP_NUM_THREADS": "1"}
    options = {
        "port": port, "ip": "127.0.0.1", "IdentityProvider.token": TOKEN, "ServerApp.root_dir": root,
        "ServerApp.port_retries": 0, "LabApp.news_url": "", "LabApp.expose_app_in_browser": True,
        "LabApp.check_for_updates_class": "jupyterlab.NeverCheckForUpdate",
    }  # fmt: skip
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"]
    command += [f"--{name}={value}" for name, value in options.items()]
    with open(log, "w", encoding="utf-8") as said:
        server = subprocess.Popen(command, stdout=said, stderr=said, env={**env, **environment})
    return server, f"http://127.0.0.1:{port}"


def of_cells(*sources: str) -> dict[str, Any]:
    """Return a notebook of code cells."""
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    given = {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": []}
    cells = [{**given, "id": f"cell{number}", "source": source} for number, source in enumerate(sources)]
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def run_all(page: Any, lab: str, name: str) -> None:
    """Open a notebook and run all of its cells; return once they are asked for."""
    page.goto(f"{lab}/lab/tree/{name}?token={TOKEN}&reset")
    page.locator(".jp-NotebookPanel:not(.lm-mod-hidden)").wait_for()
    page.locator(".jp-Notebook-ExecutionIndicator[data-status=idle]").wait_for()
    page.evaluate(RUN_ALL)


def button(where: Any, text: str) -> Any:
    """Return the first button with this text in a page or cell."""
    return where.locator(".jp-OutputArea button", has_text=text).first


def type_numbers(where: Any, values: Mapping[int, int]) -> None:
    """Type into the number fields, in their order, and leave each."""
    for index, value in values.items():
        field = where.locator(".jp-OutputArea input[type=number]").nth(index)
        field.fill(str(value))
        field.press("Tab")


def figures(where: Any) -> list[str]:
    """Return the rows of the shown result's table."""
    table = where.locator(".jp-OutputArea table", has_text="other / base").first
    return table.locator("tbody tr").all_text_contents()


def colours(png: bytes) -> int:
    """Return how many colours a picture has."""
    from PIL import Image

    found = Image.open(io.BytesIO(png)).convert("RGB").getcolors(1 << 24)
    return 0 if found is None else len(found)


def picture(page: Any, cell: Any, path: Path) -> None:
    """Take a picture of all of a cell."""
    before = page.viewport_size
    height = cell.bounding_box()["height"]
    page.set_viewport_size({"width": 1400, "height": min(3200, int(height) + 320)})
    cell.scroll_into_view_if_needed()
    page.wait_for_timeout(800)  # the timeline draws anew
    page.screenshot(path=path)
    page.set_viewport_size(before)


def shots_in(tmp_path: Path) -> Path:
    """Return where screenshots go: $OMNILAB_SCREENSHOTS, else the test's folder."""
    folder = Path(os.environ.get("OMNILAB_SCREENSHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def stages() -> set[int]:
    """Return the stage processes below this one."""
    found = set()
    for child in psutil.Process().children(recursive=True):
        try:
            if "omnilab.engine.child" in child.cmdline():
                found.add(child.pid)
        except psutil.NoSuchProcess:
            continue
    return found


def restart(lab: str) -> None:
    """Restart the only kernel, as its menu does."""
    headers = {"Authorization": f"token {TOKEN}"}
    with urllib.request.urlopen(urllib.request.Request(f"{lab}/api/kernels", headers=headers), timeout=30) as answer:
        (kernel,) = json.load(answer)
    asked = f"{lab}/api/kernels/{kernel['id']}/restart"
    request = urllib.request.Request(asked, headers=headers, method="POST", data=b"")
    with urllib.request.urlopen(request, timeout=120) as answer:
        assert answer.status == 200


def _answers(url: str) -> bool:
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
