"""The report of a sweep: a row a point and variant, and counts beside what lengths alone predict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from omnilab.experiment import laws
from omnilab.experiment.report import WIDTH, Report, ratio_text

COLUMNS = ("wall_s", "audio_ttfp_ms", "audio_rtf", "host_ms_per_step", "cpu_s")


@dataclass(frozen=True, slots=True)
class SweepReport:
    """The reports of all points, read side by side."""

    name: str
    path: Path
    reports: Mapping[str, Report]

    @property
    def failed(self) -> bool:
        """Did any point fail?"""
        return any(report.failed for report in self.reports.values())

    def to_dict(self) -> dict[str, Any]:
        """Return it for machines."""
        return {"sweep": self.name, "points": {point: report.to_dict() for point, report in self.reports.items()}}

    def rows(self) -> list[list[str]]:
        """Return a row a point and variant: ratios over what it is compared with, and counts beside their laws."""
        return [
            [point, result.name, *_ratios(report, result.name), *_counts(report, result.name)]
            for point, report in self.reports.items()
            for result in report.analysis.results
        ]

    def header(self) -> list[str]:
        """Return the columns' titles."""
        return ["point", "variant", *COLUMNS, *(f"{name} (law)" for name in laws.EXPLAINED)]

    def markdown(self) -> str:
        """Return the text of report.md."""
        note = "Ratios are over what each variant is compared with; a baseline has its own means."
        lines = [f"# {self.name}", "", note, ""]
        lines += ["| " + " | ".join(self.header()) + " |", "|" + "---|" * len(self.header())]
        lines += ["| " + " | ".join(row) + " |" for row in self.rows()]
        lines += ["", *(f"- `{name}`: {text}." for name, text in laws.EXPLAINED.items())]
        lines += [f"- [{point}]({point}/report.md)" for point in self.reports]
        return "\n".join(lines) + "\n"

    def print(self, console: Console | None = None) -> None:
        """Print the table and where the report is."""
        console = console or Console()
        if not console.is_terminal:
            console.width = WIDTH
        table = Table(*self.header(), title=self.name)
        for row in self.rows():
            table.add_row(*row)
        console.print(table)
        console.print(f"report: {self.path / 'report.md'}", markup=False, highlight=False, soft_wrap=True)


def _ratios(report: Report, name: str) -> list[str]:
    result = report.result(name)
    if result.against is None:
        means = (_mean(report, name, metric) for metric in COLUMNS)
        return ["-" if value is None else f"{value:,.3g}" for value in means]
    if result.difference is not None:
        return ["failed the gate"] * len(COLUMNS)
    return [ratio_text(result.ratios.get(metric)) for metric in COLUMNS]


def _mean(report: Report, name: str, metric: str) -> float | None:
    values = [line["metrics"][metric] for line in report.trials(name) if line["metrics"].get(metric) is not None]
    return sum(values) / len(values) if values else None


def _counts(report: Report, name: str) -> list[str]:
    predicted = _predicted(report, name)
    cells = []
    for counter in laws.EXPLAINED:
        trials = [_total(line["counters"], counter) for line in report.trials(name)]
        measured = f"{sum(trials) / len(trials):,.0f}" if trials else "-"
        cells.append(f"{measured} ({predicted[counter]:,})" if predicted else measured)
    return cells


def _predicted(report: Report, name: str) -> dict[str, int] | None:
    """Return the laws' counts where they hold: over BEFORE_1378, named size, requests of one length."""
    from omnilab.model.config import SIZES, config_dict

    run = report.run
    requests: Sequence[Any] = run["workload"]["requests"]
    lengths = {(r["prompt"].get("random_tokens"), r["sampling"]["max_text_tokens"]) for r in requests}
    known = all(t in _LAWFUL for t in report.result(name).toggles)
    if run["model"] not in SIZES or run["baseline"] != "BEFORE_1378" or len(lengths) != 1 or not known:
        return None
    (input_len, output_len), *_ = lengths
    if input_len is None:
        return None
    row_bytes = 2 * config_dict(run["model"])["thinker_config"]["text_config"]["hidden_size"]  # bfloat16
    once = laws.counts(input_len, output_len, row_bytes, report.result(name).toggles)
    return {counter: value * len(requests) for counter, value in once.items()}


def _total(counters: Mapping[str, int], counter: str) -> int:
    return sum(value for key, value in counters.items() if key.rsplit("/", 1)[-1] == counter)


_LAWFUL = frozenset({"async_save", "prefill_only_hidden_states", "idle_skip", "shallow_merge", "override_rows"})
