"""`python -m omnilab.trace`: the spans of a run's trials as traces to open in Perfetto or chrome://tracing."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from omnilab.command import run_typer
from omnilab.errors import BadInput
from omnilab.experiment.checks.bundle import opened
from omnilab.profile.chrome import from_run, variants_of, write_trace

HOW = "open it: https://ui.perfetto.dev, 'Open trace file' (it stays on your machine), or chrome://tracing, 'Load'"
app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def trace(
    run: Annotated[Path, typer.Argument(help="run folder, or the zip that `pack` made of one")],
    variant: Annotated[str | None, typer.Option(help="one variant; default each of the run's")] = None,
    block: Annotated[int | None, typer.Option(help="which of its trials; default the first that succeeded")] = None,
    out: Annotated[Path | None, typer.Option(help="file to write; default RUN/traces/VARIANT/merged.json.gz")] = None,
) -> None:
    """Write a trial's spans as one trace: a track a stage and loop, an arrow a chunk.

    Exit: 0 written, 2 not a run folder, no such variant or block, spans that were not packed, or a file in the way.
    """
    with opened(run) as folder:
        names = variants_of(folder) if variant is None else [variant]
        if out is not None:
            _refuse(out, names)
        for name in names:
            spans = from_run(folder, name, block)
            where = f"{name}, block {spans['block'].iloc[0]}"
            path = out or _home(run) / "traces" / _file_name(name) / "merged.json.gz"
            for line in _said(path, write_trace(path, spans, trial=where), spans.attrs["spans_lost"]):
                print(line)
    print(HOW)


def _refuse(out: Path, names: list[str]) -> None:
    if len(names) > 1:
        raise BadInput(f"--out is one file and the run has {len(names)} variants; choose one with --variant")
    if out.exists():
        raise BadInput(f"{out}: exists already; name another with --out")


def _home(run: Path) -> Path:
    """Return the run folder; for a zip, the folder of its name beside it."""
    return run if run.is_dir() else run.with_suffix("")


def _file_name(variant: str) -> str:
    return re.sub(r"[^\w.+-]+", "_", variant).lstrip(".") or "_"


def _said(path: Path, metadata: dict[str, Any], lost: int) -> list[str]:
    arrows, unmatched, crossed = (metadata[name] for name in ("arrows", "unmatched", "crossed"))
    lines = [f"{path}: {metadata['trial']}, {metadata['spans']:,} spans, {arrows:,} chunks as arrows"]
    lines += [f"  {unmatched:,} chunks have one end only: no arrow"] if unmatched else []
    lines += (
        [f"  {crossed:,} chunks were taken before they were sent: the clocks of two stages differ"] if crossed else []
    )
    return lines + ([f"  {lost:,} spans were lost: a ring was full, so the earliest are not in it"] if lost else [])


def main(argv: list[str] | None = None) -> int:
    """Run the command; return its exit status."""
    return run_typer(app, argv, "trace")


if __name__ == "__main__":
    sys.exit(main())
