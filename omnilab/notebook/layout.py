"""How the panel's parts stand on the page, and what its line of news says."""

from __future__ import annotations

from html import escape

import ipywidgets as widgets

from omnilab.notebook.controls import Controls
from omnilab.notebook.copying import Copying
from omnilab.notebook.live import Live
from omnilab.notebook.runs import Run, Runs

HIDDEN, SHOWN = "none", "flex"
STILL = "timed trials run without updates of this panel: what you see comes between them"


class Layout:
    """The panel's view and its buttons. Every method here changes widgets and nothing else."""

    def __init__(self, controls: Controls, live: Live, runs: Runs, name: str) -> None:
        self._controls, self._wrong, self._running, self._closed = controls, "", False, False
        wide = widgets.Layout(width="auto", min_width="6em")
        self.run = widgets.Button(description="Run", button_style="primary", icon="play", layout=wide)
        self.stop = widgets.Button(description="Stop", icon="stop", disabled=True, layout=wide)
        self.pin = widgets.Button(
            description="Pin", icon="thumb-tack", disabled=True, layout=wide,
            tooltip="keep the shown run to compare others with; once more to unpin",
        )  # fmt: skip
        self.bar = widgets.FloatProgress(min=0, max=1, layout=widgets.Layout(flex="1 1 8em", min_width="6em"))
        self.news = widgets.HTML(layout=widgets.Layout(min_width="0"))
        self.code = Copying(title="the shown run as Python")
        self.command = Copying(title="the same question by the protocol, on fresh processes")
        self._results = _section([runs.results])
        self._code = _section(
            [_title("This run as code"), self.code, _title("The same question by the protocol"), self.command]
        )
        self._timeline = _section([_title("Timeline, the last trial of each side"), live.timeline_box])
        self._runs = _section([_title("Runs"), runs.table, widgets.HBox([runs.shown, runs.beside])])
        self._live = _section([_columns(widgets.VBox([live.speech, live.listening]), live.stages, live.edges)])
        head = widgets.HTML(f'<div style="font-size:1.2em;font-weight:600">omnilab · {escape(name)}</div>')
        buttons = widgets.HBox(
            [self.run, self.stop, self.pin, self.bar], layout=widgets.Layout(align_items="center", grid_gap="4px")
        )
        still = widgets.HTML(f'<div style="opacity:.7;font-size:.9em">{STILL}</div>')
        parts = (self._live, self._results, self._timeline, self._runs, self._code)
        self.view = widgets.VBox(
            [head, controls.view(), buttons, self.news, still, *parts],
            layout=widgets.Layout(padding="8px", grid_gap="6px", max_width="76rem"),
        )  # fmt: skip

    def say(self, text: str) -> None:
        """Say what goes on."""
        self.news.value = f"<div>{escape(text)}</div>"

    def fail(self, text: str) -> None:
        """Say what went wrong and what to do."""
        self.news.value = (
            f'<div role="alert" style="border-left:3px solid #D55E00;padding-left:.6em">{escape(text)}</div>'
        )

    def refuse(self, wrong: str) -> None:
        """Say what of the controls cannot be run, and keep Run from it; "" takes it back."""
        if wrong:
            self.fail(wrong)
        elif self._wrong:
            self.say("ready")
        self._wrong = wrong
        self._buttons()

    def running(self, running: bool) -> None:
        """Show that something runs, or no longer."""
        self._running = running
        self._controls.enable(not running)
        if running:
            self.bar.value, self._live.layout.display = 0.0, SHOWN
        self._buttons()

    def progress(self, share: float, text: str) -> None:
        """Show how far it is."""
        self.bar.value, self._timeline.layout.display = share, SHOWN
        self.say(text)

    def show_run(self, run: Run | None) -> None:
        """Show a run's result and how to repeat it."""
        display = HIDDEN if run is None else SHOWN
        for section in (self._results, self._runs, self._code):
            section.layout.display = display
        if run is not None:
            self.code.text, self.command.text = run.code, run.command
        self.pin.disabled = run is None

    def closed(self) -> None:
        """Show that the stages have ended."""
        self._closed = True
        self._controls.enable(False)
        self._buttons()
        self.say("closed: its stages have ended; make another panel to go on")

    def _buttons(self) -> None:
        self.run.disabled = self._running or bool(self._wrong) or self._closed
        self.stop.disabled = not self._running or self._closed


def _title(text: str) -> widgets.HTML:
    return widgets.HTML(f'<div style="font-weight:600;margin-top:.4em">{escape(text)}</div>')


def _section(children: list[widgets.Widget]) -> widgets.VBox:
    return widgets.VBox(children, layout=widgets.Layout(display=HIDDEN, width="100%"))


def _columns(left: widgets.Widget, *right: widgets.Widget) -> widgets.GridBox:
    columns = widgets.Layout(
        grid_template_columns="repeat(auto-fit, minmax(26em, 1fr))", grid_gap="0 1.5em", width="100%"
    )
    return widgets.GridBox([left, widgets.VBox(list(right))], layout=columns)
