"""Two runs side by side: may they be compared, and does the second repeat what the first has shown?

Each run keeps its own effects over blocks. Their ratio is judged by Welch's t on the log scale, from both runs'
standard errors, the price of the position slope included; no trial of one is paired with a trial of the other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from scipy import stats

from omnilab.experiment.analysis.findings import Effect, Variant
from omnilab.experiment.analysis.table import Table
from omnilab.experiment.checks.differences import compared
from omnilab.experiment.reports.report import Report
from omnilab.experiment.results import plain
from omnilab.experiment.statistics import estimate
from omnilab.experiment.statistics.estimate import INTERVAL_BLOCKS, LEAST_SE, LEVEL, Estimate

Row: TypeAlias = Mapping[str, Any]
REPEATS, DIFFERS, CANNOT_TELL = "repeats", "differs", "cannot tell"
# Facts that a number depends on; what a machine does at the moment, its clock and free memory, is none of them.
MACHINE = ("cpu", "cores", "system", "python", "gpus", "driver")
SETTINGS = ("model", "device", "cuda", "topology", "primary")
VERSIONS = ("torch", "transformers")
SEEDS = ("seed", "random_seed")
TOLD = 3  # differences of a workload that are named


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A variant in both runs: its effect on the primary metric, its verdict, and B's ratio over A's."""

    name: str
    against: str
    a: Effect | None
    b: Effect | None
    verdict_a: str
    verdict_b: str
    ratio: float | None
    low: float | None
    high: float | None
    word: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What two runs show together. With `reasons` they cannot be compared, and `pairs` are not to be trusted."""

    primary: str
    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    baseline_a: float | None
    baseline_b: float | None
    pairs: tuple[Pair, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return it for machines: strict JSON values."""
        return {**plain(self), "comparable": not self.reasons}


def compare(a: Report, b: Report) -> Comparison:
    """Compare run B with run A on A's primary metric; look at `reasons` before anything else."""
    shared = _shared(a.run, b.run)
    reasons = [*_same_run(a, b), *_settings(a.run, b.run), *_workloads(a.run, b.run)]
    if not any(_alike(a.run, b.run, name) for name in shared):
        reasons += _no_variants(a.run, b.run, shared)
    # Where the two are alike in some variants only these count; a comparison by force takes what has the same name.
    names = [name for name in shared if _alike(a.run, b.run, name)] or shared
    primary = a.run["primary"]
    return Comparison(
        primary=primary,
        reasons=tuple(reasons),
        notes=tuple(_notes(a.run, b.run, names)),
        baseline_a=a.findings.baseline.get(primary),
        baseline_b=b.findings.baseline.get(primary),
        pairs=tuple(_pair(a, b, name, primary) for name in names),
    )


def _same_run(a: Report, b: Report) -> Iterator[str]:
    if a.lines and a.lines == b.lines:
        yield "both are the same run"


def _settings(a: Row, b: Row) -> Iterator[str]:
    for there, keys in (("machine", MACHINE), ("versions", VERSIONS)):
        for key in keys:
            old, new = a[there].get(key), b[there].get(key)
            if old != new:
                yield f"other {'machine: ' if there == 'machine' else ''}{key}: {old} and {new}"
    yield from (f"other {key}: {a[key]} and {b[key]}" for key in SETTINGS if a[key] != b[key])


def _workloads(a: Row, b: Row) -> Iterator[str]:
    old, new = (_unseeded(run["workload"]) for run in (a, b))
    counts = [len(workload["requests"]) for workload in (old, new)]
    if counts[0] != counts[1]:
        yield f"other workload: {counts[0]} and {counts[1]} requests"
        new = {**new, "requests": old["requests"]}
    found = compared("", old, new)
    if found:
        said = "; ".join(f"{one.where}: {one.stored} and {one.recomputed}" for one in found[:TOLD])
        yield f"other workload: {said}" + (f" and {len(found) - TOLD} more" if len(found) > TOLD else "")


def _unseeded(value: Any) -> Any:
    """Return a workload's shape: all of it but its seeds, so that random prompts are their lengths."""
    if isinstance(value, Mapping):
        return {key: _unseeded(inner) for key, inner in value.items() if key not in SEEDS}
    return [_unseeded(inner) for inner in value] if isinstance(value, list) else value


def _shared(a: Row, b: Row) -> list[str]:
    """Return the names of variants that both have, but for the baseline."""
    there = {variant["name"] for variant in b["variants"][1:]}
    return [variant["name"] for variant in a["variants"][1:] if variant["name"] in there]


def _alike(a: Row, b: Row, name: str) -> bool:
    """Is it the same comparison: the same occupants by name, over the same ones?"""
    return not _unlike(a, b, name)


def _unlike(a: Row, b: Row, name: str) -> list[str]:
    old, new = _variant(a, name), _variant(b, name)
    if old["against"] != new["against"]:
        return [f"{name} is compared with {old['against']} and with {new['against']}"]
    return [
        f"{one}, seam {found.where}: {found.stored} and {found.recomputed}"
        for one in (name, old["against"])
        for found in compared("", _names(_variant(a, one)), _names(_variant(b, one)))
    ]


def _variant(run: Row, name: str) -> Row:
    return next(variant for variant in run["variants"] if variant["name"] == name)


def _names(variant: Row) -> dict[str, str]:
    return {seam: occupant.split()[0] for seam, occupant in variant["occupants"].items()}


def _no_variants(a: Row, b: Row, shared: list[str]) -> Iterator[str]:
    if not shared:
        has = [", ".join(variant["name"] for variant in run["variants"][1:]) for run in (a, b)]
        yield f"no variant is in both: {has[0]}; {has[1]}"
    for name in shared:
        yield f"other variant: {'; '.join(_unlike(a, b, name)[:TOLD])}"


def _notes(a: Row, b: Row, names: list[str]) -> Iterator[str]:
    """Say what is not the same, and yet no reason against a comparison."""
    if a["commit"] != b["commit"] or a["commit"] is None:
        yield f"commit {_short(a['commit'])} and {_short(b['commit'])}"
    if a["margin"] != b["margin"]:
        yield f"margin {100 * a['margin']:g} % and {100 * b['margin']:g} %: each verdict is by its own"
    changed = {seam for name in names for seam in _other_source(_variant(a, name), _variant(b, name))}
    if changed:
        yield f"occupants with another source in both runs, in the seams {', '.join(sorted(changed))}"
    others = [v["name"] for run in (a, b) for v in run["variants"][1:] if v["name"] not in names]
    if others:
        yield f"not in both, or not the same in both: {', '.join(dict.fromkeys(others))}"
    if a["seed"] == b["seed"]:
        yield f"both have seed {a['seed']}: the same requests and orders, so they share what is peculiar to these"


def _other_source(old: Row, new: Row) -> list[str]:
    return [seam for seam, occupant in old["occupants"].items() if new["occupants"].get(seam) != occupant]


def _short(commit: str | None) -> str:
    return "unknown" if commit is None else commit[:12] + ("+changes" if commit.endswith("+changes") else "")


def _pair(a: Report, b: Report, name: str, primary: str) -> Pair:
    variants = [report.result(name) for report in (a, b)]
    effects = [variant.effects.get(primary) for variant in variants]
    old, new = (_estimate(report, variant, primary) for report, variant in zip((a, b), variants, strict=True))
    logs = (None, None, None) if old is None or new is None else ratio_of(old, new)
    ratio, low, high = (None if edge is None else math.exp(edge) for edge in logs)
    return Pair(
        name=name,
        against=variants[0].against or "",
        a=effects[0],
        b=effects[1],
        verdict_a=variants[0].verdict,
        verdict_b=variants[1].verdict,
        ratio=ratio,
        low=low,
        high=high,
        word=_word(effects[0], effects[1], low, high),
    )


def _estimate(report: Report, variant: Variant, primary: str) -> Estimate | None:
    """Return the log ratio with its standard error; None for what has no speed."""
    if primary not in variant.effects or variant.against is None:
        return None
    table = Table(report.run, report.lines)
    columns = table.columns(table.logs(primary))
    return estimate.estimate(table.against(columns, variant.name, variant.against), table.per_block)


def ratio_of(a: Estimate, b: Estimate) -> tuple[float, float | None, float | None]:
    """Return b less a, both logs, with Welch's 95 % interval; no interval when a run has fewer than 3 blocks."""
    value = b.value - a.value
    if a.se is None or b.se is None or min(a.blocks, b.blocks) < INTERVAL_BLOCKS:
        return value, None, None
    variances = [max(one.se or 0.0, LEAST_SE) ** 2 for one in (a, b)]
    weights = [v**2 / (one.blocks - 1) for v, one in zip(variances, (a, b), strict=True)]
    df = sum(variances) ** 2 / sum(weights)
    half = float(stats.t.ppf((1 + LEVEL) / 2, df)) * math.sqrt(sum(variances))
    return value, value - half, value + half


def _word(a: Effect | None, b: Effect | None, low: float | None, high: float | None) -> str:
    """Say whether B repeats A: both clear of 1 on one side, and not clear of each other."""
    if a is None or b is None or low is None or high is None:
        return CANNOT_TELL
    if not low <= 1.0 <= high:
        return DIFFERS
    clear = a.excludes_one() and b.excludes_one() and (a.ratio < 1) == (b.ratio < 1)
    return REPEATS if clear else CANNOT_TELL
