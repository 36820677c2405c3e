"""Everything a run says, computed again from its rows: what differs, and where. Needs no torch.

Wall time and processor seconds of a trial are measurements of their own, which no row holds: they are taken as stored.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

from omnilab.errors import RunFolderError
from omnilab.experiment.checks import recount
from omnilab.experiment.checks.agreement import occupants_check, order_check, plan_check, where
from omnilab.experiment.checks.differences import NOTHING, Check, Difference, brief
from omnilab.experiment.checks.outputs import outputs_check
from omnilab.experiment.checks.recount import Rows
from omnilab.experiment.reports.report import Report
from omnilab.experiment.results import COLUMNS, read_run

Row: TypeAlias = Mapping[str, Any]
Lines: TypeAlias = Sequence[Row]
MANIFEST = "MANIFEST.json"
TABLES = tuple(f"{name}.parquet" for name in COLUMNS)
SPANS = "spans.parquet"
SHOWN_BEFORE = 20  # characters of a differing line before the place
UNREADABLE = (KeyError, TypeError, ValueError, AttributeError, IndexError, OSError)  # what damaged rows and lines raise
NO_SPANS = (
    "span rows are not packed: span sums are taken from trials.jsonl, and growth over steps as it is there; paths and "
    "what-ifs from waited.json"
)
MEASURED = "taken as stored, for no row holds them: wall and processor time of a trial, readings of the machine"
NO_FIGURES = "figures and the timeline's script are not compared: they depend on what draws; the data they show are"


@dataclass(frozen=True, slots=True)
class Verification:
    """What was checked of a run, and what cannot be."""

    checks: tuple[Check, ...]
    notes: tuple[str, ...]

    @property
    def differences(self) -> list[Difference]:
        """Everything that differs."""
        return [found for check in self.checks for found in check.differences]


def verify(folder: Path) -> Verification:
    """Compute everything in a run folder again; RunFolderError when it is none, or is being written."""
    try:
        run, lines = read_run(folder)
    except UNREADABLE as error:
        raise RunFolderError(f"{folder}: is not a run folder: {_said(error)}") from error
    refuse_while_written(folder)
    manifest = read_manifest(folder)
    without_spans = SPANS in manifest.get("left_out", {})
    there = {f"{table}/{file.name}" for table in TABLES for file in (folder / table).glob("*")}
    numbers, trials = _numbers(folder, run, lines, there)
    checks = [
        _guarded("plan", lambda: plan_check(run)),
        _guarded("order", lambda: order_check(run, lines)),
        _guarded("occupants", lambda: occupants_check(run, lines)),
        _guarded("row files", lambda: _files(folder, lines, there, without_spans)),
        *numbers,
        _guarded("outputs", lambda: outputs_check(run, lines, trials)),
        _guarded("report", lambda: _report(folder)),
    ]
    if manifest:
        checks.append(_guarded("manifest", lambda: _packed(folder, manifest)))
    return Verification(tuple(checks), (*([NO_SPANS] if without_spans else []), MEASURED, NO_FIGURES))


def _guarded(name: str, check: Callable[[], Check]) -> Check:
    """Make a check; where what it reads is damaged, that is its difference."""
    try:
        return check()
    except UNREADABLE as error:
        return Check(name, "", (Difference(name, "what cannot be read", _said(error)),))


def _said(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


def refuse_while_written(folder: Path) -> None:
    """Raise RunFolderError while another process measures into a run folder."""
    with open(folder / "trials.jsonl", "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RunFolderError(f"{folder}: another process is writing it; wait for it") from error


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return MANIFEST.json of a packed run, `files` by name and `left_out`; empty when there is none."""
    path = folder / MANIFEST
    if not path.is_file():
        return {}
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(manifest["files"], dict) or not isinstance(manifest["left_out"], dict):
            raise TypeError("files and left_out must be objects")
        return manifest
    except UNREADABLE as error:
        raise RunFolderError(f"{path}: is damaged: {_said(error)}") from error


def _files(folder: Path, lines: Lines, there: set[str], without_spans: bool) -> Check:
    """Compare the hash of every row file with its line's, and look for files that no line names."""
    found, named = list[Difference](), set[str]()
    for number, line in enumerate(lines, 1):
        for file, stored in line["files"].items():
            if file in there or not (file.startswith(f"{SPANS}/") and without_spans):
                found += _hashes(f"{file} (line {number})", stored, folder / file if file in there else None)
                named.add(file)
        for table in TABLES if "metrics" in line else ():
            if not any(file.startswith(f"{table}/") for file in line["files"]):
                found.append(Difference(f"{where(number, line)} files", NOTHING, f"a file of {table}"))
    found += [Difference(file, "a row file", "none: no line names it") for file in sorted(there - named)]
    return Check("row files", f"sha256 of {len(named)}", tuple(found))


def _hashes(name: str, stored: str, path: Path | None) -> list[Difference]:
    """Compare a file's hash; None is a file that is not there."""
    now = hashlib.sha256(path.read_bytes()).hexdigest() if path is not None and path.is_file() else None
    return [] if stored == now else [Difference(f"{name} sha256", stored[:12], "no file" if now is None else now[:12])]


def _numbers(folder: Path, run: Row, lines: Lines, there: set[str]) -> tuple[list[Check], dict[int, Rows]]:
    """Compute every trial's numbers again. Return a check a kind of row, and the requests by line number.

    Trials whose rows are not all there are left out: `row files` says so.
    """
    found: dict[str, list[Difference]] = {kind: [] for kind in recount.KINDS}
    trials, counts = dict[int, Rows](), Counter[str]()
    for number, line in enumerate(lines, 1):
        files = [file for file in line.get("files", {}) if file in there]
        if not {f"{name}.parquet" for name in COLUMNS} - {SPANS} <= {file.split("/")[0] for file in files}:
            continue
        try:
            rows = recount.read_rows(folder, files)
            asked = run["gate" if line["kind"] == "gate" else "workload"]["requests"]
            several = recount.recounted(line, rows, len(asked))
        except UNREADABLE as error:
            several = {"requests": [Difference("rows", "what cannot be read", _said(error))]}
        else:
            trials[number] = replace(rows, spans=None)  # a long run's spans would fill the memory
            counts.update(trials=1, requests=len(rows.records), counters=len(rows.counters), spans=_len(rows.spans))
        for kind, differences in several.items():
            found[kind] += [replace(one, where=f"{where(number, line)} {one.where}") for one in differences]
    said = {kind: f"{counts[kind]:,} rows of {counts['trials']} trials" for kind in recount.KINDS}
    said["requests"] += ": medians, throughputs, sums, hashes of outputs"
    return [Check(kind, said[kind], tuple(found[kind])) for kind in recount.KINDS], trials


def _len(spans: Any) -> int:
    return 0 if spans is None else len(spans)


def _report(folder: Path) -> Check:
    """Compare the reports with those that the rows give now."""
    report = Report.load(folder)
    found = _texts("report.md", folder, report.markdown())
    said = "report.md byte for byte"
    try:
        found += _texts("report.html", folder, report.html(), _without_figures)
        said += ", report.html but for its figures"
    except ImportError as error:
        said += f"; report.html was not compared: {(error.name or '').split('.')[0]} is not installed"
    return Check("report", said, tuple(found))


def _without_figures(text: str) -> str:
    without = re.sub(r"<svg.*?</svg>", "<svg></svg>", text, flags=re.DOTALL)
    return re.sub(r'<script type="module">.*?</script>', "<script></script>", without, flags=re.DOTALL)


def _texts(
    name: str, folder: Path, recomputed: str, look_at: Callable[[str], str] = lambda text: text
) -> list[Difference]:
    """Compare a text file; its first differing line is shown around where it differs."""
    if not (folder / name).is_file():
        return [Difference(name, NOTHING, "a report")]
    stored = (folder / name).read_bytes().decode(errors="backslashreplace")
    sides = [look_at(text).split("\n") for text in (stored, recomputed)]
    for number, (old, new) in enumerate(zip_longest(*sides, fillvalue=""), 1):
        if old != new:
            place = next(i for i, (a, b) in enumerate(zip_longest(old, new)) if a != b)
            start = max(0, place - SHOWN_BEFORE)
            return [Difference(f"{name} line {number}", brief(old[start:]), brief(new[start:]))]
    return [] if len(sides[0]) == len(sides[1]) else [Difference(name, "another number of lines", NOTHING)]


def _packed(folder: Path, manifest: Mapping[str, Any]) -> Check:
    """Compare the hash of every file with the manifest's."""
    found = []
    for name, stored in manifest["files"].items():
        inside = ".." not in PurePosixPath(name).parts and not PurePosixPath(name).is_absolute()
        found += _hashes(f"{name} ({MANIFEST})", str(stored), folder / name if inside else None)
    left_out = ", ".join(f"{count} of {name}" for name, count in manifest["left_out"].items())
    return Check("manifest", f"sha256 of {len(manifest['files'])}; left out: {left_out or 'nothing'}", tuple(found))
