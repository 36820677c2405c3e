"""`python -m omnilab.verify`: is every number of a run what its rows give? On any machine, without torch or a GPU."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from omnilab.command import DONE, FAILED, run_typer
from omnilab.experiment.checks.bundle import opened
from omnilab.experiment.checks.verification import Verification
from omnilab.experiment.checks.verification import verify as verify_folder

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def verify(run: Annotated[Path, typer.Argument(help="run folder, or the zip that `pack` made of one")]) -> int:
    """Compute everything a run says from its rows again, and name what differs.

    Exit: 0 all equal, 1 something differs, 2 not a run folder or a damaged zip.
    """
    with opened(run) as folder:
        found = verify_folder(folder)
    for line in lines_of(found, str(run)):
        print(line)
    return FAILED if found.differences else DONE


def lines_of(found: Verification, name: str) -> list[str]:
    """Return what there is to say: a line a check, a line a difference, the answer last."""
    lines = []
    for check in found.checks:
        lines.append(f"{'DIFFERS' if check.differences else 'equal':8}{check.name}: {check.said}".rstrip(": "))
        lines += [f"  {difference}" for difference in check.differences]
    lines += [f"note    {note}" for note in found.notes]
    count = len(found.differences)
    answer = f"{count} difference{'s' * (count != 1)} between what it says and what its rows give" if count else (
        "everything that it says is what its rows give"
    )  # fmt: skip
    return [*lines, f"{name}: {answer}"]


def main(argv: list[str] | None = None) -> int:
    """Run the command; return its exit status."""
    return run_typer(app, argv, "verify")


if __name__ == "__main__":
    sys.exit(main())
