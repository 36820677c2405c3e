"""What the panel shows while it runs: text and audio as they come; stages, edges and the timeline after each trial."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import ipywidgets as widgets
import numpy as np

from omnilab import show
from omnilab.experiment.reports.paired import STAGES_NOTE, stage_parts
from omnilab.metrics import span_totals
from omnilab.notebook.listening import Listening
from omnilab.notebook.timeline import Timeline
from omnilab.speech import AudioChunk, Event, Finished, TextDelta
from omnilab.trial import Trial, edge_of

EVERY_S = 0.1  # between two updates of what streams in
STAGES = ("thinker", "talker", "code2wav")
EDGES = ("thinker->talker", "talker->code2wav")


class Live:
    """Views that are filled as things happen; the panel calls them, one at a time."""

    def __init__(self) -> None:
        self.speech = widgets.HTML()
        self.listening = Listening()
        self.stages = widgets.HTML()
        self.edges = widgets.HTML()
        self.timeline: Timeline | None = None
        self.timeline_box = widgets.VBox()
        self._events: list[Event] = []
        self._began = self._shown = 0.0
        self.first_s: float | None = None  # from begin to the first update
        self._trials: dict[str, Trial] = {}
        self._labels: dict[str, str] = {}

    def begin(self, began: float) -> None:
        """Start anew; `began` is when the run was asked for (time.monotonic())."""
        self._events, self._began, self._shown, self.first_s = [], began, 0.0, None
        self._trials, self._labels = {}, {}
        self.speech.value = show.line("live: waiting for the first token", soft=True)

    def take(self, event: Event) -> None:
        """Show an event of the live request, at most ten times a second."""
        self._events.append(event)
        if isinstance(event, AudioChunk):
            self.listening.add(event)
        now = time.monotonic()
        if isinstance(event, Finished):
            self.speech.value = _finished(event, self.first_s)
        elif now - self._shown >= EVERY_S:
            self._shown = now
            self.first_s = self.first_s if self.first_s is not None else now - self._began
            self.speech.value = _so_far(self._events, self.first_s)

    def add_trial(self, side: str, label: str, trial: Trial) -> None:
        """Show a trial's stages, edges and timeline beside those of the other side's last trial."""
        self._trials = {**self._trials, side: trial}
        both = {name: self._trials[name] for name in ("base", "other") if name in self._trials}
        self.stages.value = stages_html(both)
        self.edges.value = edges_html(both)
        self._labels[side] = label
        labelled = [(f"{name}, {self._labels[name]}", one) for name, one in both.items()]
        if self.timeline is None:
            self.timeline = Timeline.of(*labelled)
            self.timeline_box.children = (self.timeline,)
        else:
            self.timeline.show(*labelled)


def stages_html(trials: Mapping[str, Trial]) -> str:
    """Return a bar a stage and side: ms of work by span name."""
    sums = {
        side: {f"{stage}/{name}": ms for (stage, name), ms in span_totals(t.span_rows, t.lost_rows).items()}
        for side, t in trials.items()
    }
    rows = [(f"{stage} · {side}", stage_parts(sums[side], stage)) for stage in STAGES for side in trials]
    return show.frame(show.heading("Work by stage", STAGES_NOTE), show.bars(rows, "ms"))


def edges_html(trials: Mapping[str, Trial]) -> str:
    """Return a bar an edge and side: bytes put, as the sending stage counted them."""
    rows = [(f"{edge} · {side}", {"bytes": bytes_on(trial, edge)}) for edge in EDGES for side, trial in trials.items()]
    return show.frame(show.heading("Bytes on each edge", "of the last trial"), show.bars(rows, "B"))


def bytes_on(trial: Trial, edge: str) -> int:
    """Return the bytes that were put on an edge in a trial."""
    put = [row for row in trial.counter_rows if row.counter == "bytes_put"]
    return sum(row.value for row in put if edge_of(row.stage, row.thread) == edge)


def _so_far(events: list[Event], first_s: float) -> str:
    text = "".join(event.text for event in events if isinstance(event, TextDelta))
    tokens = sum(len(event.token_ids) for event in events if isinstance(event, TextDelta))
    chunks = [event for event in events if isinstance(event, AudioChunk)]
    parts = [show.heading("Live", f"first token after {first_s:.2f} s"), show.line(text)]
    said = f"{tokens} tokens"
    if chunks:
        audio, rate = np.concatenate([chunk.audio for chunk in chunks]), chunks[0].sample_rate
        parts.append(show.waveform(audio, rate))
        said += f", {len(chunks)} audio chunks, {len(audio) / rate:.2f} s"
    return show.frame(*parts, show.line(said, soft=True))


def _finished(event: Finished, first_s: float | None) -> str:
    note = "" if first_s is None else f"first token after {first_s:.2f} s"
    return show.frame(show.heading("Live", note), event.speech._repr_html_())


def lengths(output_len: int, seed: int) -> dict[str, Any]:
    """Return the sampling of the live request: short, so that the timed pairs come soon."""
    return {
        "max_text_tokens": min(output_len, 40),
        "ignore_eos": True,
        "seed": seed,
        "max_frames": min(3 * output_len, 100),
    }
