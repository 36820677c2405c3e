"""`python -m omnilab.trace`: a run's spans as traces to open in Perfetto, chrome://tracing or TensorBoard."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from omnilab.command import run_typer
from omnilab.errors import BadInput
from omnilab.experiment.checks.bundle import opened
from omnilab.experiment.reports.report import Report
from omnilab.profile import summaries
from omnilab.profile.chrome import from_run, variants_of, write_trace
from omnilab.profile.files import SPANS_TRACE, TRACES, trace_folder
from omnilab.profile.queries import need_perfetto, run_queries

HOW = "open it: https://ui.perfetto.dev, 'Open trace file' (it stays on your machine), or chrome://tracing, 'Load'"
app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def trace(
    run: Annotated[Path, typer.Argument(help="run folder, or the zip that `pack` made of one")],
    variant: Annotated[str | None, typer.Option(help="one variant; default each of the run's")] = None,
    block: Annotated[int | None, typer.Option(help="which of its trials; default the first that succeeded")] = None,
    out: Annotated[Path | None, typer.Option(help="file to write; default RUN/traces/VARIANT/spans.json.gz")] = None,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="summaries for TensorBoard beside each trace: scalars, text, sounds")
    ] = False,
    queries: Annotated[
        bool, typer.Option("--queries", help="ask each trace: busy per stage, wait per edge, chunk latency")
    ] = False,
    processor: Annotated[
        Path | None, typer.Option(help="Perfetto's trace_processor_shell for --queries; default its package's own")
    ] = None,
) -> None:
    """Write a trial's spans as one trace: a track a stage and loop, an arrow a chunk.

    Exit: 0 written, 2 not a run folder, no such variant or block, spans that were not packed, a file in the way, or
    what --tensorboard or --queries need is not there.
    """
    if tensorboard and out is not None:
        raise BadInput("--tensorboard writes into RUN/traces/VARIANT, not beside --out; leave one of them away")
    if tensorboard:
        summaries.need_tensorboard()
    if queries:
        need_perfetto(processor)
    with opened(run) as folder:
        names = variants_of(folder) if variant is None else [variant]
        if out is not None:
            _refuse(out, names)
        paths = [_written(folder, name, block, out or trace_folder(_home(run), name) / SPANS_TRACE) for name in names]
        for line in _answers(dict(zip(names, paths, strict=True)), processor) if queries else ():
            print(line)
        if tensorboard:
            report = Report.load(folder)
            for name in names:
                _summarize(report, name, trace_folder(_home(run), name))
    print(HOW)
    if out is None and (tensorboard or run.is_dir()):
        ours = ", our tab; with --tensorboard also scalars, text and sounds in TensorBoard's own"
        print(f"see it: tensorboard --logdir {_home(run) / TRACES}{'' if tensorboard else ours}")
    if not run.is_dir():
        print("unpack the zip to see the run in our tab of TensorBoard")


def _written(folder: Path, variant: str, block: int | None, path: Path) -> Path:
    spans = from_run(folder, variant, block)
    where = f"{variant}, block {spans['block'].iloc[0]}"
    for line in _said(path, write_trace(path, spans, trial=where), spans.attrs["spans_lost"]):
        print(line)
    return path


def _answers(paths: Mapping[str, Path], processor: Path | None) -> Iterator[str]:
    for name, path in paths.items():
        for answer in run_queries(path, processor):
            first, *table = answer.lines()
            yield from (f"{name}, {first}", *table)


def _summarize(report: Report, variant: str, folder: Path) -> None:
    path = summaries.write_summaries(report, variant, folder)
    print(f"{path}: {variant}, scalars, text and sounds for TensorBoard")


def _refuse(out: Path, names: list[str]) -> None:
    if len(names) > 1:
        raise BadInput(f"--out is one file and the run has {len(names)} variants; choose one with --variant")
    if out.exists():
        raise BadInput(f"{out}: exists already; name another with --out")


def _home(run: Path) -> Path:
    """Return the run folder; for a zip, the folder of its name beside it."""
    return run if run.is_dir() else run.with_suffix("")


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
