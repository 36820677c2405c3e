"""The span rows of a run's trials: which can be looked at, read, and from when on they are known."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from omnilab.experiment.analysis.table import Table, lost_by_loop
from omnilab.experiment.gate import stopped
from omnilab.profile.path import Segment, Until
from omnilab.record import SpanRow

MOST_ROWS = 1_200_000  # span rows of a run that are looked at: about ten seconds' work
MOST_REQUESTS = 8  # of a trial
COLUMNS = tuple(name for name in SpanRow._fields if name not in SpanRow._field_defaults)  # older runs have no more
FIRST: Until = "first audio"
END: Until = "end"
Row: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SpanTrial:
    """A trial that has a speed and span rows, with its line and its files."""

    line: Row
    spans: Path
    requests: Path

    @property
    def variant(self) -> str:
        """Its name."""
        return self.line["variant"]

    @property
    def told(self) -> bool:
        """Does its line say which loops lost spans, if any did? An older run's does not."""
        return all("/" in loop for loop in lost_by_loop(self.line))

    def num_rows(self) -> int:
        """How many span rows there are; 0 where they are not there."""
        import pyarrow.parquet as pq

        return pq.read_metadata(self.spans).num_rows if self.spans.is_file() else 0

    def read(self) -> list[SpanRow]:
        """Read them all. OSError, ValueError (pyarrow's are such) or KeyError where the file is damaged."""
        import pyarrow.parquet as pq

        columns = pq.ParquetFile(self.spans).read(columns=list(COLUMNS)).select(COLUMNS).columns
        return [SpanRow(*row) for row in zip(*(column.to_pylist() for column in columns), strict=True)]

    def names(self) -> list[str]:
        """Return the ids of the requests that are looked at, in the order of the trial's line."""
        import pyarrow.parquet as pq

        table = pq.ParquetFile(self.requests).read(columns=["request_id", "error"]).to_pylist()
        return [row["request_id"] for row in table if row["error"] is None][:MOST_REQUESTS]

    def measured_ms(self, index: int, until: Until) -> float | None:
        """Return the metric that a path until then is compared with."""
        values = {name: several[index] for name, several in self.line["per_request"].items()}
        if until == FIRST:
            return values["audio_ttfp_ms"]
        if values["audio_rtf"] is not None and values["audio_s"] is not None:
            return values["audio_rtf"] * values["audio_s"] * 1e3
        return values["e2el_ms"]


def span_trials(folder: Path, run: Row, lines: Sequence[Row]) -> list[SpanTrial]:
    """Return the trials that have a speed, block by block, the baseline first."""
    table, without = Table(run, lines), stopped(run, lines)
    found = []
    for block in table.blocks:
        for name in table.names:
            row = table.rows.get((block, name))
            files = {file.split("/")[0]: folder / file for file in row["files"]} if row is not None else {}
            if row is not None and name not in without and {"spans.parquet", "requests.parquet"} <= set(files):
                found.append(SpanTrial(row, files["spans.parquet"], files["requests.parquet"]))
    return found


def chosen_blocks(trials: Sequence[SpanTrial]) -> tuple[list[list[SpanTrial]], list[str]]:
    """Return the first blocks that hold MOST_ROWS at most, at least one, and what to say of the others."""
    by_block: dict[int, list[SpanTrial]] = defaultdict(list)
    for trial in trials:
        by_block[trial.line["block"]].append(trial)
    chosen, rows = list[list[SpanTrial]](), 0
    for several in by_block.values():
        rows += sum(trial.num_rows() for trial in several)
        if chosen and rows > MOST_ROWS:
            return chosen, [f"at most {MOST_ROWS:,} span rows are followed: {len(chosen)} of {len(by_block)} blocks"]
        chosen.append(several)
    return chosen, []


IDLE = frozenset({"schedule", "pickle", "unpickle", "transport", "update_states"})  # what an idle step records


class KnownSince:
    """From when on the work of a stage is known: a full ring has overwritten the earliest of its loop.

    Idle steps have a ring of their own, so where only such spans were overwritten the work is there from the start.
    """

    def __init__(self, line: Row, rows: Sequence[SpanRow]) -> None:
        self._lost = lost_by_loop(line)
        self._since: dict[str, float] = {}
        for loop, names in self._lost.items():
            stage = loop.split("/")[0]
            ours = [row for row in rows if f"{row.stage}/{row.thread}" == loop]
            work = set() if isinstance(names, int) else set(names) - IDLE
            first = min((row.start_ns for row in ours if not work or row.name in work), default=math.inf)
            self._since[stage] = max(first, self._since.get(stage, 0))

    def holds(self, paths: Sequence[Sequence[Segment]], until: Until) -> bool:
        """Do the paths keep to what is known? A line that gives a loop's number alone does not say which spans."""
        vocodes = any(isinstance(names, int) or "vocode" in names for names in self._lost.values())
        if until == FIRST and vocodes:
            return False
        return all(segment.start_ns >= self._since.get(segment.where, 0) for path in paths for segment in path)
