"""The timeline as a notebook widget: what it shows first is in the notebook, finer data comes as one zooms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import anywidget
import numpy as np
import traitlets

from omnilab import show
from omnilab.errors import BadInput
from omnilab.profile.columns import SpanColumns, span_columns
from omnilab.profile.timeline import MOST, script, timeline_data
from omnilab.trial import Trial

if TYPE_CHECKING:
    from omnilab.profile.columns import Spans

    Shown: TypeAlias = Trial | tuple[str, Trial | Spans]

MOST_PANELS = 2


class Timeline(anywidget.AnyWidget):
    """Spans of one or two trials as a Gantt. Make it with `of`; `show` puts other trials into it."""

    _esm = script()
    panels = traitlets.List().tag(sync=True)

    @classmethod
    def of(cls, *trials: Shown, most: int = MOST) -> Timeline:
        """Show trials one above the other: a Trial, or (label, Trial or spans); at most `most` bars of each at once.

        BadInput for no trial, more than two, or spans that lack columns.
        """
        widget = cls()
        widget.show(*trials, most=most)
        return widget

    def __init__(self) -> None:
        """Start empty."""
        super().__init__()
        self._labelled: list[tuple[str, SpanColumns]] = []
        self._most = MOST
        self.on_msg(self._asked)

    def show(self, *trials: Shown, most: int = MOST) -> None:
        """Show these trials instead, as `of` does."""
        if not 1 <= len(trials) <= MOST_PANELS:
            raise BadInput(f"Timeline: {len(trials)} trials; give one, or two to see one above the other")
        self._labelled = [_labelled(trial, number) for number, trial in enumerate(trials, 1)]
        self._most = most
        self.panels = [timeline_data(columns, label=label, most=most) for label, columns in self._labelled]

    def __repr__(self) -> str:
        """Return ms by loop and span of each trial: what a front end without widgets shows."""
        sums = [_sums(columns) for _, columns in self._labelled]
        rows = [
            [*loop_and_span, *(f"{one[loop_and_span]:,.2f}" if loop_and_span in one else "" for one in sums)]
            for loop_and_span in sorted({key for one in sums for key in one})
        ]
        header = ["loop", "span", *(f"{label}, ms" for label, _ in self._labelled)]
        return f"Timeline, drawn where there are widgets; as a table:\n{show.plain_table(header, rows)}"

    def _asked(self, _: Any, content: Any, __: Any) -> None:
        """Answer a question for finer data; what cannot be answered is said in the widget."""
        if not isinstance(content, dict) or content.get("kind") != "load":
            return
        answer: dict[str, Any] = {"kind": "loaded", "id": content.get("id"), "data": None}
        try:
            label, columns = self._labelled[content["panel"]]
            window = (float(content["from"]), float(content["to"]))
            answer["data"] = timeline_data(
                columns, label=label, window=window, request=content["request"], most=self._most
            )
        except (BadInput, LookupError, TypeError, ValueError) as error:
            answer["error"] = f"{type(error).__name__}: {error}"
        self.send(answer)


def _sums(columns: SpanColumns) -> dict[tuple[str, str], float]:
    """Return ms by loop and span."""
    kinds = columns.track * len(columns.names) + columns.name
    sums = np.bincount(kinds, weights=columns.end - columns.start, minlength=len(columns.tracks) * len(columns.names))
    counts = np.bincount(kinds, minlength=len(sums))
    keys = [(track, name) for track in columns.tracks for name in columns.names]
    return {key: float(ns) / 1e6 for key, ns, count in zip(keys, sums, counts, strict=True) if count}


def _labelled(shown: Shown, number: int) -> tuple[str, SpanColumns]:
    label, spans = shown if isinstance(shown, tuple) else (f"trial {number}", shown)
    if not isinstance(spans, Trial):
        return label, span_columns(spans)
    frame = spans.spans
    frame.attrs["spans_lost"] = sum(row.number for row in spans.lost_rows)
    return label, span_columns(frame)
