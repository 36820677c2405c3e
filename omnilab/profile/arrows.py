"""Which span sent a chunk and which took it; stages and loops in the order that data flows. Needs no run folder."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from omnilab.record import SpanRow
from omnilab.trial import edge_of

STAGES = ("thinker", "talker", "code2wav")
LOOPS = ("receive", "engine", "runner", "send")  # as data flows through a stage
NEEDED = set(SpanRow._fields) - set(SpanRow._field_defaults)  # columns that spans of any version have


class Arrow(NamedTuple):
    """One chunk on an edge: the span that sent it and the span that took it, on one clock."""

    edge: str
    request: str
    chunk: int
    put: SpanRow
    get: SpanRow

    @property
    def out_ns(self) -> int:
        """When it leaves, within its `put`: in its last nanosecond, or earlier where a polling `get` began before."""
        return max(self.put.start_ns, min(self.put.end_ns - 1, self.get.start_ns))

    @property
    def in_ns(self) -> int:
        """When it arrives, within its `get`; never before it leaves, unless two clocks differ."""
        return min(max(self.get.start_ns, self.out_ns), self.get.end_ns)


def arrows_of(rows: Iterable[SpanRow]) -> tuple[list[Arrow], int]:
    """Pair each chunk's `put` with its `get`, whichever loops they ran on; count the ends left over."""
    ends: dict[tuple[str, str, int], tuple[list[SpanRow], list[SpanRow]]] = defaultdict(lambda: ([], []))
    for row in rows:
        if row.name == "put" and (edge := edge_of(row.stage, "send")):
            ends[edge, row.request, row.chunk][0].append(row)
        elif row.name == "get" and (edge := edge_of(row.stage, "receive")):
            ends[edge, row.request, row.chunk][1].append(row)
    found, unmatched = list[Arrow](), 0
    for key, (puts, gets) in ends.items():
        # a request's id may come again in rows of several trials: the first put is the first get's
        found += [Arrow(*key, put, get) for put, get in zip(puts, gets, strict=False)]
        unmatched += abs(len(puts) - len(gets))
    return sorted(found, key=lambda arrow: (arrow.put.start_ns, arrow[:3])), unmatched


def as_data_flows(tracks: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return pairs of stage and loop in the order in which they are shown; unknown ones come last, by name."""

    def place(known: Sequence[str], name: str) -> tuple[int, str]:
        return (known.index(name) if name in known else len(known), name)

    return sorted(set(tracks), key=lambda track: (place(STAGES, track[0]), place(LOOPS, track[1])))
