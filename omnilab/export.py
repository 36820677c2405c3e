"""`python -m omnilab.export`: the requests of a run's trial as OpenTelemetry traces, to a file or an endpoint."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from omnilab.command import run_typer
from omnilab.errors import BadInput
from omnilab.experiment.checks.bundle import opened
from omnilab.profile.chrome import variants_of
from omnilab.profile.otel import read_trial, traces
from omnilab.profile.otlp import send, write_file

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="run folder, or the zip that `pack` made of one")],
    variant: Annotated[str | None, typer.Option(help="which variant; default the run's first")] = None,
    block: Annotated[int | None, typer.Option(help="which of its trials; default the first that succeeded")] = None,
    out: Annotated[Path | None, typer.Option(help="file of OTLP JSON lines to write")] = None,
    endpoint: Annotated[str | None, typer.Option(help="OTLP/HTTP, as http://localhost:4318/v1/traces")] = None,
    timeout: Annotated[float, typer.Option(help="seconds that the endpoint has for a trace")] = 10,
) -> None:
    """Write or send a trial's requests: a trace a request, a span a stage.

    Exit: 0 done, 1 the endpoint did not take them, 2 not a run folder, no such variant or block, spans that were not
    packed, a file in the way, or OpenTelemetry is not installed.
    """
    if (out is None) == (endpoint is None):
        raise BadInput("name where to: --out FILE or --endpoint URL, one of them")
    if timeout <= 0:
        raise BadInput(f"--timeout must be above 0, not {timeout:g}")
    if out is not None and out.exists():
        raise BadInput(f"{out}: exists already; name another with --out")
    with opened(run) as folder:
        name = variant or variants_of(folder)[0]
        trial = read_trial(folder, name, block)
    found = traces(trial)
    count = send(endpoint, found, timeout) if endpoint is not None else write_file(out or Path(), found)
    where = f"{name}, block {trial.attributes['omnilab.block']}"
    print(f"{endpoint or out}: {where}, {count} traces, {sum(map(len, found))} spans")


def main(argv: list[str] | None = None) -> int:
    """Run the command; return its exit status."""
    return run_typer(app, argv, "export")


if __name__ == "__main__":
    sys.exit(main())
