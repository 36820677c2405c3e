"""From the lines of a run to what they show. Reads plain rows, draws nothing, needs no torch."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from omnilab.experiment import estimate, findings, sharing
from omnilab.experiment.blocks import planned_blocks
from omnilab.experiment.carries import carries, in_short, limits
from omnilab.experiment.design import AGAIN, FACTORIALS
from omnilab.experiment.effects import (
    NOTED,
    WITHHELD,
    Comparison,
    effects_of,
    looked,
    more_blocks,
    same_of,
    verdict_of,
)  # fmt: skip
from omnilab.experiment.findings import Effect, Findings, Variant
from omnilab.experiment.moved import moved_counters, moved_spans, per_stage
from omnilab.experiment.prediction import predicted_of
from omnilab.experiment.results import aborted
from omnilab.experiment.table import Table, mean
from omnilab.metrics import VERDICT_METRICS

SHOWN_ON_CPU = ("host_ms_per_step", "cpu_s", "wall_s", "ttft_ms", "audio_ttfp_ms")
SHOWN_ON_GPU = ("wall_s", "audio_rtf", "ttft_ms", "audio_ttfp_ms", "host_ms_per_step")
CELL = "one cell: see the main effects"
QUANTILES = (0.90, 0.95, 0.99)
QUANTILE_METRICS = ("ttft_ms", "audio_ttfp_ms", "e2el_ms")
COMPARISONS = ("gate comparison", "comparison")
Row: TypeAlias = Mapping[str, Any]


def analyse(run: Row, lines: Sequence[Row]) -> Findings:
    """Analyse a run from its run.json and its lines."""
    table = Table(run, lines)
    outputs = {v["name"]: _output(run, lines, v["name"]) for v in run["variants"]}
    stopped = {name for name, (kind, _) in outputs.items() if kind in (findings.OTHER_OUTPUT, findings.OTHER_WORK)}
    metrics = _metrics(run)
    comparisons = [
        Comparison(v["name"], v["against"], run["design"] not in FACTORIALS)
        for v in run["variants"][1:]
        if v["name"] not in stopped and v["against"] not in stopped
    ]
    effects = effects_of(table, comparisons, metrics, run["primary"], run["margin"])
    same = same_of(table, metrics, run["margin"])
    cells = sharing.cells_of(run, stopped)
    factorial = sharing.contrasts_of(table, run, cells)
    found = Findings(
        baseline_name=run["baseline"],
        primary=run["primary"],
        margin=run["margin"],
        metrics=_shown(run),
        baseline={m: _baseline_mean(table, m) for m in metrics},
        same=same,
        variants=_variants(run, lines, table, comparisons, effects, outputs, _withheld(run, same)),
        interactions=sharing.interactions(table, cells, run["primary"], run["margin"]),
        mains=sharing.mains(table, run, factorial, _withheld(run, same)),
        pairs=sharing.pairs(table, run, factorial),
        attribution=sharing.attribution(table, run, cells, factorial),
        quantiles=_quantiles(run, table, comparisons),
        blocks=len(table.blocks),
        planned_blocks=planned_blocks(run, lines),
        unfinished=_unfinished(run, lines, stopped),
        trials=len(table.rows),
        disturbed=dict(sorted(Counter(why for row in table.rows.values() for why in row["disturbed"]).items())),
        per_stage=per_stage(table),
    )
    return _with_notes(found, run)


def _metrics(run: Row) -> tuple[str, ...]:
    throughputs = [m for m in VERDICT_METRICS if m.endswith("throughput") and m != run["primary"]]
    return tuple(m for m in VERDICT_METRICS if m not in throughputs)


def _shown(run: Row) -> tuple[str, ...]:
    shown = SHOWN_ON_GPU if run["cuda"] else SHOWN_ON_CPU
    return shown if run["primary"] in shown else (run["primary"], *shown)


def _variants(
    run: Row,
    lines: Sequence[Row],
    table: Table,
    comparisons: Sequence[Comparison],
    effects: Mapping[str, Mapping[str, Effect]],
    outputs: Mapping[str, tuple[str, str | None]],
    withheld: bool,
) -> tuple[Variant, ...]:
    by_name = {c.name: c for c in comparisons}
    toggles = {v["name"]: v["toggles"] for v in run["variants"]}
    spans = moved_spans(table, comparisons)
    decided = looked(table, list(comparisons), run["primary"]) if run["rule"]["rule"] == "looks" else {}
    found = []
    for variant in run["variants"]:
        name = variant["name"]
        rows = table.of(name)
        c, ours = by_name.get(name), effects.get(name, {})
        counters = () if c is None else moved_counters(table, c)
        verdict = _verdict(
            run, variant, outputs[name][0], ours.get(run["primary"]), counters, withheld, decided.get(name)
        )
        found.append(
            Variant(
                name=name,
                toggles=tuple(variant["toggles"]),
                against=variant["against"],
                claims=tuple(variant["claims"]),
                output=outputs[name][0],
                difference=outputs[name][1],
                errors=tuple(
                    line["error"]
                    for line in lines
                    if line["variant"] == name and line.get("error") and not aborted(line)
                ),
                trials=len(rows),
                effects=ours,
                primary=c is not None and c.primary,
                growth=mean([row["host_growth"] for row in rows]),
                counters=counters,
                spans=spans.get(name, ()),
                predicted=None if c is None else predicted_of(table, run, c, variant["toggles"], toggles[c.against]),
                carries="" if c is None else carries(run, variant["seams"], ours.get("host_ms_per_step")),
                carries_short="" if c is None else in_short(run, variant["seams"]),
                verdict=verdict,
                more_blocks=_more_blocks(run, table, comparisons, c)
                if verdict == findings.INCONCLUSIVE and c
                else None,
            )
        )
    return tuple(found)


def _verdict(
    run: Row,
    variant: Row,
    output: str,
    effect: Effect | None,
    counters: Sequence[Any],
    withheld: bool,
    decided: bool | None,
) -> str:
    if variant["against"] is None:
        return findings.BASELINE
    if output in (findings.OTHER_OUTPUT, findings.OTHER_WORK):
        return findings.FAILED_GATE
    if effect is None:
        return findings.NOT_MEASURED
    if not counters:
        return findings.NO_EFFECT
    if run["design"] in FACTORIALS:
        return CELL
    return verdict_of(effect, run["primary"], run["margin"], withheld, decided)


def _more_blocks(run: Row, table: Table, comparisons: Sequence[Comparison], c: Comparison) -> int | None:
    columns = table.columns(table.logs(run["primary"]))
    per_block = table.against(columns, c.name, c.against)
    return more_blocks(per_block, table.per_block, run["margin"], max(1, sum(c.primary for c in comparisons)))


def _withheld(run: Row, same: Mapping[str, Effect]) -> bool:
    found = same.get(run["primary"])
    return found is not None and found.p is not None and found.p < WITHHELD


def _baseline_mean(table: Table, metric: str) -> float | None:
    return mean([row["metrics"].get(metric) for block in table.blocks for row in table.baselines(block)])


def _output(run: Row, lines: Sequence[Row], name: str) -> tuple[str, str | None]:
    """Class a variant's output by all its comparisons, and give the first difference that counts against it."""
    if name == run["baseline"]:
        return findings.SAME, None
    failed = next(
        (
            line["error"]
            for line in lines
            if line["kind"] == "gate" and line["variant"] == name and line["error"] and not aborted(line)
        ),
        None,
    )
    if failed is not None:
        return findings.OTHER_OUTPUT, failed
    ours = [line for line in lines if line["kind"] in COMPARISONS and line["variant"] == name]
    again = {
        (line["kind"], line["block"]): line
        for line in lines
        if line["kind"] in COMPARISONS and line["variant"] == run["baseline"] + AGAIN
    }
    batch_shape: str | None = None
    for line in ours:
        if line["difference"] and not line["same_work"]:
            return findings.OTHER_WORK, line["difference"]
        if line["difference"]:
            twin = again.get((line["kind"], line["block"]))
            if twin is None or not twin["difference"]:
                return findings.OTHER_OUTPUT, line["difference"]
            batch_shape = (
                f"{line['differing']} of {line['requests']} requests; the baseline differs from itself in "
                f"{twin['differing']}: {line['difference']}"
            )
    if batch_shape is not None:
        return findings.BATCH_SHAPE, batch_shape
    if not ours:
        return findings.NOT_COMPARED, None
    return (findings.SAME if all(all(line["equal"].values()) for line in ours) else findings.OTHER_SAMPLES), None


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


def _with_notes(found: Findings, run: Row) -> Findings:
    from dataclasses import replace

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
    for why, count in found.disturbed.items():
        notes.append(f"{count} of {found.trials} trials were disturbed: {why}")
    if all(v.output == findings.NOT_COMPARED for v in found.variants if v.against):
        notes.append("no output was compared: no gate prompts, or nothing finished")
    return replace(found, notes=(*notes, *limits(run)))
