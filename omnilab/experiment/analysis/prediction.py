"""What lengths alone say a variant saves, beside what was measured: a null that was to be expected, or a surprise?

Counts come from `laws`; times are the baseline's own span sums, each scaled by what the law leaves of its count. No
prediction looks at a variant's times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from omnilab.experiment.analysis import laws
from omnilab.experiment.analysis.effects import Comparison
from omnilab.experiment.analysis.findings import Predicted
from omnilab.experiment.analysis.table import Table, mean

Row: TypeAlias = Mapping[str, Any]
LAWFUL = frozenset({"async_save", "prefill_only_hidden_states", "idle_skip", "shallow_merge", "override_rows"})
# Span sums that a counted quantity is paid in, on the Talker.
PAID_IN = {
    laws.BYTES: ("talker/receive/accumulate",),
    laws.ELEMENTS: ("talker/runner/merge",),
    laws.ATTACHED: ("talker/engine/pickle", "talker/runner/unpickle"),
}
BUILDS = ("thinker/engine/build", "talker/engine/build")  # what async save takes off the engine's thread
UPDATES = ("code2wav/runner/update_states", "talker/runner/update_states", "thinker/runner/update_states")


def predicted_of(
    table: Table, run: Row, c: Comparison, toggles: Sequence[str], others: Sequence[str]
) -> Predicted | None:
    """Return predicted and measured changes of a variant; None where no law is known.

    Laws hold over BEFORE_1378, for requests of one random length, where `run` knows the size of a row.
    """
    before, after = _laws(run, others), _laws(run, toggles)
    sides = list(table.sides(c.name, c.against).values())
    if before is None or after is None or not sides or not {*toggles, *others} <= LAWFUL:
        return None
    # Spans of what it is compared with, so that a prediction is of the change from there.
    base = [row for _, rows in sides for row in rows]
    ours = [row for row, _ in sides]
    scaled = {span: _left(before[count], after[count]) for count, spans in PAID_IN.items() for span in spans}
    if "async_save" in set(toggles) - set(others):
        scaled |= dict.fromkeys(BUILDS, 0.0)
    if "idle_skip" in set(toggles) - set(others):
        scaled |= {span: 1 - _idle_share(base, span.split("/")[0]) for span in UPDATES}
    gone = bool(set(others) - set(toggles))  # what comes back has no span here to scale
    scaled = {span: left for span, left in scaled.items() if left < 1}  # the others would only add their noise
    times = {span: _span_s(base, span) for span in scaled}
    return Predicted(
        counts={name: (before[name], after[name]) for name in laws.EXPLAINED},
        measured={name: (_count(base, at), _count(ours, at)) for name, at in laws.WHERE.items()},
        host_s=None if gone else sum(times[span] * (left - 1) for span, left in scaled.items()),
        measured_host_s=None if gone else sum(_span_s(ours, span) - times[span] for span in scaled),
    )


def _laws(run: Row, toggles: Sequence[str]) -> dict[str, int] | None:
    requests = run["workload"]["requests"]
    lengths = {(r["prompt"].get("random_tokens"), r["sampling"]["max_text_tokens"]) for r in requests}
    if run["baseline"] != "BEFORE_1378" or "row_bytes" not in run or len(lengths) != 1:
        return None
    (input_len, output_len), *_ = lengths
    if input_len is None:
        return None
    once = laws.counts(input_len, output_len, run["row_bytes"], toggles)
    return {name: count * len(requests) for name, count in once.items()}


def _left(before: int, after: int) -> float:
    return after / before if before else 1.0


def _span_s(rows: Sequence[Row], span: str) -> float:
    return (mean([row["spans_ms"].get(span, 0.0) for row in rows]) or 0.0) / 1e3


def _idle_share(rows: Sequence[Row], stage: str) -> float:
    """Share of state updates that an idle step made."""
    idle = _count(rows, f"{stage}/runner/updates_while_idle")
    busy = _count(rows, f"{stage}/runner/updates_while_busy")
    return idle / (idle + busy) if idle + busy else 0.0


def _count(rows: Sequence[Row], key: str) -> float:
    return mean([row["counters"].get(key, 0) for row in rows]) or 0.0
