"""The runs that a panel keeps: a table, one or two of them shown, one of them pinned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import ipywidgets as widgets

from omnilab import show
from omnilab.experiment.reports import words
from omnilab.experiment.reports.paired import Paired
from omnilab.notebook.choice import Asked, Choice
from omnilab.trial import Trial

NOTHING = ("nothing", 0)  # runs are numbered from 1


@dataclass(frozen=True, slots=True)
class Run:
    """One press of Run and what it showed. `code` and `command` repeat it."""

    number: int
    asked: Asked
    result: Paired
    code: str
    command: str

    @property
    def label(self) -> str:
        """Return its number and recipe."""
        return f"#{self.number} {self.asked.chosen.name()}"

    def row(self) -> list[str]:
        """Return it for the table."""
        asked, effect = self.asked, self.result.variant.effects.get(self.result.found.primary)
        size = f"{asked.num_prompts} x {asked.input_len} -> {asked.output_len}, {asked.max_concurrency} in flight"
        return [
            f"#{self.number}", asked.chosen.name(), asked.against.name(), f"{size}, seed {asked.seed}",
            str(self.result.pairs), self.result.variant.output, words.ratio_text(effect), self.result.verdict,
        ]  # fmt: skip


HEADER = ["run", "recipe", "compared with", "workload", "pairs", "output", "wall time [95 %]", "verdict"]


class Runs:
    """Keeps runs, the spans of the last one only. `changed` is called when another one is to be shown."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self.kept: list[Run] = []
        self._pinned: int | None = None
        style = {"description_width": "initial"}
        self.shown = widgets.Dropdown(description="show", options=[], style=style)
        self.beside = widgets.Dropdown(description="beside it", options=[NOTHING], style=style)
        self.table = widgets.HTML()
        self.results = widgets.HTML()
        for widget in (self.shown, self.beside):
            widget.observe(lambda _: changed(), "value")

    def add(self, run: Run) -> None:
        """Keep a run and show it."""
        self.kept = [*(replace(old, result=_lighter(old.result)) for old in self.kept), run]
        options = [(one.label, one.number) for one in self.kept]
        beside = self.beside.value
        self.beside.options, self.beside.value = [NOTHING, *options], beside
        self.shown.options, self.shown.value = options, run.number
        self.draw()

    def pin(self) -> Run | None:
        """Pin the shown run; another press unpins it."""
        self._pinned = None if self._pinned == self.shown.value else self.shown.value
        self.draw()
        return self.pinned

    @property
    def pinned(self) -> Run | None:
        """The run that is pinned."""
        return self.numbered(self._pinned)

    @property
    def selected(self) -> Run | None:
        """The run that is shown."""
        return self.numbered(self.shown.value)

    def numbered(self, number: int | None) -> Run | None:
        """Return a run by its number."""
        return next((run for run in self.kept if run.number == number), None)

    def choices(self) -> dict[str, Choice]:
        """Return the recipes of the last and the pinned run, by what a control calls them."""
        from omnilab.notebook.controls import AGAINST_LAST, AGAINST_PINNED

        found = {AGAINST_LAST: self.kept[-1].asked.chosen} if self.kept else {}
        return found if self.pinned is None else {**found, AGAINST_PINNED: self.pinned.asked.chosen}

    def draw(self) -> None:
        """Write the table and the shown results."""
        rows = [run.row() for run in self.kept]
        for run, row in zip(self.kept, rows, strict=True):
            row[0] += " pinned" if run.number == self._pinned else ""
        self.table.value = show.frame(show.table(HEADER, rows, left=len(HEADER)))
        shown = [run for run in (self.selected, self.numbered(self.beside.value)) if run is not None]
        cells = "".join(f'<div style="flex:1 1 30em;min-width:0">{_result(run)}</div>' for run in shown)
        self.results.value = f'<div style="display:flex;flex-wrap:wrap;gap:1.5em">{cells}</div>'

    def text(self) -> str:
        """Return the table as text."""
        return show.plain_table(HEADER, [run.row() for run in self.kept])


def _result(run: Run) -> str:
    return run.result.html(f"#{run.number} ")


def _lighter(result: Paired) -> Paired:
    """Return a result whose trials keep their requests, not their spans: a long trial has 800,000."""
    if result.trials is None:
        return result
    return replace(result, trials={side: _without_spans(trial) for side, trial in result.trials.items()})


def _without_spans(trial: Trial) -> Trial:
    return Trial(
        trial.records, (), trial.counter_rows, wall_s=trial.wall_s, cpu_s=trial.cpu_s, occupants=trial.occupants,
        sample_rate=trial.sample_rate,
    )  # fmt: skip
