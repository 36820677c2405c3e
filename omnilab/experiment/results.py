"""The run folder: what was planned, a line a trial as it finishes, and the rows behind it.

`run.json` is written before the first trial; `trials.jsonl` is appended and synced, failed and aborted trials too;
`requests.parquet`, `counters.parquet` and `spans.parquet` are folders of one file a trial, which pandas.read_parquet
reads as one table. One process at a time writes: a lock on trials.jsonl, freed with the process, says who.
"""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import json
import math
import os
import re
import shutil
import wave
from collections.abc import Mapping
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from omnilab.errors import RunFolderError
from omnilab.experiment.checks.differences import brief
from omnilab.trial import RequestRecord, Trial

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA_VERSION = 2
ABORTED = "aborted"  # how the error of a trial begins that an interrupt ended
# Types are fixed, so that a table without a single value in a column still fits the others.
COLUMNS = {
    "requests": {
        "index": "int64", "request_id": "string", "start_s": "double", "first_text_s": "double",
        "last_text_s": "double", "first_audio_s": "double", "last_audio_s": "double", "end_s": "double",
        "input_tokens": "int64", "output_tokens": "int64", "frames": "int64", "audio_s": "double",
        "finish_reason": "string", "error": "string",
        "text_sha": "string", "codes_sha": "string", "audio_sha": "string", "text_times_s": "list:double",
        "text_token_counts": "list:int64", "audio_times_s": "list:double", "audio_samples": "list:int64",
    },
    "counters": {"stage": "string", "thread": "string", "edge": "string", "counter": "string", "value": "int64"},
    "spans": {
        "stage": "string", "thread": "string", "name": "string", "request": "string", "chunk": "int64",
        "start_ns": "int64", "end_ns": "int64", "num_bytes": "int64",
    },
}  # fmt: skip
WHERE = {"kind": "string", "block": "int64", "position": "int64", "variant": "string"}
# What decides what is measured, and in which order: the part of run.json that `plan_hash` is of. The order counts.
PLAN_KEYS = (
    "experiment", "question", "model", "device", "cuda", "topology", "seed", "rule", "asked", "primary", "margin",
    "design", "baseline", "variants", "orders", "workload", "workload_seeds", "gate", "arms", "subject",
)  # fmt: skip


class RunFolder:
    """A folder of results that is being written. Make it with `create` or `resume`, and close it."""

    def __init__(self, path: Path, lines: list[dict[str, Any]], made: Path | None = None) -> None:
        """Take the lock; RunFolderError when another process is writing."""
        self.path, self.lines = path, lines
        self._made = made  # outermost folder that `create` made
        self._file = open(path / "trials.jsonl", "ab")  # noqa: SIM115 (closed by `close`)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.close()
            raise RunFolderError(
                f"{path}: another process is writing it; wait for it, or name another --out"
            ) from error

    @classmethod
    def create(cls, path: Path, run: Mapping[str, Any]) -> RunFolder:
        """Make the folder and write run.json; RunFolderError, and nothing left behind, when that cannot be."""
        check_folder(path)
        made = _first_missing(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            write_synced(path / "run.json", strict_json({"schema_version": SCHEMA_VERSION, **run}, indent=1) + "\n")
            (path / "trials.jsonl").touch()
        except OSError as error:
            if made is not None:
                shutil.rmtree(made, ignore_errors=True)
            raise RunFolderError(f"{path}: cannot be written: {error.strerror or error}") from error
        return cls(path, [], made)

    @classmethod
    def resume(cls, path: Path) -> RunFolder:
        """Go on with a folder that was begun; a last line that a kill cut off is taken away."""
        _, lines = read_run(path)
        folder = cls(path, lines)
        folder._cut_to_whole_lines()
        return folder

    def close(self) -> None:
        """Let go of the folder."""
        self._file.close()

    def discard(self) -> None:
        """Take back what `create` made: nothing was measured."""
        self.close()
        if self._made is not None:
            shutil.rmtree(self._made, ignore_errors=True)
        else:
            for name in ("run.json", "trials.jsonl"):
                (self.path / name).unlink(missing_ok=True)

    def add(self, where: Mapping[str, Any], row: Mapping[str, Any], trial: Trial | None) -> dict[str, Any]:
        """Write the rows of a trial, then its line, synced; return the line. `where` has the keys of WHERE.

        RunFolderError when there is no room: what was written before is whole, and the run can be resumed.
        """
        kept = self._file.tell()
        try:
            files = {} if trial is None else self._write_rows(where, trial)
            line = json.loads(strict_json({**where, **row, "files": files}))
            self._file.write((json.dumps(line, ensure_ascii=False) + "\n").encode())
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            with suppress(OSError):
                self._cut_to(kept)
            raise RunFolderError(
                f"{self.path}: cannot be written: {error.strerror or error}; its {len(self.lines)} finished rows are "
                "kept: make room and go on with --resume"
            ) from error
        self.lines.append(line)
        return line

    def write_audio(self, variant: str, record: RequestRecord, sample_rate: int) -> None:
        """Write a request's sound as audio/VARIANT-INDEX.wav, 16 bit, to listen to."""
        if record.audio is None or not len(record.audio):
            return
        (self.path / "audio").mkdir(exist_ok=True)
        name = re.sub(r"[^\w.+-]+", "_", variant)
        with wave.open(str(self.path / "audio" / f"{name}-{record.index}.wav"), "wb") as file:
            file.setparams((1, 2, sample_rate, 0, "NONE", ""))
            file.writeframes((np.clip(record.audio, -1, 1) * 32767).astype("<i2").tobytes())

    def _cut_to_whole_lines(self) -> None:
        data = (self.path / "trials.jsonl").read_bytes()
        self._cut_to(data.rfind(b"\n") + 1)

    def _cut_to(self, size: int) -> None:
        self._file.truncate(size)
        self._file.seek(size)

    def _write_rows(self, where: Mapping[str, Any], trial: Trial) -> dict[str, str]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        named = {file for line in self.lines for file in line["files"]}
        hashes = {}
        for name, frame in (("requests", trial.requests), ("counters", trial.counters), ("spans", trial.spans)):
            schema = _schema({**WHERE, **COLUMNS[name]})
            columns: dict[str, list[Any]] = {key: [value] * len(frame) for key, value in where.items()}
            columns |= {key: _values(frame[key]) if key in frame else [] for key in COLUMNS[name]}
            stem, again = f"{where['kind']}-{where['block']}-{where['position']}", 1
            while f"{name}.parquet/{stem}.parquet" in named:  # measured again after an interruption: rows stay
                again += 1
                stem = f"{where['kind']}-{where['block']}-{where['position']}-{again}"
            file = self.path / f"{name}.parquet" / f"{stem}.parquet"
            file.parent.mkdir(exist_ok=True)
            pq.write_table(pa.table(columns, schema=schema), file, compression="zstd")
            hashes[str(file.relative_to(self.path))] = hashlib.sha256(file.read_bytes()).hexdigest()
        return hashes


def check_folder(path: Path) -> None:
    """Raise RunFolderError unless `path` can become a new run folder. Writes nothing."""
    if path.exists() and not path.is_dir():
        raise RunFolderError(f"{path}: is a file; name a new folder with --out")
    if path.exists() and any(path.iterdir()):
        raise RunFolderError(f"{path}: is not empty; name a new folder with --out")
    parent = path
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise RunFolderError(f"{path}: cannot be written, because {parent} cannot; name another folder with --out")


def refuse_another(path: Path, run: Mapping[str, Any]) -> None:
    """Raise RunFolderError, naming what differs, unless `path` holds a run of this very plan, machine and code."""
    begun, _ = read_run(path)
    asked = json.loads(strict_json(run))
    differing = [key for key in asked if begun.get(key) != asked[key] and key != "plan_hash"]
    if differing:
        said = "; ".join(f"{key}: {brief(begun.get(key))} there, {brief(asked[key])} here" for key in differing)
        raise RunFolderError(f"{path}: holds another run, so it cannot be resumed: {said}")


def read_run(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return run.json and the lines of trials.jsonl; a last line cut off by a kill is left out."""
    try:
        run = json.loads((path / "run.json").read_text(encoding="utf-8"))
        text = (path / "trials.jsonl").read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        if points := sorted(file.parent.name for file in path.glob("*/run.json")):
            raise RunFolderError(
                f"{path}: is not a run folder; it holds {', '.join(points)}: name one of them"
            ) from error
        raise RunFolderError(f"{path}: is not a run folder: {error}") from error
    if not isinstance(run, dict):
        raise RunFolderError(f"{path}: is not a run folder: run.json holds {type(run).__name__}")
    if run.get("schema_version") != SCHEMA_VERSION:
        raise RunFolderError(f"{path}: has schema version {run.get('schema_version')}, not {SCHEMA_VERSION}")
    return run, [_line(path, number, text) for number, text in enumerate(text.split("\n")[:-1], 1)]


def plan_hash(run: Mapping[str, Any]) -> str:
    """Return the hash of a plan, from `Plan.to_dict` or from the run.json that it was written to."""
    return hashlib.sha256(strict_json({key: run[key] for key in PLAN_KEYS if key in run}).encode()).hexdigest()


def aborted(line: Mapping[str, Any]) -> bool:
    """Was it a trial that an interrupt ended?"""
    return str(line.get("error") or "").startswith(ABORTED)


def _line(path: Path, number: int, text: str) -> dict[str, Any]:
    try:
        line = json.loads(text)
        if not {"kind", "block", "variant"} <= set(line):
            raise ValueError("no trial")
        return line
    except (ValueError, TypeError) as error:
        raise RunFolderError(f"{path}/trials.jsonl, line {number}: is damaged: {error}") from error


def strict_json(value: Any, indent: int | None = None) -> str:
    """Return JSON that any parser takes: NaN and infinities become null."""
    return json.dumps(plain(value), allow_nan=False, ensure_ascii=False, indent=indent)


def plain(value: Any) -> Any:
    """Return numbers of any library, paths, sets, dataclasses and enumerations as plain JSON values."""
    if isinstance(value, Enum):
        return plain(value.value)
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted((plain(inner) for inner in value), key=str)
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    if isinstance(value, (np.generic, np.ndarray)):
        return plain(value.tolist())
    if callable(tolist := getattr(value, "tolist", None)):  # a tensor; torch is not imported here
        return plain(tolist())
    return str(value)


def _values(column: Any) -> list[Any]:
    return [None if isinstance(value, float) and math.isnan(value) else value for value in column.tolist()]


def _schema(columns: Mapping[str, str]) -> pa.Schema:
    import pyarrow as pa

    types = {"int64": pa.int64(), "double": pa.float64(), "string": pa.string()}
    types |= {f"list:{name}": pa.list_(types[name]) for name in ("int64", "double")}
    return pa.schema([(name, types[kind]) for name, kind in columns.items()])


def _first_missing(path: Path) -> Path | None:
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    return missing[-1] if missing else None


def write_synced(path: Path, text: str) -> None:
    """Write a text and wait until it is on the disk."""
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
