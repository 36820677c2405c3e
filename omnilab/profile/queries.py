"""Three questions to a trace in SQL, for Perfetto's query page and its trace processor.

Plain SQL over Perfetto's tables `slice`, `flow`, `thread_track`, `thread` and `process`; of Perfetto's own it uses
`EXTRACT_ARG` alone. Times in the tables are ns.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from omnilab.errors import BadInput

Row: TypeAlias = tuple[Any, ...]
Ask: TypeAlias = Callable[[str], tuple[Sequence[str], Sequence[Row]]]  # SQL -> names of columns, rows

BUSY = """\
SELECT
  process.name AS stage,
  thread.name AS loop,
  COUNT(*) AS spans,
  SUM(slice.dur) / 1e6 AS busy_ms,
  100.0 * SUM(slice.dur) / (SELECT MAX(ts + dur) - MIN(ts) FROM slice) AS percent
FROM slice
JOIN thread_track ON slice.track_id = thread_track.id
JOIN thread ON thread_track.utid = thread.utid
JOIN process ON thread.upid = process.upid
WHERE slice.depth = 0
GROUP BY process.name, thread.name
ORDER BY busy_ms DESC;
"""
"""Busy per stage, loop by loop; `depth = 0` leaves out spans within spans, such as a `build` within its `save`."""

WAIT = """\
SELECT
  sender.name || ' to ' || receiver.name AS edge,
  COUNT(*) AS chunks,
  AVG(MAX(0, got.ts - sent.ts - sent.dur)) / 1e6 AS mean_wait_ms,
  MAX(MAX(0, got.ts - sent.ts - sent.dur)) / 1e6 AS longest_wait_ms
FROM flow
JOIN slice AS sent ON sent.id IN (flow.slice_out, flow.slice_in) AND sent.name = 'put'
JOIN slice AS got ON got.id IN (flow.slice_out, flow.slice_in) AND got.name = 'get'
JOIN thread_track AS sent_on ON sent.track_id = sent_on.id
JOIN thread_track AS got_on ON got.track_id = got_on.id
JOIN thread AS sender ON sent_on.utid = sender.utid
JOIN thread AS receiver ON got_on.utid = receiver.utid
GROUP BY edge
ORDER BY edge;
"""
"""Wait per edge: from the end of `put` to the start of `get`, 0 where they overlap.

Perfetto calls the slice that starts first the outgoing one, and a polling `get` may start before its `put`.
"""

LATENCY = """\
SELECT
  sender.name || ' to ' || receiver.name AS edge,
  EXTRACT_ARG(sent.arg_set_id, 'args.request') AS request,
  EXTRACT_ARG(sent.arg_set_id, 'args.chunk') AS chunk,
  (got.ts + got.dur - sent.ts) / 1e6 AS latency_ms
FROM flow
JOIN slice AS sent ON sent.id IN (flow.slice_out, flow.slice_in) AND sent.name = 'put'
JOIN slice AS got ON got.id IN (flow.slice_out, flow.slice_in) AND got.name = 'get'
JOIN thread_track AS sent_on ON sent.track_id = sent_on.id
JOIN thread_track AS got_on ON got.track_id = got_on.id
JOIN thread AS sender ON sent_on.utid = sender.utid
JOIN thread AS receiver ON got_on.utid = receiver.utid
ORDER BY latency_ms DESC
LIMIT 20;
"""
"""Chunk latency: from the start of `put` to the end of `get`, decoding included; the slowest 20."""

QUERIES: Mapping[str, str] = {"busy per stage": BUSY, "wait per edge": WAIT, "chunk latency": LATENCY}


BY_HAND = "paste the queries of docs/perfetto.md into https://ui.perfetto.dev, 'Query (SQL)'"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a query gave."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]

    def lines(self) -> list[str]:
        """Return it as aligned text, the title first; numbers with three places, to the right."""
        table = [list(self.columns), *([_cell(value) for value in row] for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        right = [bool(self.rows) and isinstance(value, (int, float)) for value in (self.rows or (self.columns,))[0]]
        places = list(zip(widths, right, strict=True))
        return [f"{self.title}:"] + [
            "  "
            + "  ".join(
                cell.rjust(width) if to_right else cell.ljust(width)
                for cell, (width, to_right) in zip(row, places, strict=True)
            ).rstrip()
            for row in table
        ]


def answers(ask: Ask) -> list[Answer]:
    """Put the three queries to whatever answers SQL over Perfetto's tables."""
    found = []
    for title, sql in QUERIES.items():
        columns, rows = ask(sql)
        found.append(Answer(title, tuple(columns), tuple(rows)))
    return found


def need_perfetto(processor: Path | None = None) -> None:
    """Raise BadInput where the package `perfetto`, or the program named for it, is not there."""
    try:
        import perfetto.trace_processor  # noqa: F401 (whether it is there)  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise BadInput(f"--queries needs the package perfetto: pip install perfetto; or {BY_HAND}") from error
    if processor is not None and not processor.is_file():
        raise BadInput(f"{processor}: no such file; name Perfetto's trace_processor_shell with --processor")


def run_queries(trace: Path, processor: Path | None = None) -> list[Answer]:
    """Ask Perfetto's trace processor about a trace file; `processor` None: the one that its package downloads once.

    BadInput without the package `perfetto`, without the program, or where it cannot read the trace.
    """
    need_perfetto(processor)
    from perfetto.trace_processor import TraceProcessor, TraceProcessorConfig  # pyright: ignore[reportMissingImports]

    config = TraceProcessorConfig(bin_path=None if processor is None else str(processor))
    try:
        with TraceProcessor(trace=str(trace), config=config) as opened:

            def ask(sql: str) -> tuple[list[str], list[Row]]:
                result = opened.query(sql)
                names = list(result.column_names)
                return names, [tuple(getattr(row, name) for name in names) for row in result]

            return answers(ask)
    except Exception as error:  # the package raises bare ones
        raise BadInput(
            f"{trace}: the queries could not be run: {_first_line(error)}; the package perfetto downloads its program "
            f"trace_processor_shell on first use: without a network name one with --processor, or {BY_HAND}"
        ) from error


def _cell(value: Any) -> str:
    return f"{value:,.3f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def _first_line(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):  # its words are the whole command, by which it downloads
        return f"{error.cmd[0]} ended with {error.returncode}"
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:200].rstrip(".")
