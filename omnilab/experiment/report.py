"""The report a person reads: the verdict table, what moved, and what a result of this machine is worth elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from omnilab.experiment.analysis import RATIOS, SHOWN, Analysis, Moved, Result, analyse
from omnilab.experiment.results import plain, read_run
from omnilab.experiment.statistics import LEAST_BLOCKS, Estimate
from omnilab.metrics import METRICS

TITLES = {
    "wall_s": "wall time", "ttft_ms": "first text", "audio_ttfp_ms": "first audio",
    "host_ms_per_step": "host ms a step", "cpu_s": "CPU seconds",
}  # fmt: skip
STAGES = 3
WIDTH = 180  # columns in a log


@dataclass(frozen=True, slots=True)
class Report:
    """A run, read back from its folder and analysed."""

    path: Path
    run: dict[str, Any]
    analysis: Analysis
    lines: tuple[dict[str, Any], ...] = ()

    @classmethod
    def load(cls, path: str | Path) -> Report:
        """Read a run folder and analyse it; RunFolderError when it is none."""
        run, lines = read_run(Path(path))
        return cls(Path(path), run, analyse(run, lines), tuple(lines))

    @property
    def failed(self) -> bool:
        """Did a trial fail, or a variant fail the gate?"""
        return any(result.errors or result.difference for result in self.analysis.results)

    def result(self, name: str) -> Result:
        """Return what the run shows of a variant."""
        return next(result for result in self.analysis.results if result.name == name)

    def trials(self, name: str) -> list[dict[str, Any]]:
        """Return the lines of a variant's trials that succeeded."""
        return [line for line in self.lines if (line["kind"], line["variant"]) == ("trial", name) and not line["error"]]

    def write(self) -> None:
        """Write report.md into the run folder."""
        (self.path / "report.md").write_text(self.markdown(), encoding="utf-8")

    def to_dict(self) -> dict[str, Any]:
        """Return it for machines: strict JSON values."""
        return plain({"path": self.path, "analysis": self.analysis, "notes": self.notes(), "definitions": METRICS})

    def markdown(self) -> str:
        """Return the text of report.md."""
        ours = self.analysis
        parts = [f"# {self.run['experiment']} on {self.run['model']}", *self._heading(), ""]
        parts += ["| variant | " + " | ".join(self._columns()) + " |", "|" + "---|" * (len(self._columns()) + 1)]
        parts += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in self._rows()]
        parts += ["", "## What moved", ""]
        parts += [f"- **{result.name}**: {line}" for result in ours.results for line in said_of(result)]
        parts += ["", "## What this is worth", ""] + [f"- {note}" for note in self.notes()]
        parts += ["", "## Definitions", ""] + [f"- `{name}`: {METRICS[name]}." for name in RATIOS]
        return "\n".join(parts) + "\n"

    def print(self, console: Console | None = None) -> None:
        """Print the verdict table, what moved and the notes."""
        console = console or Console()
        if not console.is_terminal:
            console.width = WIDTH
        console.print(f"\n{self.run['experiment']} on {self.run['model']}", style="bold", markup=False)
        for line in self._heading():
            console.print(line, markup=False, highlight=False)
        table = Table("variant", *self._columns())
        table.columns[0].min_width, table.columns[0].overflow = 26, "fold"
        for row in self._rows():
            table.add_row(*(Text(cell) for cell in row))
        console.print(table)
        for result in self.analysis.results:
            for line in said_of(result):
                console.print(f"- {result.name}: {line}", markup=False, highlight=False)
        for note in self.notes():
            console.print(f"note: {note}", markup=False, highlight=False, style="dim")
        console.print(f"report: {self.path / 'report.md'}", markup=False, highlight=False, soft_wrap=True)

    def notes(self) -> list[str]:
        """Say what limits these results."""
        ours, cores = self.analysis, self.run["machine"]["cores"]
        notes = []
        if ours.unfinished:
            notes.append("the run was not finished: what is here is what was measured before it stopped")
        if ours.blocks < LEAST_BLOCKS:
            notes.append(f"{ours.blocks} block(s): no verdict of faster or slower below {LEAST_BLOCKS}")
        odd = [TITLES[name] for name, same in ours.same.items() if same is not None and same.excludes(1.0)]
        if odd:
            notes.append(f"A/A: the baseline differs from itself in {', '.join(odd)}: distrust small effects there")
        if ours.disturbed:
            notes.append(f"{ours.disturbed} of {ours.trials} trials were disturbed: run it again on a quiet machine")
        if not any(result.gated for result in ours.results if result.against):
            notes.append("no output was compared: no gate prompts, or nothing finished")
        if not self.run["cuda"]:
            notes.append(
                "measured on a CPU: counters, bytes and rows carry over to a GPU exactly, growth with length as a law, "
                "host milliseconds in kind; ratios of wall time and of first packets do not"
            )
        if cores <= STAGES and self.run["topology"] == "processes":
            notes.append(
                f"{cores} cores for {STAGES} busy stages and their workers: work that runs beside the critical path "
                "competes with it, so async save and waits cannot show their worth in time"
            )
        notes.append("intervals are 95 %, Student t over blocks, not corrected for the number of variants")
        return notes

    def _heading(self) -> list[str]:
        ours = self.analysis
        machine = self.run["machine"]
        base = ", ".join(f"{TITLES[name]} {_number(ours.baseline[name], name)}" for name in RATIOS)
        same = ", ".join(f"{TITLES[name]} {ratio_text(ours.same[name])}" for name in RATIOS)
        return [
            f"{ours.blocks} of {ours.planned_blocks} blocks; {machine['cpu']}, {machine['cores']} cores; "
            f"torch {self.run['versions'].get('torch')}; seed {self.run['seed']}; commit {self.run['commit']}",
            f"A/A (the baseline over itself, should be 1): {same}",
            f"{ours.baseline_name}: {base}",
        ]

    def _columns(self) -> list[str]:
        return ["output", *(TITLES[name] for name in RATIOS), "verdict on wall time"]

    def _rows(self) -> list[list[str]]:
        rows = []
        for result in self.analysis.results:
            against = result.against not in (None, self.analysis.baseline_name)
            name = f"{result.name} (against {result.against})" if against else result.name
            cells = [ratio_text(result.ratios.get(metric)) if result.ratios else "" for metric in RATIOS]
            rows.append([name, output_text(result), *cells, result.verdict])
        return rows


def said_of(result: Result) -> list[str]:
    """Return sentences on a variant: why it has no speed, what it counted, and which spans moved."""
    lines = [f"trial failed: {error}" for error in dict.fromkeys(result.errors)]
    if result.difference is not None:
        return [*lines, f"failed the gate, no speed: {result.difference}"]
    if result.growth is not None:
        lines.append(f"host work a chunk-consuming Talker step, last tenth over first tenth: {result.growth:.1f}")
    if result.against is None or result.verdict == "not measured":
        return lines
    if result.verdict == "had no effect":
        return [*lines, f"had no effect: every counter equals that of {result.against}"]
    elsewhere = [TITLES[m] for m, found in result.ratios.items() if m != "wall_s" and found and found.excludes(1.0)]
    if result.verdict == "no difference shown" and elsewhere:
        lines.append(f"does not show in wall time at this size, but in {', '.join(elsewhere)}")
    elif result.verdict == "no difference shown":
        lines.append("does not show in time at this size")
    lines.append("counted: " + moved_text(result.counters, ""))
    if result.trials > 1:
        moved = moved_text(result.spans, " ms")
        lines.append(f"spans: {moved}" if moved else "no span sum moved beyond the noise")
    return lines


def moved_text(moved: Sequence[Moved], unit: str) -> str:
    """Name the largest few."""
    named = [f"{m.what} {_short(m.before)} -> {_short(m.after)}{unit}" for m in moved[:SHOWN]]
    return ", ".join(named) + (f" and {len(moved) - SHOWN} more" if len(moved) > SHOWN else "")


def ratio_text(found: Estimate | None) -> str:
    """Write a ratio with its interval."""
    if found is None:
        return "-"
    edges = "" if found.low is None or found.high is None else f" [{found.low:.2f}, {found.high:.2f}]"
    return f"{found.value:.2f}{edges}"


def output_text(result: Result) -> str:
    """Write what the gate says."""
    if result.difference is not None:
        return "DIFFERS"
    return "same" if result.gated or result.against is None else "not compared"


def _number(value: float | None, name: str) -> str:
    unit = "s" if name.endswith("_s") else "ms"
    return "-" if value is None else f"{_short(value)} {unit}"


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
