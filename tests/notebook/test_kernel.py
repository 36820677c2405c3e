"""In a real kernel: an interrupt, a cell run again and a kill leave no stage process and nothing in shared memory.

A restart: browser/test_tour.
"""

from __future__ import annotations

import ast
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.conftest import left_since, leftovers

pytestmark = pytest.mark.timeout(400)
LONG_S = 150
OPEN = "from omnilab.notebook import Panel\npanel = Panel('tiny')\npanel"
THEN_NAP = f"{OPEN}\nimport time; time.sleep(nap)"
PIDS = """
import time, psutil
until = time.monotonic() + 120
while panel._session.ready() is None:
    assert time.monotonic() < until, panel.layout.news.value
    time.sleep(0.05)
print([child.pid for child in psutil.Process().children(recursive=True)])
"""


@pytest.fixture
def kernel() -> Iterator[object]:
    """A kernel of its own with the tests' environment."""
    from jupyter_client.manager import KernelManager

    before = leftovers()
    manager = KernelManager(kernel_name="python3")
    root = str(Path(__file__).resolve().parents[2])
    paths = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    manager.start_kernel(env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"})
    yield manager
    manager.shutdown_kernel(now=True)
    gone(lambda: left_since(before))


def said(manager: object, code: str) -> str:
    """Run a cell; return what it wrote. A cell that fails fails the test."""
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=LONG_S)
    written: list[str] = []

    def take(message: dict) -> None:
        content = message["content"]
        assert message["msg_type"] != "error", "\n".join(content.get("traceback", []))
        written.append(content.get("text", "") if message["msg_type"] == "stream" else "")

    client.execute_interactive(code, timeout=LONG_S, output_hook=take)
    client.stop_channels()
    return "".join(written)


def stages(manager: object) -> set[int]:
    """Return the processes of the panel's stages, once it is ready."""
    found = set(ast.literal_eval(said(manager, PIDS).strip().splitlines()[-1]))
    assert len(found) >= 3
    return found


def gone(left: Callable[[], object], within_s: float = 40) -> None:
    """Wait until nothing is left."""
    deadline = time.monotonic() + within_s
    while remaining := left():
        assert time.monotonic() < deadline, f"left: {remaining}"
        time.sleep(0.1)


def alive(pids: set[int]) -> list[int]:
    return [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]


def test_what_befalls_a_kernel_leaves_nothing(kernel) -> None:
    """An interrupt leaves the stages alone, a cell run again ends those of its earlier panel, a kill ends all."""
    first = interrupted_while_it_opens(kernel)
    second = run_again_beside_another(kernel, first)
    before = leftovers()
    kernel.signal_kernel(signal.SIGKILL)  # with all of its process group, as Jupyter does it
    gone(lambda: alive(second))
    gone(lambda: left_since(before))


def interrupted_while_it_opens(kernel) -> set[int]:
    """Before the stages can say that interrupts are not for them; return them, at work."""
    client = kernel.client()
    client.start_channels()
    client.wait_for_ready(timeout=LONG_S)
    client.execute(f"nap = {LONG_S}")
    client.execute(THEN_NAP)
    starting = lambda: len(psutil.Process(kernel.provisioner.pid).children()) < 3  # noqa: E731
    gone(starting)
    kernel.interrupt_kernel()
    client.stop_channels()
    first = stages(kernel)
    assert said(kernel, "print(panel._session.pipe().speak('Hello.', max_text_tokens=2).finish_reason)").strip()
    return first


def run_again_beside_another(kernel, first: set[int]) -> set[int]:
    """The second run's panel takes the first's place; a panel of another cell is left alone. Return what is there."""
    said(kernel, OPEN.replace("panel", "second"))
    said(kernel, "nap = 0")
    said(kernel, THEN_NAP)
    gone(lambda: alive(first))
    both = stages(kernel)
    assert said(kernel, "print(second._session.pipe().speak('Still there?', max_text_tokens=2).finish_reason)").strip()
    return both
