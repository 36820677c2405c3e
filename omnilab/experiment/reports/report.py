"""The report a person reads: report.md for a pull request, report.html with figures, a table on a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from omnilab import show
from omnilab.errors import RunFolderError
from omnilab.experiment.analysis.analyse import analyse
from omnilab.experiment.analysis.findings import FAILED_GATE, Findings, Variant
from omnilab.experiment.analysis.waited import KEPT, Waited, waited
from omnilab.experiment.reports import figures, page, timeline, waiting, words
from omnilab.experiment.results import plain, read_run, strict_json, write_synced
from omnilab.metrics import METRICS

WIDTH = 200  # columns in a log


@dataclass(frozen=True, repr=False)
class Report:
    """A run, read back from its folder and analysed."""

    path: Path
    run: dict[str, Any]
    findings: Findings
    lines: tuple[dict[str, Any], ...] = ()

    @classmethod
    def load(cls, path: str | Path) -> Report:
        """Read a run folder and analyse it; RunFolderError when it is none."""
        run, lines = read_run(Path(path))
        return cls(Path(path), run, analyse(run, lines), tuple(lines))

    @property
    def failed(self) -> bool:
        """Did a trial fail, or a variant fail the gate?"""
        return any(variant.errors or variant.verdict == FAILED_GATE for variant in self.findings.variants)

    def result(self, name: str) -> Variant:
        """Return what the run shows of a variant."""
        return next(variant for variant in self.findings.variants if variant.name == name)

    def trials(self, name: str) -> list[dict[str, Any]]:
        """Return the lines of a variant's trials that succeeded."""
        return [line for line in self.lines if (line["kind"], line["variant"]) == ("trial", name) and not line["error"]]

    def to_dict(self) -> dict[str, Any]:
        """Return it for machines: strict JSON values."""
        return plain({"path": self.path, "findings": self.findings, "definitions": METRICS})

    def title(self) -> str:
        """Return the question, or the experiment's name."""
        return " ".join(self.run["question"].split()) or f"{self.run['experiment']} on {self.run['model']}"

    @cached_property
    def waited(self) -> Waited:
        """What the requests waited for, from the span rows: seconds for a long run."""
        return waited(self.path, self.run, self.lines)

    @cached_property
    def pictured(self) -> timeline.Pictured:
        """What the timeline shows, from the span rows of two trials."""
        return timeline.pictured(self.path, self.run, self.lines, self.findings)

    def sections(self) -> dict[str, list[str]]:
        """Return the parts below the table as lines of text, empty ones left out."""
        ours = self.findings
        parts = {
            "Main effects": words.main_lines(ours),
            "Together and apart": words.sharing_lines(ours),
            "Effects": words.effect_lines(ours),
            "Predicted and measured": words.predicted_lines(ours),
            "What moved": words.moved_lines(ours),
            waiting.WAITED: waiting.waited_lines(self.waited, ours.baseline_name),
            waiting.FORETOLD: waiting.foretold_lines(self.waited),
            "Quantiles above the median": words.quantile_lines(ours),
            "What carries over to a GPU": words.carry_lines(ours),
            "What this does not show": list(ours.notes),
            "How to reproduce": words.reproduce_lines(self.run),
            "Definitions": [f"`{name}`: {METRICS[name]}" for name in ours.metrics],
        }
        return {heading: lines for heading, lines in parts.items() if lines}

    def markdown(self) -> str:
        """Return the text of report.md."""
        parts = [f"# {self.title()}", "", *(f"{line}  " for line in words.heading(self.run, self.findings)), ""]
        parts += _markdown_table(words.header(self.findings), words.rows(self.findings))
        tables = waiting.tables(self.waited)
        for heading, lines in self.sections().items():
            parts += ["", f"## {heading}", ""]
            if heading in tables:
                parts += [*_markdown_table(tables[heading].header, tables[heading].rows), ""]
            parts += [f"- {line}" for line in lines]
        return "\n".join(parts) + "\n"

    def __repr__(self) -> str:
        """Return one line."""
        said = ", ".join(f"{variant.name}: {variant.verdict}" for variant in self.findings.variants if variant.against)
        return f"<Report {self.path}: {said}>"

    def _repr_html_(self) -> str:
        """Return the verdict table and the sentences that a terminal shows, as HTML."""
        ours = self.findings
        parts = [show.heading(self.title()), *(show.line(line, soft=True) for line in words.heading(self.run, ours))]
        titles = {words.TITLES[name]: METRICS[name] for name in ours.metrics}
        header, *rows = ([row[0], row[-1], *row[1:-1]] for row in (words.header(ours), *words.rows(ours)))
        parts.append(show.table(header, rows, titles=titles, left=3))  # the verdict first: the rest may not fit
        for heading, lines in self.sections().items():
            if heading in PRINTED:
                parts += [show.heading(heading), *(show.line(line.replace("**", "")) for line in lines)]
        return show.frame(*parts, show.line(f"report: {self.path / 'report.html'}", soft=True))

    def figures(self) -> dict[str, str]:
        """Return SVG text by name."""
        ours = self.findings
        drawn: dict[str, str | None] = {"effects": figures.effects(ours, ours.primary)}
        drawn |= {f"effects-{m}": figures.effects(ours, m) for m in ours.metrics if m != ours.primary}
        if ours.interactions:
            drawn["two-by-two"] = figures.two_by_two(ours.interactions[0], words.TITLES[ours.primary])
        drawn |= {"waterfall": figures.waterfall(ours), "per-stage": figures.per_stage(ours)}
        return {name: svg for name, svg in drawn.items() if svg is not None}

    def html(self, drawn: Mapping[str, str] | None = None) -> str:
        """Return the text of report.html with the figures, drawn here if need be."""
        ours = self.findings
        return page.page(
            title=f"{self.run['experiment']} on {self.run['model']}",
            question=self.title(),
            heading_lines=words.heading(self.run, ours),
            findings=ours,
            table_header=words.header(ours),
            table_rows=words.rows(ours),
            sections=self.sections(),
            figures=self.figures() if drawn is None else drawn,
            tables=waiting.tables(self.waited),
            timeline=timeline.section(self.pictured),
        )

    def texts(self) -> dict[str, str]:
        """Return every file that is made of the rows alone, by its name in the run folder."""
        drawn = self.figures()
        files = {f"figures/{name}.svg": svg for name, svg in drawn.items()}
        kept = {KEPT: strict_json(self.waited.to_dict(), indent=1) + "\n"} if self.waited.blocks else {}
        kept |= {timeline.KEPT: timeline.to_keep(self.pictured)} if self.pictured.panels else {}
        return {"report.md": self.markdown(), "report.html": self.html(drawn), **files, **kept}

    def write(self) -> None:
        """Write report.md, report.html and figures into the run folder."""
        (self.path / "figures").mkdir(exist_ok=True)
        for name, text in self.texts().items():
            write_synced(self.path / name, text)

    def print(self, console: Console | None = None) -> None:
        """Print the verdict table, what moved and the notes."""
        console = console or Console()
        if not console.is_terminal:
            console.width = WIDTH
        console.print(f"\n{self.title()}", style="bold", markup=False)
        for line in words.heading(self.run, self.findings):
            console.print(line, markup=False, highlight=False)
        console.print(_table(self.findings))
        for heading, lines in self.sections().items():
            if heading in PRINTED:
                for line in lines:
                    console.print("- " + line.replace("**", ""), markup=False, highlight=False)
        for name in ("report.md", "report.html"):
            console.print(f"report: {self.path / name}", markup=False, highlight=False, soft_wrap=True)


def write_reports(path: Path) -> Report:
    """Analyse a run folder and write its reports; RunFolderError, with all rows kept, when there is no room."""
    report = Report.load(path)
    try:
        report.write()
    except OSError as error:
        raise RunFolderError(
            f"{path}: its reports cannot be written: {error.strerror or error}; all rows are kept: make room and write "
            "them with --resume"
        ) from error
    return report


PRINTED = ("Main effects", "Together and apart", "What moved", "What this does not show")


def _markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return lines + ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]


def _table(ours: Findings) -> RichTable:
    first, *others = words.header(ours)
    table = RichTable(first, *others)
    table.columns[0].min_width, table.columns[0].overflow = 26, "fold"
    for row in words.rows(ours):
        table.add_row(*(Text(cell) for cell in row))
    return table
