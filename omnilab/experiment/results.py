"""The run folder: what was planned, a line a trial as it finishes, and the rows behind it.

`run.json` is written before the first trial; `trials.jsonl` is appended and synced, failed trials too;
`requests.parquet`, `counters.parquet` and `spans.parquet` are folders of one file a trial, which pandas.read_parquet
reads as one table.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import shutil
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from omnilab.errors import RunFolderError
from omnilab.trial import Trial

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA_VERSION = 1
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
        "start_ns": "int64", "end_ns": "int64",
    },
}  # fmt: skip
WHERE = {"kind": "string", "block": "int64", "position": "int64", "variant": "string"}


class RunFolder:
    """A folder of results that is being written. Make it with `create`."""

    def __init__(self, path: Path, made: Path | None = None) -> None:
        self.path = path
        self._made = made  # outermost folder that `create` made

    @classmethod
    def create(cls, path: Path, run: Mapping[str, Any]) -> RunFolder:
        """Make the folder and write run.json; RunFolderError, and nothing left behind, when that cannot be."""
        check_folder(path)
        made = _first_missing(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            _write_synced(path / "run.json", strict_json({"schema_version": SCHEMA_VERSION, **run}, indent=1) + "\n")
            (path / "trials.jsonl").touch()
        except OSError as error:
            if made is not None:
                shutil.rmtree(made, ignore_errors=True)
            raise RunFolderError(f"{path}: cannot be written: {error.strerror or error}") from error
        return cls(path, made)

    def discard(self) -> None:
        """Take back what `create` made: nothing was measured."""
        if self._made is not None:
            shutil.rmtree(self._made, ignore_errors=True)
        else:
            for name in ("run.json", "trials.jsonl"):
                (self.path / name).unlink(missing_ok=True)

    def add(self, where: Mapping[str, Any], row: Mapping[str, Any], trial: Trial | None) -> dict[str, Any]:
        """Write the rows of a trial, then its line, synced; return the line. `where` has the keys of WHERE."""
        files = {} if trial is None else self._write_rows(where, trial)
        line = {**where, **row, "files": files}
        with open(self.path / "trials.jsonl", "a", encoding="utf-8") as lines:
            lines.write(strict_json(line) + "\n")
            lines.flush()
            os.fsync(lines.fileno())
        return line

    def write_report(self, text: str) -> Path:
        """Write report.md."""
        _write_synced(self.path / "report.md", text)
        return self.path / "report.md"

    def _write_rows(self, where: Mapping[str, Any], trial: Trial) -> dict[str, str]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        hashes = {}
        for name, frame in (("requests", trial.requests), ("counters", trial.counters), ("spans", trial.spans)):
            schema = _schema({**WHERE, **COLUMNS[name]})
            columns: dict[str, list[Any]] = {key: [value] * len(frame) for key, value in where.items()}
            columns |= {key: _values(frame[key]) if key in frame else [] for key in COLUMNS[name]}
            file = self.path / f"{name}.parquet" / f"{where['kind']}-{where['block']}-{where['position']}.parquet"
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


def read_run(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return run.json and the lines of trials.jsonl; a last line cut off by a kill is left out."""
    try:
        run = json.loads((path / "run.json").read_text(encoding="utf-8"))
        text = (path / "trials.jsonl").read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{path}: is not a run folder: {error}") from error
    if run.get("schema_version") != SCHEMA_VERSION:
        raise RunFolderError(f"{path}: has schema version {run.get('schema_version')}, not {SCHEMA_VERSION}")
    return run, [json.loads(line) for line in text.split("\n")[:-1] if line]


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


def _write_synced(path: Path, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
