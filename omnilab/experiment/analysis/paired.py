"""From pairs of trials on one pipeline to what they show, by the rules of the protocol. Reads rows, needs no torch.

A pair stands where the protocol has a block. All pairs have the same requests, so the base's own trials, one pair after
another, show what repeats: they stand where the protocol has A/A, for outputs and counters. They judge no noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from omnilab.experiment import gate
from omnilab.experiment.analysis import findings
from omnilab.experiment.analysis.analyse import SHOWN_ON_CPU, SHOWN_ON_GPU
from omnilab.experiment.analysis.carries import carries, in_short
from omnilab.experiment.analysis.effects import Comparison, effects_of, more_blocks, verdict_of
from omnilab.experiment.analysis.findings import Effect, Findings, Moved
from omnilab.experiment.analysis.moved import moved_counters, moved_spans, per_stage, unsettled
from omnilab.experiment.analysis.table import Table, mean
from omnilab.experiment.design import AGAIN
from omnilab.experiment.statistics.estimate import LEAST_BLOCKS
from omnilab.metrics import THROUGHPUTS, VERDICT_METRICS
from omnilab.toggle import Toggle

BASE, OTHER = "base", "other"
PRIMARY, MARGIN = "wall_s", 0.02
Row: TypeAlias = Mapping[str, Any]


@dataclass(slots=True)
class PairedRows:
    """Rows as trials.jsonl has them; a pair's trials count once its outputs have been compared."""

    lines: list[dict[str, Any]] = field(default_factory=list)

    def add_trial(self, of_base: bool, pair: int, summary: Row) -> None:
        """Add a trial's row.

        It has no place within its pair: a slope fitted to two places a pair leaves intervals that hold the truth in
        92 % of runs of 5. Orders are as many one way as the other instead, and what place does is noise.
        """
        name = BASE if of_base else OTHER
        where = {"kind": "trial", "block": pair, "position": 0, "variant": name, "error": None}
        self.lines.append({**where, **summary})

    def add_output(self, of_base: bool, pair: int, compared: gate.Comparison) -> None:
        """Add how a pair's output stands: the other's to the base's, or the base's to that of the pair before."""
        name = BASE + AGAIN if of_base else OTHER
        where = {"kind": "comparison", "block": pair, "position": -1, "variant": name, "error": None}
        self.lines.append({**where, **compared.to_dict()})

    def whole(self) -> list[dict[str, Any]]:
        """Return the rows of whole pairs."""
        pairs = {line["block"] for line in self.lines if line["kind"] == "comparison" and line["variant"] == OTHER}
        return [line for line in self.lines if line["block"] in pairs]


def found_of(rows: PairedRows, *, toggles: Sequence[Toggle[Any]], planned: int, cuda: bool) -> Findings:
    """Return what the pairs show: two variants, `base` and `other`, the verdict on wall time."""
    lines = rows.whole()
    run = {
        "baseline": BASE, "variants": [{"name": BASE}, {"name": OTHER}], "orders": [[BASE, OTHER]], "cuda": cuda,
    }  # fmt: skip
    again = _again(lines)
    table, twice = Table(run, lines), Table(run, [*lines, *again])
    compared = [Comparison(OTHER, BASE, True)]
    output = gate.output_class([*lines, *again], BASE, OTHER)
    metrics = tuple(m for m in VERDICT_METRICS if m not in THROUGHPUTS)
    effects = effects_of(table, compared, metrics, PRIMARY, MARGIN)[OTHER] if lines else {}
    if output[0] in gate.STOPPED:
        effects = {}
    counters = tuple(m for m in moved_counters(twice, compared[0]) if _sure(table, m))
    verdict = _verdict(output[0], effects, counters, unsettled(twice, compared[0]))
    seams = [toggle.seam for toggle in toggles]
    shared: dict[str, Any] = {"errors": (), "growth": None, "predicted": None}
    variants = (
        findings.Variant(
            name=BASE, toggles=(), against=None, output=findings.SAME, difference=None, trials=len(table.of(BASE)),
            effects={}, primary=False, counters=(), spans=(), carries="", carries_short="",
            verdict=findings.BASELINE, **shared,
        ),
        findings.Variant(
            name=OTHER, toggles=tuple(toggle.name for toggle in toggles), against=BASE, output=output[0],
            difference=output[1], trials=len(table.of(OTHER)), effects=effects, primary=True, counters=counters,
            spans=moved_spans(table, compared)[OTHER], carries=carries(run, seams, effects.get("host_ms_per_step")),
            carries_short=in_short(run, seams), verdict=verdict,
            more_blocks=_more(table) if verdict == findings.INCONCLUSIVE else None, **shared,
        ),
    )  # fmt: skip
    return Findings(
        baseline_name=BASE, primary=PRIMARY, margin=MARGIN, metrics=SHOWN_ON_GPU if cuda else SHOWN_ON_CPU,
        baseline={m: mean([row["metrics"].get(m) for row in table.of(BASE)]) for m in metrics}, same={},
        variants=variants, blocks=len(table.blocks), planned_blocks=planned, unfinished=len(table.blocks) < planned,
        trials=len(table.rows), per_stage=per_stage(table),
    )  # fmt: skip


def _again(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the base's twin of each pair: its trial of the pair before, and for the first that of the second.

    The first pair's output has no pair before it: it is excused by what the second shows.
    """
    trials = {line["block"]: line for line in lines if (line["kind"], line["variant"]) == ("trial", BASE)}
    if len(trials) < 2:
        return []
    twins = [{**trials[pair - 1 if pair else 1], "block": pair, "variant": BASE + AGAIN} for pair in trials]
    second = [
        line for line in lines if (line["kind"], line["variant"], line["block"]) == ("comparison", BASE + AGAIN, 1)
    ]
    return [*twins, *({**line, "block": 0} for line in second)]


def _verdict(output: str, effects: Mapping[str, Effect], counters: tuple[Moved, ...], open_still: bool) -> str:
    if output in gate.STOPPED:
        return findings.FAILED_GATE
    if PRIMARY not in effects:
        return findings.NOT_MEASURED
    if not counters:
        return findings.UNSETTLED if open_still else findings.NO_EFFECT
    return verdict_of(effects[PRIMARY], PRIMARY, MARGIN, None)


def _sure(table: Table, moved: Moved) -> bool:
    """Is it more than chance in a few pairs? What is exact on the base's side repeats on the other side too."""
    counts = {row["counters"].get(moved.what, 0) for row in table.of(OTHER)}
    return not moved.exact or moved.before == 0 or len(counts) == 1 or len(table.blocks) >= LEAST_BLOCKS


def _more(table: Table) -> int | None:
    return more_blocks(table.against(table.columns(table.logs(PRIMARY)), OTHER, BASE), table.per_block, MARGIN, 1)
