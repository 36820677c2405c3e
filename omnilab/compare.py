"""`python -m omnilab.compare`: does a second run repeat the first, and may the two be compared at all?"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from omnilab.command import DONE, FAILED, run_typer
from omnilab.experiment.checks.bundle import opened
from omnilab.experiment.checks.comparison import Comparison, Pair
from omnilab.experiment.checks.comparison import compare as compare_reports
from omnilab.experiment.reports import words
from omnilab.experiment.reports.report import WIDTH, Report
from omnilab.experiment.results import strict_json

FORCED = "NOT COMPARABLE: "  # before every line of a comparison by force
app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def compare(
    a: Annotated[Path, typer.Argument(metavar="RUN", help="run folder or zip")],
    b: Annotated[Path, typer.Argument(metavar="RUN", help="another, compared with the first")],
    force: Annotated[
        bool, typer.Option("--force", help="compare what cannot be compared, and mark every line")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print the result as JSON on standard output")] = False,
) -> int:
    """Compare two runs' effects on the primary metric; refuse, with the reasons, what cannot be compared.

    Exit: 0 compared, 1 refused, 2 not a run.
    """
    with ExitStack() as stack:
        reports = [Report.load(stack.enter_context(opened(path))) for path in (a, b)]
        found = compare_reports(*reports)
    refused = bool(found.reasons) and not (force and found.pairs)
    if as_json:
        print(strict_json({"a": a, "b": b, "forced": force, **found.to_dict()}, indent=1))
    elif refused:
        print("\n".join([f"{a} and {b} cannot be compared:", *(f"- {reason}" for reason in found.reasons)]))
    else:
        _print(found, (str(a), str(b)))
    return FAILED if refused else DONE


def _print(found: Comparison, names: tuple[str, str]) -> None:
    mark, console = FORCED if found.reasons else "", Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = WIDTH
    title, (a, b) = words.TITLES[found.primary], names
    means = [words.amount(mean, found.primary) for mean in (found.baseline_a, found.baseline_b)]
    heading = [f"A: {a}, baseline's mean {title} {means[0]}", f"B: {b}, baseline's mean {title} {means[1]}"]
    for line in [*heading, *found.reasons, *found.notes]:
        console.print(mark + line, soft_wrap=True)
    table = Table("variant", f"A: {title}", "verdict", f"B: {title}", "verdict", "B over A", "together")
    for pair in found.pairs:
        table.add_row(*(Text(cell) for cell in _cells(pair, mark)))
    console.print(table)


def _cells(pair: Pair, mark: str) -> list[str]:
    over = "-" if pair.ratio is None else f"{pair.ratio:.2f}"
    if pair.low is not None and pair.high is not None:
        over += f" [{pair.low:.2f}, {pair.high:.2f}]"
    sides = [words.ratio_text(pair.a), pair.verdict_a, words.ratio_text(pair.b), pair.verdict_b]
    return [f"{mark}{pair.name} (against {pair.against})", *sides, over, pair.word]


def main(argv: list[str] | None = None) -> int:
    """Run the command; return its exit status."""
    return run_typer(app, argv, "compare")


if __name__ == "__main__":
    sys.exit(main())
