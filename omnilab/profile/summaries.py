"""A run as TensorBoard summaries: scalars by block, the verdicts as text, sounds; stock TensorBoard shows them."""

from __future__ import annotations

import wave
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from omnilab.errors import BadInput
from omnilab.experiment.reports import words
from omnilab.experiment.reports.report import Report
from omnilab.profile.files import Sound, sounds

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

SUFFIX = ".omnilab"  # of our event files, so that a second call replaces them and no others
MOST_SECONDS = 30  # of a sound: stock TensorBoard reads event files whole


def need_tensorboard() -> None:
    """Raise BadInput, naming the extra, where summaries cannot be written."""
    try:
        import torch.utils.tensorboard  # noqa: F401 (whether it is there)
    except ImportError as error:
        raise BadInput("--tensorboard needs torch and tensorboard: pip install 'omnilab[trace]'") from error


def write_summaries(report: Report, variant: str, folder: Path) -> Path:
    """Write a variant's scalars, text and sounds into one event file in `folder`; return it.

    Scalars: the metrics of each trial (medians over its requests) and its span sums in ms, the block as step; trials
    that failed have none. Text: the variant's lines of the report, for the baseline the verdict table too. Sounds: at
    most MOST_SECONDS of each. A file that an earlier call wrote is replaced. BadInput without tensorboard, or where the
    folder cannot be written.
    """
    need_tensorboard()
    from torch.utils.tensorboard import SummaryWriter

    try:
        folder.mkdir(parents=True, exist_ok=True)
        before = _ours(folder)
        # the time of each value is the run's: equal runs look equal, whenever their summaries were written
        with SummaryWriter(str(folder), filename_suffix=SUFFIX) as writer:
            _write(writer, report, variant, _epoch_s(report.run))
        for path in before:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise BadInput(f"{folder}: cannot be written: {error.strerror or error}") from error
    return next(iter(_ours(folder) - before))


def _ours(folder: Path) -> set[Path]:
    return set(folder.glob(f"events.out.tfevents.*{SUFFIX}"))


def _write(writer: SummaryWriter, report: Report, variant: str, time_s: float) -> None:
    for step, tag, value in _scalars(report, variant):
        writer.add_scalar(tag, value, step, walltime=time_s)
    for tag, text in _texts(report, variant):
        writer.add_text(tag, text, 0, walltime=time_s)
    for sound in sounds(report.path, [variant]):
        tag, samples = _samples(sound)
        writer.add_audio(tag, samples, 0, sample_rate=sound.sample_rate, walltime=time_s)


def _epoch_s(run: Mapping[str, Any]) -> float:
    return datetime.strptime(run["started"], "%Y-%m-%dT%H:%M:%S%z").timestamp()


def _scalars(report: Report, variant: str) -> Iterator[tuple[int, str, float]]:
    """Give (block, tag, value), a tag a metric and a span name; what is undefined is left out."""
    for line in sorted(report.trials(variant), key=lambda line: line["block"]):
        for name, value in line["metrics"].items():
            if value is not None:
                yield line["block"], f"metrics/{name}", value
        for span, ms in line["spans_ms"].items():
            yield line["block"], f"spans_ms/{span}", ms


def _texts(report: Report, variant: str) -> Iterator[tuple[str, str]]:
    """Give (tag, markdown)."""
    ours = report.findings
    if variant == ours.baseline_name:
        heading = "  \n".join(words.heading(report.run, ours))
        yield "verdicts", f"## {report.title()}\n\n{heading}\n\n{_table(words.header(ours), words.rows(ours))}"
    sections = report.sections()
    said = [(title, [line for line in lines if _is_of(line, variant)]) for title, lines in sections.items()]
    parts = [f"## {title}\n\n" + "\n".join(f"- {line}" for line in lines) for title, lines in said if lines]
    if parts:
        yield "report", "\n\n".join(parts)


def _is_of(line: str, variant: str) -> bool:
    return line.startswith(f"**{variant}**")


def _table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _samples(sound: Sound) -> tuple[str, np.ndarray]:
    """Return a tag, and samples [1, n] in -1 .. 1."""
    most = MOST_SECONDS * sound.sample_rate
    with wave.open(str(sound.path), "rb") as file:
        data = file.readframes(most)
        cut = f" (its first {MOST_SECONDS} s)" if file.getnframes() > most else ""
    return f"request {sound.request}{cut}", np.frombuffer(data, dtype="<i2").astype(np.float32)[None] / 32767
