"""What all command lines share."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import typer

from omnilab.command import INTERRUPTED, run_typer

HOLDS = """
import sys, time
from pathlib import Path
import typer
from omnilab.command import run_typer

app = typer.Typer()

@app.command()
def hold(file: Path) -> None:
    file.write_text("held")
    try:
        print("holding", flush=True)
        time.sleep(60)
    finally:
        file.unlink()

sys.exit(run_typer(app, None, "hold"))
"""


@pytest.mark.parametrize("told", [signal.SIGINT, signal.SIGTERM])
def test_a_command_told_to_end_leaves_nothing_of_what_it_held(tmp_path: Path, told: signal.Signals) -> None:
    """Servers and shared memory left behind by `kill PID`, where Ctrl-C leaves none."""
    held = tmp_path / "held"
    words = [sys.executable, "-c", HOLDS, str(held)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "holding\n"
        running.send_signal(told)
        _, said = running.communicate(timeout=30)
    assert running.returncode == INTERRUPTED
    assert said == "omnilab hold: interrupted; what was finished is kept\n"
    assert not held.exists()


def test_a_command_run_by_a_thread_leaves_signals_alone() -> None:
    """A command called from a notebook's or a test's thread that cannot start."""
    app = typer.Typer()
    app.command()(lambda: None)
    statuses: list[int] = []
    thread = threading.Thread(target=lambda: statuses.append(run_typer(app, [], "nothing")))
    thread.start()
    thread.join(10)
    assert statuses == [0]


def test_what_sigterm_did_before_it_does_after() -> None:
    """A program that runs a command and then cannot be ended."""
    app = typer.Typer()
    app.command()(lambda: None)
    before = signal.getsignal(signal.SIGTERM)
    assert run_typer(app, [], "nothing") == 0
    assert signal.getsignal(signal.SIGTERM) is before
