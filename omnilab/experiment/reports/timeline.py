"""The report's timeline: the baseline's spans above those of the fastest variant, drawn by timeline.js in the page."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, TypeAlias

from omnilab.experiment.analysis.findings import FASTER, Findings
from omnilab.experiment.analysis.span_trials import SpanTrial, span_trials
from omnilab.experiment.analysis.table import lost_spans
from omnilab.experiment.results import strict_json
from omnilab.metrics import THROUGHPUTS
from omnilab.profile.columns import span_columns
from omnilab.profile.timeline import script, timeline_data

KEPT = "timeline.json"  # in a run folder: what is drawn, for when the spans are not there
MOST = 6_000  # bars of a panel, so that a page stays small enough to mail
NOT_PACKED = "span rows are not there (pack --no-spans), and nothing was kept to draw"
NONE = "no trial that has a speed recorded spans"
Row: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Pictured:
    """One or two panels as `timeline_data` makes them, or why there are none."""

    panels: tuple[dict[str, Any], ...] = ()
    said: str = ""


def pictured(folder: Path, run: Row, lines: Sequence[Row], findings: Findings) -> Pictured:
    """Return what the timeline of a run shows: one request in two trials of the first block that has both.

    Equal rows give equal panels. OSError, ValueError (pyarrow's are such) or KeyError where row files are damaged.
    """
    pair = _pair(span_trials(folder, run, lines), findings)
    if not pair:
        return Pictured(said=NONE)
    if not all(trial.spans.is_file() for trial in pair):
        kept = folder / KEPT
        if not kept.is_file():
            return Pictured(said=NOT_PACKED)
        return Pictured(tuple(json.loads(kept.read_text(encoding="utf-8"))["panels"]))
    panels = tuple(_panel(trial) for trial in pair)
    return Pictured(panels) if any(panel["total"] for panel in panels) else Pictured(said=NONE)


def section(shown: Pictured) -> str:
    """Return the section as HTML: script and data within it, nothing from outside."""
    if not shown.panels:
        return f'<section class="timeline">\n<h2>Timeline</h2>\n<p>Not drawn: {escape(shown.said)}.</p>\n</section>'
    labels = " above ".join(panel["label"] for panel in shown.panels)
    data = json.dumps(shown.panels, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return SECTION.format(caption=escape(CAPTION.format(labels=labels)), data=data, script=script())


def to_keep(shown: Pictured) -> str:
    """Return the text of KEPT."""
    return strict_json({"panels": shown.panels}) + "\n"


def _pair(trials: Sequence[SpanTrial], findings: Findings) -> list[SpanTrial]:
    """Choose the trials of the first block that holds the baseline and the fastest variant; else one that is there."""
    blocks: dict[int, dict[str, SpanTrial]] = {}
    for trial in trials:
        blocks.setdefault(trial.line["block"], {})[trial.variant] = trial
    names = [findings.baseline_name, *fastest_first(findings)]
    for other in names[1:]:
        for there in blocks.values():
            if names[0] in there and other in there:
                return [there[names[0]], there[other]]
    return [trial for trial in trials if trial.variant == names[0]][:1] or list(trials[:1])


def fastest_first(findings: Findings) -> list[str]:
    """Return the variants, faster ones first and by their ratio; the others as they were planned."""
    primary = findings.primary
    sign = -1 if primary in THROUGHPUTS else 1
    others = [one for one in findings.variants if one.name != findings.baseline_name]
    faster = [one for one in others if one.verdict.startswith(FASTER) and primary in one.effects]
    faster.sort(key=lambda one: sign * one.effects[primary].ratio)
    return [one.name for one in (*faster, *(one for one in others if one not in faster))]


def _panel(trial: SpanTrial) -> dict[str, Any]:
    import pandas as pd

    frame = pd.read_parquet(trial.spans)
    frame.attrs["spans_lost"] = sum(lost_spans(trial.line).values())
    columns = span_columns(frame)
    request = next((name for name in trial.names() if name in columns.requests), None)
    label = f"{trial.variant}, block {trial.line['block']}"
    return timeline_data(columns, label=label, request=request, most=MOST)


CAPTION = (
    "One request: {labels}, on one time axis. A row is a loop of a stage, a curve a chunk from its put to its get. "
    "Where bars are narrow, a row shows the share of the time that was busy. Zoom with the wheel or + and -, move by "
    "dragging; Table gives the numbers of what is shown."
)
# in the page itself, so that it can be mailed and needs no network
SECTION = """<section class="timeline">
<h2>Timeline</h2>
<p>{caption}</p>
<div id="timeline"></div>
<noscript><p>It is drawn by a script in this page, which is switched off here.</p></noscript>
<script type="application/json" id="timeline-data">{data}</script>
<script type="module">
{script}
mount(document.getElementById("timeline"), {{
  panels: JSON.parse(document.getElementById("timeline-data").textContent),
}});
</script>
</section>"""
