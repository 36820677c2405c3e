"""`python -m omnilab.pack`: a run as one zip to attach to a pull request."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from omnilab.command import run_typer
from omnilab.experiment.checks import bundle

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def pack(
    run: Annotated[Path, typer.Argument(help="run folder, or a zip of one")],
    out: Annotated[Path | None, typer.Option(help="zip to write; default RUN.zip beside the folder")] = None,
    audio: Annotated[bool, typer.Option("--audio", help="with the sounds to listen to")] = False,
    no_spans: Annotated[bool, typer.Option("--no-spans", help="without span rows, the largest part")] = False,
    rewrite: Annotated[
        bool, typer.Option("--rewrite", help="write the reports anew first, as this version does")
    ] = False,
) -> None:
    """Check a run against its rows, and pack rows, report, metadata and hashes into one zip; no audio unless asked.

    Exit: 0 packed, 1 the run does not verify, 2 not a run folder, or the zip exists already.
    """
    with bundle.opened(run) as folder:
        if rewrite:
            bundle.rewrite(folder)
        target = out or run.resolve().with_name(run.resolve().name.removesuffix(".zip") + ".zip")
        packed = bundle.pack(folder, target, audio=audio, spans=not no_spans)
    left_out = ", ".join(f"{name} ({count} files)" for name, count in packed.left_out.items()) or "nothing"
    print(f"{packed.path}: {packed.files} files, {packed.size / 2**20:.1f} MiB; left out: {left_out}")
    print(f"check it anywhere: python -m omnilab.verify {packed.path.name}")


def main(argv: list[str] | None = None) -> int:
    """Run the command; return its exit status."""
    return run_typer(app, argv, "pack")


if __name__ == "__main__":
    sys.exit(main())
