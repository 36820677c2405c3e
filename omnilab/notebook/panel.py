"""The panel: press toggles, run, see and hear what changes. It holds no logic: it calls `paired`, Pipeline and Recipe.

Runs happen in a background thread, so that Stop works; every change of a widget goes through `_change`.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from omnilab import show
from omnilab.errors import Aborted, BadInput
from omnilab.experiment.paired import paired
from omnilab.experiment.plan import uses_cuda
from omnilab.notebook import cells
from omnilab.notebook.choice import Asked
from omnilab.notebook.controls import AGAINST_BASE, Controls
from omnilab.notebook.layout import Layout
from omnilab.notebook.live import Live, lengths
from omnilab.notebook.runs import Run, Runs
from omnilab.notebook.session import Session, measuring
from omnilab.pipeline import Pipeline
from omnilab.toggle import Toggle
from omnilab.trial import Trial

WITHOUT_WIDGETS = """No widgets here? The panel does what omnilab.experiment.paired.paired does:
    paired(pipe, recipes.BEFORE_1378, recipe_with("shallow_merge", base=recipes.BEFORE_1378), workload, pairs=5)
or by hand: panel.controls.seams["merge"].show(occupant); panel.run(); panel.wait(); panel"""


class Panel:
    """A panel for one pipeline: a size, a model folder or hub id, or an open Pipeline, which stays yours.

    `toggles` are toggles of your own, offered beside the listed ones. Show it as the last line of a cell. `close()`
    ends its stages; so do the end of the kernel and running its cell again.
    """

    def __init__(
        self, pipeline_or_model: Pipeline | str | Path = "thin", *, toggles: Sequence[Toggle[Any]] = ()
    ) -> None:
        """Build the panel and start its stages in the background."""
        self._lock, self._closed = threading.RLock(), False
        self._stop, self._thread = threading.Event(), None
        self._session = Session(pipeline_or_model)
        self._finalizer = weakref.finalize(self, Session.close, self._session)  # at the kernel's end, too
        self.controls = Controls(toggles, uses_cuda("auto"), _weak(self._changed))
        self.live, self.runs = Live(), Runs(_weak(self._redraw))
        self.layout = Layout(self.controls, self.live, self.runs, _name(self._session))
        for button, method in ((self.layout.run, self.run), (self.layout.stop, self.stop), (self.layout.pin, self.pin)):
            button.on_click(_weak(method))
        cells.keep(self)
        self._say("starting the stages")
        self._session.start(_weak(self._started, arguments=1))

    @property
    def running(self) -> bool:
        """Is something being measured?"""
        return self._thread is not None and self._thread.is_alive()

    def run(self) -> None:
        """Measure what the controls ask for, in the background; what cannot be run is said in the panel."""
        if self.running or self._closed:
            return
        began = time.monotonic()
        try:
            asked = self.controls.asked(self.runs.choices())
            asked.chosen.recipe()
        except BadInput as error:
            self._fail(str(error))
            return
        self._stop.clear()
        self._change(lambda: self.layout.running(True))
        self._change(lambda: self.live.begin(began))
        self._thread = threading.Thread(target=self._work, args=(asked,), name="omnilab/panel", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Give up what runs; the whole pairs so far are kept."""
        self._stop.set()
        if self.running:
            self._say("stopping")

    def pin(self) -> None:
        """Pin the shown run, so that others can be compared with it; once more to unpin."""
        self._change(self.runs.pin)
        self._offer()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until nothing runs; return whether that came within the time."""
        if self._thread is not None:
            self._thread.join(timeout_s)
        return not self.running

    def close(self) -> None:
        """End what runs and the stages; the panel stays readable. Once is enough."""
        self._stop.set()
        self._finalizer()
        self._change(self.layout.closed)
        self._closed = True

    def _work(self, asked: Asked) -> None:
        try:
            with measuring(self._stop.is_set, lambda: self._say("waiting: another panel of this kernel is measuring")):
                self._measure(asked)
        except Aborted as given_up:
            self._say(f"stopped: {given_up}" if self._stop.is_set() else str(given_up))
        except Exception as error:  # whatever it is, the panel says it and stays usable
            again = self._session.recover()
            self._fail(f"{type(error).__name__}: {error}" + (". The next run starts new stages." if again else ""))
        finally:
            self._change(lambda: self.layout.running(False))

    def _measure(self, asked: Asked) -> None:
        began, pipe = time.monotonic(), self._session.pipe()
        workload, base, other = asked.workload(), asked.against.recipe(), asked.chosen.recipe()
        pipe.check(workload)
        self._say(f"live: {asked.chosen.name()}")
        pipe.apply(other)
        events = pipe.stream(self.controls.prompt.value, **lengths(asked.output_len, asked.seed))
        for event in events:
            self._change(lambda event=event: self.live.take(event))
            if self._stop.is_set():
                events.close()
                raise Aborted("nothing was measured")
        self._say("warming up both sides; from here on the panel is still while a trial runs")
        counted = _Counted(self, 2 * asked.pairs)
        result = paired(pipe, base, other, workload, pairs=asked.pairs, on_trial=counted, stop=self._stop.is_set)
        opened = pipe.opened
        run = Run(len(self.runs.kept) + 1, asked, result, asked.code(opened), asked.command(opened))
        self._change(lambda: self.runs.add(run))
        self._offer()
        stopped = f"stopped after {result.pairs} of {asked.pairs} pairs; " if result.pairs < asked.pairs else ""
        self._say(f"{stopped}#{run.number} done in {time.monotonic() - began:.0f} s: {result.said()}")

    def _started(self, wrong: str) -> None:
        if wrong:
            self._fail(wrong)
        elif not self.running:
            self._say("ready")
        self._changed()

    def _changed(self) -> None:
        """Something in the controls was changed: say beside it what could not be run."""
        wrong, pipe = self.controls.problem(), self._session.ready()
        if not wrong and pipe is not None:
            try:
                asked = self.controls.asked(self.runs.choices())
                asked.chosen.recipe()
                pipe.check(replace(asked, num_prompts=1, max_concurrency=1).workload())  # all are of one length
            except BadInput as error:
                wrong = str(error)
        self._change(lambda: self.layout.refuse(wrong))

    def _offer(self) -> None:
        self._change(lambda: self.controls.offer([AGAINST_BASE, *self.runs.choices()]))
        self._redraw()

    def _redraw(self) -> None:
        def draw() -> None:
            self.runs.draw()
            self.layout.show_run(self.runs.selected)

        self._change(draw)

    def _say(self, text: str) -> None:
        self._change(lambda: self.layout.say(text))

    def _fail(self, text: str) -> None:
        self._change(lambda: self.layout.fail(text))

    def _change(self, change: Callable[[], Any]) -> None:
        """Change widgets: the one place, one change at a time, none after the panel was closed."""
        with self._lock:
            if not self._closed:
                change()

    def __repr__(self) -> str:
        """Return one line."""
        return f"<Panel of {_name(self._session)}, {len(self.runs.kept)} runs>"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        """Return the widgets, and beside them what a front end without widgets shows: choices and runs as text."""
        bundle = dict(self.layout.view._repr_mimebundle_() or {})
        kept = self.runs.text() if self.runs.kept else "no runs yet"
        return {**bundle, "text/plain": f"{self!r}\n{self.controls.text()}\n{WITHOUT_WIDGETS}\n{kept}"}


class _Counted:
    """Shows each trial after it, how many are done, and how long the rest takes if it goes on like this."""

    def __init__(self, panel: Panel, trials: int) -> None:
        self._panel, self._trials, self._done, self._began = panel, trials, 0, time.monotonic()

    def __call__(self, side: str, pair: int, trial: Trial) -> None:
        panel = self._panel
        self._done += 1
        left = (time.monotonic() - self._began) / self._done * (self._trials - self._done)
        said = f"trial {self._done} of {self._trials}, {side} {show.amount(trial.wall_s, 's')}; about {left:.0f} s left"
        panel._change(lambda: panel.layout.progress(self._done / self._trials, said))
        panel._change(lambda: panel.live.add_trial(side, f"pair {pair + 1}", trial))


def _weak(method: Callable[..., None], arguments: int = 0) -> Callable[..., None]:
    """Call a method with its first arguments, without keeping its object alive: widgets live as long as the kernel."""
    found = weakref.WeakMethod(method)

    def call(*given: Any) -> None:
        bound = found()
        if bound is not None:
            bound(*given[:arguments])

    return call


def _name(session: Session) -> str:
    return str(session.opened.get("model", "a pipeline"))
