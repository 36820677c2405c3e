"""What lies in a run folder beside its rows: sounds to listen to, and traces."""

from __future__ import annotations

import re
import wave
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from omnilab.errors import RunFolderError

AUDIO, TRACES, MERGED, SPANS_TRACE = "audio", "traces", "merged.json.gz", "spans.json.gz"
# what a trace file is, by how its name ends; the first that fits
KINDS = {
    MERGED: "merged trace: Perfetto, chrome://tracing",
    SPANS_TRACE: "trace of the spans: Perfetto, chrome://tracing",
    ".pt.trace.json": "torch.profiler: Perfetto, chrome://tracing, torch-tb-profiler",
    ".pt.trace.json.gz": "torch.profiler: Perfetto, chrome://tracing, torch-tb-profiler",
    ".speedscope.json": "py-spy: speedscope",
    ".json.gz": "Perfetto, chrome://tracing",
}


@dataclass(frozen=True, slots=True)
class Sound:
    """A request's sound as a run kept it."""

    variant: str
    request: int
    path: Path
    seconds: float
    sample_rate: int


@dataclass(frozen=True, slots=True)
class TraceFile:
    """A file below RUN/traces; `name` is its path from there."""

    name: str
    kind: str
    path: Path
    num_bytes: int

    @property
    def for_perfetto(self) -> bool:
        """Can Perfetto open it?"""
        return "Perfetto" in self.kind


def trace_folder(run: Path, variant: str) -> Path:
    """Return where a variant's traces and summaries lie: to TensorBoard a run of the variant's name."""
    return run / TRACES / (_stem(variant).lstrip(".") or "_")


def sounds(run: Path, variants: Iterable[str]) -> list[Sound]:
    """Return the sounds of a run folder, by variant and request; RunFolderError for a damaged one."""
    # named as RunFolder.write_audio names them
    return [sound for variant in variants for sound in _sounds(run / AUDIO, variant)]


def trace_files(run: Path) -> list[TraceFile]:
    """Return the traces and flame graphs below RUN/traces, by name; links are no part of a run."""
    root = run / TRACES
    found = []
    for path in sorted(root.rglob("*")):
        kind = next((said for end, said in KINDS.items() if path.name.endswith(end)), None)
        if kind is not None and _plain(path, root):
            found.append(TraceFile(path.relative_to(root).as_posix(), kind, path, path.stat().st_size))
    return found


def _sounds(folder: Path, variant: str) -> list[Sound]:
    found = []
    for path in folder.glob("*.wav"):
        stem, _, number = path.stem.rpartition("-")
        if stem == _stem(variant) and number.isdecimal() and _plain(path, folder):
            found.append(_sound(path, variant, int(number)))
    return sorted(found, key=lambda sound: sound.request)


def _sound(path: Path, variant: str, request: int) -> Sound:
    try:
        with wave.open(str(path), "rb") as file:
            rate = file.getframerate()
            return Sound(variant, request, path, file.getnframes() / rate, rate)
    except (wave.Error, EOFError, ZeroDivisionError, OSError) as error:
        raise RunFolderError(f"{path}: is no sound, or is damaged: {error}") from error


def _plain(path: Path, root: Path) -> bool:
    """Is it a file, and neither it nor a folder on the way to it a link?"""
    return path.is_file() and path.resolve() == root.resolve() / path.relative_to(root)


def _stem(variant: str) -> str:
    return re.sub(r"[^\w.+-]+", "_", variant)
