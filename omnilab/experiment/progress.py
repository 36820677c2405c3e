"""Progress with time left: a live line on a terminal, plain lines in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress

from omnilab.experiment.protocol import Progress


class TimeLeft:
    """Estimates what is left from how long steps of each kind took."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        self._left = dict(counts)
        self._took: dict[str, list[float]] = {}

    def done(self, kind: str, seconds: float) -> None:
        """Note a step."""
        self._left[kind] = max(0, self._left.get(kind, 0) - 1)
        self._took.setdefault(kind, []).append(seconds)

    def __str__(self) -> str:
        """Say it; kinds that have not been seen yet make it a lower bound."""
        seconds = sum(self._left[kind] * sum(took) / len(took) for kind, took in self._took.items())
        unseen = any(count and kind not in self._took for kind, count in self._left.items())
        if not any(self._left.values()):
            return "done"
        return f"{'more than' if unseen else 'about'} {seconds / 60:.1f} min left"


class Lines:
    """A line a finished step, for logs."""

    def __init__(self, console: Console) -> None:
        self._console, self._left, self._text, self._began = console, TimeLeft({}), "", time.monotonic()

    def note(self, text: str) -> None:
        """Say it."""
        self._say(text)

    def begin(self, counts: Mapping[str, int]) -> None:
        """Say what is to come."""
        self._left = TimeLeft(counts)
        self._say(f"{counts.get('trial', 0)} trials to go, {counts.get('open', 0)} starts of processes")

    def start(self, text: str) -> None:
        """Remember what is done."""
        self._text = text

    def done(self, kind: str, seconds: float, outcome: str) -> None:
        """Say what was done."""
        self._left.done(kind, seconds)
        failed = f" FAILED: {outcome}" if outcome else ""
        self._say(f"[{time.monotonic() - self._began:6.0f} s] {self._text}: {seconds:.1f} s{failed}; {self._left}")

    def end(self) -> None:
        """Nothing to close."""

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


class Live:
    """One line that changes, for terminals."""

    def __init__(self, console: Console) -> None:
        self._bar = RichProgress(
            TextColumn("{task.description}", markup=False), BarColumn(24), MofNCompleteColumn(), TimeElapsedColumn(),
            TextColumn("{task.fields[left]}", markup=False), console=console,
        )  # fmt: skip
        self._left: TimeLeft = TimeLeft({})
        self._task: TaskID | None = None
        self._done = 0

    def note(self, text: str) -> None:
        """Say it above the bar."""
        self._bar.console.print(text, markup=False, highlight=False)

    def begin(self, counts: Mapping[str, int]) -> None:
        """Show the bar, or make it longer."""
        self._left = TimeLeft(counts)
        if self._task is None:
            self._task = self._bar.add_task("", total=0, left="")
        self._bar.update(self._task, total=self._done + sum(counts.values()))
        self._bar.start()

    def start(self, text: str) -> None:
        """Show what is done."""
        self._bar.update(self._shown(), description=text)

    def done(self, kind: str, seconds: float, outcome: str) -> None:
        """Move on; failures stay on the screen."""
        self._left.done(kind, seconds)
        self._done += 1
        self._bar.update(self._shown(), advance=1, left=str(self._left))
        if outcome:
            self._bar.console.print(f"failed: {outcome}", markup=False)

    def end(self) -> None:
        """Take the bar down."""
        self._bar.stop()

    def _shown(self) -> TaskID:
        return TaskID(0) if self._task is None else self._task


def progress_to_stderr() -> Progress:
    """Return what fits where standard error goes."""
    console = Console(file=sys.stderr)
    return Live(console) if console.is_terminal else Lines(console)
