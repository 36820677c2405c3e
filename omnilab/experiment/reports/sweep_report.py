"""The report of a sweep: a row a point and variant, counts beside what lengths alone predict, effects drawn over it."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rich.console import Console
from rich.table import Table

from omnilab.experiment.analysis import laws
from omnilab.experiment.analysis.findings import FAILED_GATE, Variant
from omnilab.experiment.analysis.table import mean
from omnilab.experiment.reports import figures
from omnilab.experiment.reports.report import WIDTH, Report
from omnilab.experiment.reports.words import TITLES, amount, ratio_text, verdict_text
from omnilab.experiment.results import write_synced

COLUMNS = ("wall_s", "audio_ttfp_ms", "audio_rtf", "host_ms_per_step", "cpu_s")
NOTE = (
    "Ratios are over what each variant is compared with; a baseline has its own means. Underrun: seconds that a player "
    "stands still, mean of the trials' medians. Memory: most that was resident in all processes after a trial."
)
Axes = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class SweepReport:
    """The reports of all points, read side by side. `axes`: title of an axis -> point -> where it stands on it."""

    name: str
    path: Path
    reports: Mapping[str, Report]
    axes: Axes = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        """Did any point fail?"""
        return any(report.failed for report in self.reports.values())

    def to_dict(self) -> dict[str, Any]:
        """Return it for machines."""
        return {"sweep": self.name, "points": {point: report.to_dict() for point, report in self.reports.items()}}

    def header(self) -> list[str]:
        """Return the columns' titles."""
        counts = [f"{name} (law)" for name in self._counted]
        titles = [TITLES[m] for m in self._metrics]
        return ["point", "variant", "verdict", *titles, "underrun", "memory", *counts]

    @property
    def _metrics(self) -> list[str]:
        """Columns: the verdicts' metric first where it is none of the usual; of servers what their reports show."""
        found = list(dict.fromkeys(report.findings.primary for report in self.reports.values()))
        usual = [m for report in self.reports.values() if report.run.get("arms") for m in report.findings.metrics]
        usual = usual or list(COLUMNS)
        return list(dict.fromkeys([*(m for m in found if m not in usual), *usual]))

    @property
    def _counted(self) -> list[str]:
        """Counts that any point predicts."""
        several = (variant.predicted for report in self.reports.values() for variant in report.findings.variants)
        return list(laws.EXPLAINED) if any(several) else []

    def rows(self) -> list[list[str]]:
        """Return a row a point and variant."""
        return [
            [point, variant.name, verdict_text(variant), *_ratios(report, variant, self._metrics),
             *_player_and_memory(report, variant.name), *(_counts(variant) if self._counted else ())]
            for point, report in self.reports.items()
            for variant in report.findings.variants
        ]  # fmt: skip

    def figures(self) -> dict[str, str]:
        """Return SVG text by name: the verdicts' metric against each axis."""
        drawn = {}
        for number, (axis, places) in enumerate(self.axes.items(), 1):
            points = [(p, places[p], self.reports[p].findings) for p in self.reports if p in places]
            if len(points) > 1:
                drawn[f"against-{number}"] = figures.against_length(points, axis)
        return drawn

    def markdown(self) -> str:
        """Return the text of report.md."""
        lines = [f"# {self.name}", "", NOTE, ""]
        lines += ["| " + " | ".join(self.header()) + " |", "|" + "---|" * len(self.header())]
        lines += ["| " + " | ".join(row) + " |" for row in self.rows()]
        lines += ["", *(f"- `{name}`: {laws.EXPLAINED[name]}." for name in self._counted)]
        lines += [f"- [{point}](<{point}/report.md>)" for point in self.reports]
        return "\n".join(lines) + "\n"

    def html(self) -> str:
        """Return the text of report.html: the figures and the table."""
        head = "".join(f"<th>{html.escape(cell)}</th>" for cell in self.header())
        body = "".join(
            f"<tr>{_link(row[0])}{''.join(f'<td>{html.escape(c)}</td>' for c in row[1:])}</tr>" for row in self.rows()
        )
        title = html.escape(self.name)
        return (
            f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>'
            f"</head><body><h1>{title}</h1>{''.join(self.figures().values())}<p>{html.escape(NOTE)}</p>"
            f"<div><table><tr>{head}</tr>{body}</table></div></body></html>\n"
        )

    def write(self) -> None:
        """Write report.md, report.html and figures into the sweep's folder."""
        (self.path / "figures").mkdir(exist_ok=True)
        drawn = {f"figures/{name}.svg": svg for name, svg in self.figures().items()}
        for name, text in {"report.md": self.markdown(), "report.html": self.html(), **drawn}.items():
            write_synced(self.path / name, text)

    def print(self, console: Console | None = None) -> None:
        """Print the table and where the report is."""
        console = console or Console()
        if not console.is_terminal:
            console.width = WIDTH
        table = Table(*self.header(), title=self.name)
        for row in self.rows():
            table.add_row(*row)
        console.print(table)
        for name in ("report.md", "report.html"):
            console.print(f"report: {self.path / name}", markup=False, highlight=False, soft_wrap=True)


STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem;color:#222}"
    "div{overflow-x:auto}table{border-collapse:collapse;font-size:.85rem}td,th{padding:.3rem .6rem;text-align:left;"
    "border-bottom:1px solid #8885;white-space:nowrap}a{color:inherit}svg{max-width:100%;height:auto}"
    "@media(prefers-color-scheme:dark){body{background:#161616;color:#ddd}}"
)


def _link(point: str) -> str:
    return f'<td><a href="{quote(point)}/report.html">{html.escape(point)}</a></td>'


def _ratios(report: Report, variant: Variant, metrics: Sequence[str]) -> list[str]:
    found = report.findings
    if variant.verdict == FAILED_GATE:
        return [FAILED_GATE] * len(metrics)
    if variant.against is None:
        means = [amount(found.baseline.get(m), m) for m in metrics]
    else:
        means = [ratio_text(variant.effects.get(m)) for m in metrics]
    per_audio = [m in found.per_audio and text != "-" for m, text in zip(metrics, means, strict=True)]
    return [f"{text} an audio second" if each else text for text, each in zip(means, per_audio, strict=True)]


def _player_and_memory(report: Report, name: str) -> list[str]:
    trials = report.trials(name)
    stalled = mean([line["metrics"].get("audio_underrun_s") for line in trials])
    memory = max((line["guards"]["after"]["resident_mib"] for line in trials), default=None)
    return ["-" if stalled is None else f"{stalled:.2f} s", "-" if memory is None else f"{memory:,.0f} MiB"]


def _counts(variant: Variant) -> list[str]:
    predicted = variant.predicted
    if predicted is None:
        return [""] * len(laws.EXPLAINED)
    return [f"{predicted.measured[name][1]:,.0f} ({predicted.counts[name][1]:,})" for name in laws.EXPLAINED]
