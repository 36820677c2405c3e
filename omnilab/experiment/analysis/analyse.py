"""From the lines of a run to what they show. Reads plain rows, draws nothing, needs no torch."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from omnilab.experiment import gate
from omnilab.experiment.analysis import findings, sharing
from omnilab.experiment.analysis.blocks import planned_blocks
from omnilab.experiment.analysis.carries import carries, in_short, limits
from omnilab.experiment.analysis.effects import (
    NOTED,
    WITHHELD,
    Comparison,
    effects_of,
    looked,
    more_blocks,
    same_of,
    verdict_of,
)  # fmt: skip
from omnilab.experiment.analysis.findings import Effect, Findings, Moved, Variant
from omnilab.experiment.analysis.moved import moved_counters, moved_spans, per_stage, unsettled
from omnilab.experiment.analysis.prediction import predicted_of
from omnilab.experiment.analysis.table import LENGTHS_DECIDE, PER_AUDIO, Table, lost_spans, mean, too_low
from omnilab.experiment.design import AGAIN, FACTORIALS
from omnilab.experiment.results import aborted
from omnilab.experiment.statistics import estimate
from omnilab.metrics import VERDICT_METRICS

SHOWN_ON_CPU = ("host_ms_per_step", "cpu_s", "wall_s", "ttft_ms", "audio_ttfp_ms")
SHOWN_ON_GPU = ("wall_s", "audio_rtf", "ttft_ms", "audio_ttfp_ms", "host_ms_per_step")
SHOWN_OF_SERVERS = ("wall_s", "audio_rtf", "ttft_ms", "tpot_ms", "audio_ttfp_ms", "cpu_s")
CELL = "one cell: see the main effects"
QUANTILES = (0.90, 0.95, 0.99)
QUANTILE_METRICS = ("ttft_ms", "audio_ttfp_ms", "e2el_ms")
Row: TypeAlias = Mapping[str, Any]


def analyse(run: Row, lines: Sequence[Row]) -> Findings:
    """Analyse a run from its run.json and its lines."""
    table = Table(run, lines)
    outputs = {v["name"]: gate.output_class(lines, run["baseline"], v["name"]) for v in run["variants"]}
    stopped = gate.stopped(run, lines)
    metrics = _metrics(run)
    comparisons = [
        Comparison(v["name"], v["against"], run["design"] not in FACTORIALS)
        for v in run["variants"][1:]
        if v["name"] not in stopped
    ]
    effects = effects_of(table, comparisons, metrics, run["primary"], run["margin"])
    same = same_of(table, metrics, run["margin"])
    cells = sharing.cells_of(run, stopped)
    factorial = sharing.contrasts_of(table, run, cells)
    known = _Known(
        run=run, lines=lines, table=table, comparisons={c.name: c for c in comparisons}, effects=effects,
        outputs=outputs, stopped=stopped, withheld=_withheld(run, same), cells=factorial is not None,
    )  # fmt: skip
    found = Findings(
        baseline_name=run["baseline"],
        primary=run["primary"],
        margin=run["margin"],
        metrics=_shown(run),
        baseline={m: _baseline_mean(table, m) for m in metrics},
        same=same,
        variants=known.variants(),
        interactions=sharing.interactions(table, cells, run["primary"], run["margin"]),
        mains=sharing.mains(table, run, factorial, known.withheld),
        pairs=sharing.pairs(table, run, factorial),
        attribution=sharing.attribution(table, run, cells, factorial),
        quantiles=_quantiles(run, table, comparisons),
        blocks=len(table.blocks),
        planned_blocks=planned_blocks(run, lines),
        unfinished=_unfinished(run, lines, stopped),
        trials=len(table.rows),
        disturbed=dict(sorted(Counter(why for row in table.rows.values() for why in row["disturbed"]).items())),
        per_stage=per_stage(table),
        per_audio=tuple(metric for metric in PER_AUDIO if table.counts_per_audio(metric)),
    )
    return replace(
        found, notes=(*_notes(found, table), *_of_spans(table, run["topology"]), *_of_rows(run, lines), *limits(run))
    )


def _metrics(run: Row) -> tuple[str, ...]:
    throughputs = [m for m in VERDICT_METRICS if m.endswith("throughput") and m != run["primary"]]
    return tuple(m for m in VERDICT_METRICS if m not in throughputs)


def _shown(run: Row) -> tuple[str, ...]:
    shown = SHOWN_OF_SERVERS if run.get("arms") else SHOWN_ON_GPU if run["cuda"] else SHOWN_ON_CPU
    return shown if run["primary"] in shown else (run["primary"], *shown)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """What is needed to say something of each variant."""

    run: Row
    lines: Sequence[Row]
    table: Table
    comparisons: Mapping[str, Comparison]
    effects: Mapping[str, Mapping[str, Effect]]
    outputs: Mapping[str, tuple[str, str | None]]
    stopped: set[str]
    withheld: str | None
    cells: bool  # are verdicts on main effects

    def variants(self) -> tuple[Variant, ...]:
        compared = list(self.comparisons.values())
        spans = moved_spans(self.table, compared)
        looks = looked(self.table, compared, self.run["primary"]) if self.run["rule"]["rule"] == "looks" else {}
        return tuple(self.variant(v, spans.get(v["name"], ()), looks.get(v["name"])) for v in self.run["variants"])

    def variant(self, variant: Row, spans: tuple[Moved, ...], decided: bool | None) -> Variant:
        run, name = self.run, variant["name"]
        c, ours, rows = self.comparisons.get(name), self.effects.get(name, {}), self.table.of(name)
        counters = () if c is None else moved_counters(self.table, c)
        verdict = self.verdict(variant, c, bool(counters), decided)
        toggles = {v["name"]: v["toggles"] for v in run["variants"]}
        return Variant(
            name=name,
            toggles=tuple(variant["toggles"]),
            against=variant["against"],
            output=self.outputs[name][0],
            difference=self.outputs[name][1],
            errors=self.errors(name),
            trials=len(rows),
            effects=ours,
            primary=c is not None and c.primary,
            growth=mean([row["host_growth"] for row in rows]),
            counters=counters,
            spans=spans,
            predicted=None if c is None else predicted_of(self.table, run, c, variant["toggles"], toggles[c.against]),
            carries="" if c is None else carries(run, variant["seams"], ours.get("host_ms_per_step")),
            carries_short="" if c is None else in_short(run, variant["seams"]),
            verdict=verdict,
            more_blocks=self.more_blocks(c) if c is not None and verdict == findings.INCONCLUSIVE else None,
        )

    def errors(self, name: str) -> tuple[str, ...]:
        """Errors of a variant's trials; those of A/A are the baseline's."""
        names = {name, name + AGAIN} if name == self.run["baseline"] else {name}
        mine = [line for line in self.lines if line["variant"] in names and not aborted(line)]
        return tuple(line["error"] for line in mine if line.get("error"))

    def verdict(self, variant: Row, c: Comparison | None, counted: bool, decided: bool | None) -> str:
        run, name = self.run, variant["name"]
        effect = self.effects.get(name, {}).get(run["primary"])
        if variant["against"] is None:
            return findings.BASELINE
        if self.outputs[name][0] in gate.STOPPED:
            return findings.FAILED_GATE
        if name in self.stopped:
            return findings.NO_COMPARISON
        if effect is None or c is None:
            return findings.NOT_MEASURED
        if not counted and not run.get("arms"):  # a server counts nothing for us
            return findings.UNSETTLED if unsettled(self.table, c) else findings.NO_EFFECT
        if run["design"] in FACTORIALS:
            return CELL if self.cells else findings.NO_MAINS
        if self.table.per_audio and run["primary"] in LENGTHS_DECIDE:
            return findings.LENGTHS_DIFFER
        said = verdict_of(effect, run["primary"], run["margin"], self.withheld, decided)
        due = sum(name in run["orders"][block] for block in self.table.blocks)
        clear = said.startswith((findings.FASTER, findings.SLOWER, findings.EQUIVALENT))
        if clear and effect.blocks < due:
            said = f"{said}, in the {effect.blocks} of {due} blocks where it ran"
        return f"{said}, per audio second" if clear and self.table.counts_per_audio(run["primary"]) else said

    def more_blocks(self, c: Comparison) -> int | None:
        run, table = self.run, self.table
        per_block = table.against(table.columns(table.logs(run["primary"])), c.name, c.against)
        primaries = sum(other.primary for other in self.comparisons.values())
        return more_blocks(per_block, table.per_block, run["margin"], max(1, primaries))


def _withheld(run: Row, same: Mapping[str, Effect]) -> str | None:
    """Return why no variant may be called faster or slower; None when it may."""
    found = same.get(run["primary"])
    if found is None or found.p is None or found.blocks < estimate.INTERVAL_BLOCKS:
        return findings.NO_BASELINE
    return findings.WITHHELD if found.p < WITHHELD else None


def _baseline_mean(table: Table, metric: str) -> float | None:
    return mean([table.value(row, metric) for block in table.blocks for row in table.baselines(block)])


def _unfinished(run: Row, lines: Sequence[Row], stopped: set[str]) -> bool:
    tried = {(line["block"], line["variant"]) for line in lines if line["kind"] == "trial" and not aborted(line)}
    orders = enumerate(run["orders"][: planned_blocks(run, lines)])
    return any(name not in stopped and (block, name) not in tried for block, order in orders for name in order)


def _quantiles(run: Row, table: Table, comparisons: Sequence[Comparison]) -> dict[str, str]:
    """Effects on quantiles above the median, or how many requests they need; exploratory, seeded by the run's seed."""
    found: dict[str, str] = {}
    for metric in QUANTILE_METRICS:
        for q in QUANTILES:
            found[f"p{100 * q:.0f} of {metric}"] = _quantile(run, table, comparisons, metric, q)
    return found


def _quantile(run: Row, table: Table, comparisons: Sequence[Comparison], metric: str, q: float) -> str:
    said = []
    for c in comparisons:
        sides = list(table.sides(c.name, c.against).values())
        base = [[math.log(v) for row in rows[:1] for v in row["per_request"][metric] if v] for _, rows in sides]
        arm = [[math.log(v) for v in row["per_request"][metric] if v] for row, _ in sides]
        try:
            effect = estimate.quantile_effect(base, arm, q, run["seed"])
        except ValueError as refused:
            return f"refused: {refused}"
        low, high = (f"{math.exp(edge):.2f}" if edge is not None else "?" for edge in (effect.low, effect.high))
        said.append(f"{c.name} {math.exp(effect.value):.2f} [{low}, {high}]")
    return "; ".join(said)


def _notes(found: Findings, table: Table) -> list[str]:
    notes: list[str] = []
    if found.unfinished:
        notes.append("the run was not finished: what is here is what was measured before it stopped")
    if found.blocks < estimate.LEAST_BLOCKS:
        notes.append(
            f"{found.blocks} blocks: intervals only, no verdict of faster or slower below {estimate.LEAST_BLOCKS}"
        )
    same = found.same.get(found.primary)
    if same is not None and same.p is not None and same.p < WITHHELD:
        notes.append(
            f"A/A: the baseline differs from itself in {found.primary} (p = {same.p:.3g}, below {WITHHELD}): faster "
            "and slower are withheld; look for what drifts or disturbs, and run it again"
        )
    elif same is not None and same.p is not None and same.p < NOTED:
        notes.append(f"A/A: p = {same.p:.3g} on {found.primary}: distrust effects near the noise band")
    if found.per_audio:
        several = ", ".join(found.per_audio)
        means = ", ".join(f"{name} {_mean_audio(table, name):.2f} s" for name in table.names if table.of(name))
        notes.append(
            f"audio lengths differ between trials of the same requests (mean of a request: {means}): {several} are "
            "per audio second"
        )
    for why, count in found.disturbed.items():
        notes.append(f"{count} of {found.trials} trials were disturbed: {why}")
    if all(v.output == findings.NOT_COMPARED for v in found.variants if v.against):
        notes.append("no output was compared: no gate prompts, or nothing finished")
    if same is None or same.blocks < found.blocks:
        there = 0 if same is None else same.blocks
        notes.append(
            f"A/A in {there} of {found.blocks} blocks only: see the baseline's failed trials, and run it again"
        )
    if found.variants and any(v.verdict == findings.NO_MAINS for v in found.variants):
        names = ", ".join(v.name for v in found.variants if v.against and not v.effects) or "some cells"
        notes.append(f"no main effects, so no verdict: {names} have no speed; leave that toggle out and run it again")
    lost: Counter[str] = Counter()
    for row in table.rows.values():
        lost.update({loop: count for loop, count in lost_spans(row).items() if loop in too_low(row)})
    if lost:
        said = ", ".join(f"{count:,} of {loop}" for loop, count in sorted(lost.items()))
        notes.append(f"spans that the rings did not hold: {said}: span sums there are too low")
    return notes


def _mean_audio(table: Table, name: str) -> float:
    return mean([seconds for row in table.of(name) for seconds in row["per_request"]["audio_s"]]) or 0.0


def _most_on_a_thread(numbers: Mapping[str, int], inline: bool) -> int:
    """Return the spans of the thread that recorded most; engine and runner of a stage may be one."""
    threads = Counter[str]()
    for loop, number in numbers.items():
        stage, thread = loop.split("/")
        threads["" if inline else f"{stage}/{'engine' if thread == 'runner' else thread}"] += number
    return max(threads.values())


def _of_spans(table: Table, topology: str) -> list[str]:
    """Say what recording spans cost, and whose clocks were not ours; older runs did not measure it."""
    notes, shares, ahead = list[str](), list[float](), dict[str, float]()
    for row in table.rows.values():
        if row.get("span_numbers") and row["metrics"]["wall_s"]:
            most = _most_on_a_thread(row["span_numbers"], inline=topology != "processes")
            shares.append(most * row["span_ns"] / 1e9 / row["metrics"]["wall_s"])
        for process, (offset, error) in row.get("clocks", {}).items():
            if abs(offset) > error:
                ahead[process] = max(ahead.get(process, 0.0), abs(offset) / 1e6)
    if shares:
        dearest = max(shares)
        notes.append(f"recording spans took about {dearest:.2%} of a trial's wall time, on its busiest thread")
    if ahead:
        said = ", ".join(f"{process} by {ms:,.1f} ms" for process, ms in sorted(ahead.items()))
        notes.append(f"clocks that are not this process's: {said}: their spans were moved onto one clock")
    return notes


def _of_rows(run: Row, lines: Sequence[Row]) -> list[str]:
    """Say what the rows hold against the run: blocks in several sets of processes, outputs that were never compared."""
    notes: list[str] = []
    opened: dict[int, int] = {}
    sets: dict[int, set[int]] = {}
    for line in lines:
        if line["kind"] == "open":
            opened[line["block"]] = opened.get(line["block"], 0) + 1
        elif line["kind"] == "trial" and not line["error"]:
            sets.setdefault(line["block"], set()).add(opened.get(line["block"], 0))
    split = sorted(block + 1 for block, several in sets.items() if len(several) > 1)
    if split and not run.get("arms"):  # each of whose trials has a server of its own
        notes.append(
            f"block {', '.join(map(str, split))} ran in several sets of processes, after a failure or an interruption: "
            "its comparisons hold their difference too"
        )
    compared = {(line["block"], line["variant"]) for line in lines if line["kind"] == "comparison"}
    tried = [line for line in lines if line["kind"] == "trial" and not line["error"]]
    base = (run["baseline"], run["baseline"] + AGAIN)
    if missing := sum((t["block"], t["variant"]) not in compared and t["variant"] not in base for t in tried):
        notes.append(f"outputs of {missing} trials were never compared: what they are compared with was gone by then")
    return notes
