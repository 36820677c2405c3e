"""In a real kernel: interrupts, a cell run again, a restart and a kill leave no stage process and no shared memory."""

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
PIDS = (
    "import time, psutil\nwhile panel._session.ready() is None: time.sleep(0.05)\n"
    "print([child.pid for child in psutil.Process().children(recursive=True)])"
)


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


def test_a_cell_run_again_leaks_nothing_and_a_restart_ends_all(kernel) -> None:
    """The second run's panel takes the first's place; a panel of another cell is left alone."""
    said(kernel, OPEN)
    first = stages(kernel)
    said(kernel, OPEN.replace("panel", "second"))
    said(kernel, OPEN)
    gone(lambda: alive(first))
    both = stages(kernel)
    assert said(kernel, "print(second._session.pipe().speak('Still there?', max_text_tokens=2).finish_reason)").strip()
    kernel.restart_kernel(now=False)
    gone(lambda: alive(both))


def test_an_interrupt_leaves_the_stages_alone(kernel) -> None:
    """Also while they start, before they can say that interrupts are not for them."""
    client = kernel.client()
    client.start_channels()
    client.wait_for_ready(timeout=LONG_S)
    client.execute(f"{OPEN}\nimport time; time.sleep({LONG_S})")
    starting = lambda: len(psutil.Process(kernel.provisioner.pid).children()) < 3  # noqa: E731
    gone(starting)
    kernel.interrupt_kernel()
    client.stop_channels()
    stages(kernel)
    assert said(kernel, "print(panel._session.pipe().speak('Hello.', max_text_tokens=2).finish_reason)").strip()


def test_a_killed_kernel_leaves_nothing(kernel) -> None:
    """With all of its process group, as Jupyter does it: stages end by themselves and remove what it cannot."""
    before = leftovers()
    said(kernel, OPEN)
    pids = stages(kernel)
    kernel.signal_kernel(signal.SIGKILL)
    gone(lambda: alive(pids))
    gone(lambda: left_since(before))
