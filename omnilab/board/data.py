"""What our tab serves, as plain values; knows nothing of TensorBoard.

What a browser asks for is looked up among what was found: no path is ever made of it. Each answer is bounded: a
timeline has at most MOST_SPANS bars, whatever the trial recorded.
"""

from __future__ import annotations

import tempfile
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from omnilab.board.folders import MOST, RUN, find_runs
from omnilab.errors import BadInput, RunFolderError
from omnilab.experiment.analysis.findings import FAILED_GATE, Findings
from omnilab.experiment.checks.verification import UNREADABLE
from omnilab.experiment.design import AGAIN
from omnilab.experiment.reports import words
from omnilab.experiment.reports.report import Report
from omnilab.experiment.reports.timeline import fastest_first
from omnilab.experiment.results import read_run
from omnilab.profile.chrome import STAGES, from_run, write_trace
from omnilab.profile.columns import SpanColumns, span_columns
from omnilab.profile.files import TraceFile, sounds, trace_files
from omnilab.profile.timeline import timeline_data

if TYPE_CHECKING:
    from pandas import DataFrame

Json: TypeAlias = dict[str, Any]
T = TypeVar("T")
MOST_SPANS = 20_000
TRIALS_KEPT, REPORTS_KEPT = 4, 8  # in memory; a trial has up to 800,000 spans
NAMES, OTHER = 8, "other"  # span names with a colour of their own in the bars


class Recent:
    """The values made last, by key; made once, also when several ask at a time."""

    def __init__(self, most: int) -> None:
        self._most, self._lock = most, Lock()
        self._values: OrderedDict[Hashable, Any] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the value of a key, made if it is not kept."""
        with self._lock:
            if key not in self._values:
                self._values[key] = make()
                while len(self._values) > self._most:
                    self._values.popitem(last=False)
            self._values.move_to_end(key)
            return self._values[key]


class Board:
    """The runs below a logdir. Its methods raise BadInput for what is not there, and for damaged runs."""

    def __init__(self, logdir: str | Path) -> None:
        self._logdir = logdir
        self._reports, self._sections, self._trials = Recent(REPORTS_KEPT), Recent(REPORTS_KEPT), Recent(TRIALS_KEPT)
        self._damages = Recent(MOST)

    def runs(self) -> list[Json]:
        """Return the runs, each with its name and, where it cannot be read, why."""
        return [{"name": name, "damaged": self._damage(folder)} for name, folder in find_runs(self._logdir).items()]

    def run(self, name: str) -> Json:
        """Return what a run shows: verdicts as in its report, bars, what can be asked for."""
        report = self._report(name)
        ours, run, lines = report.findings, report.run, report.lines
        trials = [line for line in lines if line["kind"] == "trial"]
        blocks: dict[str, list[Json]] = {}
        for line in sorted(trials, key=lambda line: line["block"]):
            blocks.setdefault(line["variant"], []).append({"block": line["block"], "error": line["error"]})
        names = [one for one in (ours.baseline_name, ours.baseline_name + AGAIN) if one in blocks]
        names += [one for one in blocks if one not in names]
        heard, unheard = _heard(report.path, names)
        return {
            "name": name,
            "title": report.title(),
            "about": f"{run['experiment']} on {run['model']}",
            "heading": words.heading(run, ours),
            "unfinished": ours.unfinished,
            "header": words.header(ours),
            "rows": words.rows(ours),
            "variants": [{"name": one, "blocks": blocks[one]} for one in names],
            "first": _pair(ours, blocks),
            "bars": bars(ours),
            "sounds": heard,
            "unheard": unheard,
            "files": [_file(one) for one in trace_files(report.path)],
        }

    def sections(self, name: str) -> dict[str, list[str]]:
        """Return the lines of a run's report below its table; they need its spans, so a long run takes a while."""
        report = self._report(name)
        key = (report.path, *(_written(report.path / file) for file in RUN))
        found = self._sections.get(key, lambda: self._whole(report.path, report.sections))
        return {title: lines for title, lines in found.items() if title != "Definitions"}

    def timeline(
        self, name: str, variant: str, block: int, window_us: tuple[float, float] | None, request: str | None
    ) -> Json:
        """Return the timeline of a trial, or of a window of it: microseconds from the trial's start."""
        spans = self._columns(name, variant, block)
        label = f"{variant}, block {block}"
        return timeline_data(spans, label=label, request=request, window=window_us, most=MOST_SPANS)

    def trace(self, name: str, variant: str, block: int) -> bytes:
        """Return a trial's spans as a gzipped trace for Perfetto; made anew, so it takes seconds for a long trial."""
        spans = self._spans(name, variant, block)
        with tempfile.TemporaryDirectory(prefix="omnilab-") as folder:
            path = Path(folder) / "trace.json.gz"
            write_trace(path, spans, trial=f"{variant}, block {block}")
            return path.read_bytes()

    def sound(self, name: str, variant: str, request: int) -> Path:
        """Return the file of a sound."""
        for one in sounds(self._folder(name), [variant]):
            if one.request == request:
                return one.path
        raise BadInput(f"{name}: keeps no sound of request {request} of {variant!r}")

    def file(self, name: str, file: str) -> TraceFile:
        """Return a file below RUN/traces."""
        for one in trace_files(self._folder(name)):
            if one.name == file:
                return one
        raise BadInput(f"{name}: has no trace file {file!r}")

    def _folder(self, name: str) -> Path:
        found = find_runs(self._logdir)
        if name not in found:
            raise BadInput(f"no run {name!r} below the logdir; there are {', '.join(found) or 'none'}")
        return found[name]

    def _damage(self, folder: Path) -> str:
        def read() -> str:
            try:
                self._whole(folder, lambda: read_run(folder))
            except BadInput as error:
                return str(error)
            return ""

        return self._damages.get((folder, *(_written(folder / file) for file in RUN)), read)

    def _report(self, name: str) -> Report:
        folder = self._folder(name)
        key = (folder, *(_written(folder / file) for file in RUN))
        return self._reports.get(key, lambda: self._whole(folder, lambda: Report.load(folder)))

    def _columns(self, name: str, variant: str, block: int) -> SpanColumns:
        folder = self._folder(name)
        key = (folder, _written(folder / RUN[1]), variant, block)
        return self._trials.get(key, lambda: span_columns(self._spans(name, variant, block)))

    def _spans(self, name: str, variant: str, block: int) -> DataFrame:
        folder = self._folder(name)
        return self._whole(folder, lambda: from_run(folder, variant, block))

    @staticmethod
    def _whole(folder: Path, read: Callable[[], T]) -> T:
        """Read of a folder; what a damaged one raises becomes BadInput."""
        try:
            return read()
        except UNREADABLE as error:
            raise BadInput(f"{folder}: is damaged: {type(error).__name__}: {error}") from error


def _written(path: Path) -> int:
    """Return when a file was last written, to know when to read it anew; 0 where it is not there."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def bars(ours: Findings) -> Json:
    """Return ms a trial by stage, variant and span name: the NAMES largest names, the rest as "other".

    `{"names": [...], "stages": [{"stage", "rows": [{"variant", "ms": [a number a name]}]}]}`. What failed the gate has
    no bar.
    """
    failed = {variant.name for variant in ours.variants if variant.verdict == FAILED_GATE}
    shown = {variant: sums for variant, sums in ours.per_stage.items() if variant not in failed}
    names = _largest(shown.values())
    there = dict.fromkeys(key.split("/")[0] for sums in shown.values() for key in sums)
    stages = [*(stage for stage in STAGES if stage in there), *sorted(set(there) - set(STAGES))]
    rows = [
        {"stage": stage, "rows": [{"variant": one, "ms": _by_name(sums, stage, names)} for one, sums in shown.items()]}
        for stage in stages
    ]
    return {"names": names, "stages": rows}


def _largest(shown: Any) -> list[str]:
    """Return the names that take the most in any variant, over its stages; "other" last where there are more."""
    most: dict[str, float] = {}
    for sums in shown:
        totals: dict[str, float] = {}
        for key, ms in sums.items():
            totals[key.split("/")[1]] = totals.get(key.split("/")[1], 0.0) + ms
        most |= {name: max(ms, most.get(name, 0.0)) for name, ms in totals.items()}
    ordered = sorted(most, key=lambda name: (-most[name], name))
    return ordered[:NAMES] + [OTHER] * (len(ordered) > NAMES)


def _by_name(sums: Mapping[str, float], stage: str, names: Sequence[str]) -> list[float]:
    ms = dict.fromkeys(names, 0.0)
    for key, value in sums.items():
        at, name = key.split("/")
        if at == stage:
            ms[name if name in ms else OTHER] += value
    return list(ms.values())


def _pair(ours: Findings, blocks: Mapping[str, Sequence[Json]]) -> list[Json]:
    """Return what the timeline shows first: baseline and fastest variant in a block where both succeeded."""
    names = [name for name in (ours.baseline_name, *fastest_first(ours)) if name in blocks][:2]
    good = {name: {line["block"] for line in blocks[name] if not line["error"]} for name in names}
    both = set.intersection(*good.values()) if good else set()
    return [{"variant": name, "block": min(both or good[name] or {blocks[name][0]["block"]})} for name in names]


def _heard(folder: Path, names: Sequence[str]) -> tuple[list[Json], str]:
    """Return the sounds of a run; where one is damaged, none and the reason: the rest of the run still shows."""
    try:
        found = sounds(folder, names)
    except RunFolderError as error:
        return [], str(error)
    keys = ("variant", "request", "seconds", "sample_rate")
    return [{key: getattr(one, key) for key in keys} for one in found], ""


def _file(one: TraceFile) -> Json:
    return {"name": one.name, "kind": one.kind, "bytes": one.num_bytes, "perfetto": one.for_perfetto}
