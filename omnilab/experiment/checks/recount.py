"""Row files read back as what they were written from, and the numbers of a trial's line made of them once more.

Needs pyarrow, nothing of torch. Every metric comes from `omnilab.metrics`, as it did in the trial.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from omnilab.experiment.analysis.table import lost_by_loop
from omnilab.experiment.checks.differences import NOTHING, Difference, brief, compared
from omnilab.experiment.results import WHERE
from omnilab.metrics import HOST_SPANS, PER_REQUEST, host_growth
from omnilab.record import CounterRow, LostRow, SpanRow
from omnilab.trial import RequestRecord, Trial

if TYPE_CHECKING:
    import pyarrow as pa

Line: TypeAlias = Mapping[str, Any]
KINDS = ("requests", "counters", "spans")
HASHES = ("text_sha", "codes_sha", "audio_sha")
# What the rows hold of a request; its tokens, codes and samples are there as hashes only.
STORED = [field.name for field in fields(RequestRecord) if field.name not in ("token_ids", "codes", "audio", "text")]


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one trial. `spans` is None where they were left out of a packed run."""

    where: list[dict[str, Any]]  # which trial they say that they are of, a dict a request
    records: list[RequestRecord]
    outputs: list[list[str | None]]  # hashes of tokens, codes and samples, a list a request
    counters: list[CounterRow]
    spans: pa.Table | None


def read_rows(folder: Path, files: Iterable[str]) -> Rows:
    """Read a trial's row files. OSError or ValueError (pyarrow's are such) where it cannot, KeyError for a column."""
    import pyarrow.parquet as pq

    tables = {file.split(".")[0]: pq.ParquetFile(folder / file).read() for file in files}
    requests, counters = tables["requests"].to_pylist(), tables["counters"].to_pylist()
    return Rows(
        where=[{name: row[name] for name in WHERE} for row in requests],
        records=[RequestRecord(**{name: row[name] for name in STORED}) for row in requests],
        outputs=[[row[name] for name in HASHES] for row in requests],
        counters=[CounterRow(*(row[name] for name in CounterRow._fields)) for row in counters],
        spans=_spans_of(tables["spans"]) if "spans" in tables else None,
    )


def recounted(line: Line, rows: Rows, requests: int) -> dict[str, list[Difference]]:
    """Compare everything that a trial's line says with its rows, by KINDS; `requests` is how many were asked."""
    trial = _trial_of(line, rows)
    numbers = {
        "requests": _of_requests(rows, trial),
        "counters": _of_counters(rows),
        "spans": _of_spans(line, rows, trial),
    }
    found = {kind: compared("", {name: line[name] for name in new}, new) for kind, new in numbers.items()}
    for where in rows.where[:1]:
        found["requests"] += compared("rows", {name: line[name] for name in WHERE}, where)
    found["requests"] += [*compared("requests", len(rows.records), requests), *_clocks(line, rows)]
    return found


def _clocks(line: Line, rows: Rows) -> Iterator[Difference]:
    """Look at the two measurements that no row holds: they must be there, and no request may end after the trial."""
    wall, last = line["metrics"]["wall_s"], max((r.end_s for r in rows.records if r.end_s is not None), default=0.0)
    if not line["error"] and not wall:
        yield Difference("metrics.wall_s", brief(wall), "a time")
    if wall and wall < last:
        yield Difference("metrics.wall_s", brief(wall), f"no less than {last}, where the last request ended")
    if not line["error"] and not line["cpu_s"]:
        yield Difference("cpu_s", NOTHING, "seconds of every stage")


def _trial_of(line: Line, rows: Rows) -> Trial:
    """Return the trial that the rows are of, as far as metrics need it; its two clocks are the line's own."""
    return Trial(
        rows.records,
        _host_spans(rows.spans) if rows.spans is not None else _host_sums(line["spans_ms"]),
        rows.counters,
        wall_s=line["metrics"]["wall_s"] or 0.0,
        cpu_s=line["cpu_s"],
        lost=_lost_rows(line) if rows.spans is not None else (),  # else they are in the sums
    )


def _of_requests(rows: Rows, trial: Trial) -> dict[str, Any]:
    done = [record for record in rows.records if record.error is None]
    return {
        "metrics": trial.metrics,  # the one that spans decide too
        "per_request": {name: [function(record) for record in done] for name, function in PER_REQUEST.items()},
        "outputs": rows.outputs,
    }


def _of_counters(rows: Rows) -> dict[str, Any]:
    sums: dict[str, int] = {}
    for row in rows.counters:
        key = f"{row.stage}/{row.thread}/{row.counter}"
        sums[key] = sums.get(key, 0) + row.value
    return {"counters": sums}


def _of_spans(line: Line, rows: Rows, trial: Trial) -> dict[str, Any]:
    if rows.spans is None:
        return {}
    import pyarrow.compute as pc

    took = pc.call_function("subtract", [rows.spans["end_ns"], rows.spans["start_ns"]])
    table = rows.spans.append_column("ns", took)
    sums = table.group_by(["stage", "thread", "name"]).aggregate([("ns", "sum"), ("ns", "count")]).to_pylist()
    spans_ms, numbers = dict[str, float](), Counter[str]()
    for stage, thread, name, ns, number in [
        *((row["stage"], row["thread"], row["name"], row["ns_sum"], row["ns_count"]) for row in sums),
        *((row.stage, row.thread, row.name, row.ns, row.number) for row in trial.lost_rows),
    ]:
        key = f"{stage}/{thread}/{name}"
        spans_ms[key] = spans_ms.get(key, 0.0) + ns / 1e6
        numbers[f"{stage}/{thread}"] += number
    found = {"spans_ms": spans_ms, "host_growth": host_growth(trial.span_rows, trial.lost_rows)}
    return found | ({"span_numbers": dict(numbers)} if "span_numbers" in line else {})  # older runs lack them


def _spans_of(table: pa.Table) -> pa.Table:
    """Return the columns of a span; those of an older run have no sizes."""
    import pyarrow as pa

    if "num_bytes" not in table.column_names:
        table = table.append_column("num_bytes", pa.array([-1] * len(table), pa.int64()))
    return table.select(SpanRow._fields)


def _lost_rows(line: Line) -> list[LostRow]:
    """Return the sums of spans that rings overwrote; an older run knows their number alone, and adds nothing."""
    return [
        LostRow(stage, thread, name, number, round(ms * 1e6))
        for loop, names in lost_by_loop(line).items()
        if not isinstance(names, int)
        for stage, _, thread in [loop.partition("/")]
        for name, (number, ms) in names.items()
    ]


def _host_spans(spans: pa.Table) -> list[SpanRow]:
    """Return the spans that metrics look at: the Talker's host work, a small part of all."""
    import pyarrow.compute as pc

    ours = (pc.field("stage") == "talker") & pc.field("name").isin(HOST_SPANS)
    return [SpanRow(**row) for row in spans.filter(ours).to_pylist()]


def _host_sums(spans_ms: Mapping[str, float]) -> list[SpanRow]:
    """Return one span for each of the Talker's sums that metrics look at, as long as all of its rows together."""
    found = []
    for key, ms in spans_ms.items():
        stage, thread, name = key.split("/")
        if stage == "talker" and name in HOST_SPANS:
            found.append(SpanRow(stage, thread, name, "", -1, 0, round(ms * 1e6)))
    return found
