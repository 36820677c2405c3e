"""How numbers and findings read, in every report: one place, so that markdown, page and terminal say the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from omnilab.experiment.analysis import findings
from omnilab.experiment.analysis.findings import Attribution, Effect, Findings, Moved, Variant

Row: TypeAlias = Mapping[str, Any]
TITLES = {
    "wall_s": "wall time", "ttft_ms": "first text", "audio_ttfp_ms": "first audio", "tpot_ms": "time a text token",
    "itl_ms": "gap between text tokens", "e2el_ms": "end to end", "audio_rtf": "RTF",
    "host_ms_per_step": "host ms a Talker step", "cpu_s": "CPU seconds", "request_throughput": "requests a second",
    "output_throughput": "text tokens a second", "audio_throughput": "audio seconds a second",
}  # fmt: skip
SHOWN = 5  # spans and counters named per variant


def ratio_text(found: Effect | None) -> str:
    """Write a ratio with its interval."""
    if found is None:
        return "-"
    edges = "" if found.low is None or found.high is None else f" [{found.low:.2f}, {found.high:.2f}]"
    return f"{found.ratio:.2f}{edges}"


def percent(share: float | None) -> str:
    """Write a share (0.03) as a percentage."""
    return "-" if share is None else f"{100 * share:.1f} %"


def amount(value: float | None, metric: str) -> str:
    """Write an absolute number with its unit."""
    unit = "s" if metric.endswith("_s") else "ms" if "_ms" in metric else ""
    return "-" if value is None else f"{short(value)} {unit}".strip()


def short(value: float) -> str:
    """Write a number with three digits, or in full from 100 on."""
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def verdict_text(variant: Variant) -> str:
    """Write a verdict, with how many more blocks would decide it."""
    if variant.verdict != findings.INCONCLUSIVE:
        return variant.verdict
    more = "more than 200" if variant.more_blocks is None else f"about {variant.more_blocks}"
    return f"{variant.verdict} ({more} more blocks)"


def heading(run: Row, ours: Findings) -> list[str]:
    """Return the lines above the table: what was run where, and what noise looks like."""
    machine, again = run["machine"], ours.same.get(ours.primary)
    what = "blocks, each arm on fresh servers" if run.get("arms") else "blocks on fresh processes"
    where = ", ".join([machine["cpu"], f"{machine['cores']} cores", *machine.get("gpus", ())])
    torch = f"torch {run['versions'].get('torch')}; " if not run.get("arms") else ""
    lines = [
        f"{ours.blocks} of {ours.planned_blocks} {what}; model {run['model']}; {where}; {torch}{run['started'][:10]}"
    ]
    if again is not None:
        level = "" if again.p is None else f", p = {again.p:.2g}"
        lines.append(f"Noise (A/A, the baseline over itself) in {TITLES[ours.primary]}: {ratio_text(again)}{level}")
    means = ", ".join(f"{title(ours, m)} {amount(ours.baseline[m], m)}" for m in ours.metrics)
    return [*lines, f"{ours.baseline_name}, means: {means}"]


def title(ours: Findings, metric: str) -> str:
    """Name a metric, and say where it is taken per audio second."""
    return f"{TITLES[metric]} an audio second" if metric in ours.per_audio else TITLES[metric]


def header(ours: Findings) -> list[str]:
    """Return the titles of the verdict table."""
    return [
        "variant",
        "output",
        *(title(ours, m) for m in ours.metrics),
        "detectable",
        "carries over",
        f"verdict on {title(ours, ours.primary)}",
    ]


def rows(ours: Findings) -> list[list[str]]:
    """Return the verdict table, a row a variant."""
    mains = [
        [f"{main.toggle}, main effect", *([""] * (1 + len(ours.metrics))), "", "", main.verdict] for main in ours.mains
    ]
    for main, row in zip(ours.mains, mains, strict=True):
        row[2 + ours.metrics.index(ours.primary)] = ratio_text(main.effect)
        row[2 + len(ours.metrics)] = percent(main.effect.mde)
    return mains + [_row(ours, variant) for variant in ours.variants]


def _row(ours: Findings, variant: Variant) -> list[str]:
    against = variant.against not in (None, ours.baseline_name)
    name = f"{variant.name} (against {variant.against})" if against else variant.name
    cells = [ratio_text(variant.effects.get(m)) if variant.effects else "" for m in ours.metrics]
    primary = variant.effects.get(ours.primary)
    least = percent(primary.mde) if primary is not None and primary.mde is not None else ""
    return [name, variant.output, *cells, least, variant.carries_short, verdict_text(variant)]


def effect_lines(ours: Findings) -> list[str]:
    """Say of each variant: absolute means, adjusted p, sensitivity, and which exploratory metrics moved."""
    lines = []
    for variant in ours.variants:
        effect = variant.effects.get(ours.primary)
        if effect is None:
            continue
        parts = [
            f"{title(ours, ours.primary)} {amount(effect.before, ours.primary)} -> "
            f"{amount(effect.after, ours.primary)}",
            f"p = {_p(effect.p)}, adjusted {_p(effect.p_adjusted)}",
            f"with trials beyond 5 MAD clipped {effect.clipped:.2f}" if effect.clipped is not None else "",
        ]
        lines.append(f"**{variant.name}**: " + "; ".join(part for part in parts if part))
        others = [
            f"{title(ours, m)} {ratio_text(e)} ({amount(e.before, m)} -> {amount(e.after, m)})"
            for m, e in variant.effects.items()
            if m != ours.primary and e.p_adjusted is not None and e.p_adjusted <= 0.05
        ]
        if others:
            lines.append(f"**{variant.name}**, exploratory (Benjamini-Hochberg): " + ", ".join(others))
    return lines


def _p(value: float | None) -> str:
    return "-" if value is None else f"{value:.2g}"


def moved_lines(ours: Findings) -> list[str]:
    """Say of each variant why it has no speed, what it counted and which spans moved."""
    return [f"**{variant.name}**: {line}" for variant in ours.variants for line in _said_of(variant)]


def _said_of(variant: Variant) -> list[str]:
    lines = [f"trials failed: {count} x {error}" for error, count in Counter(variant.errors).items()]
    if variant.verdict == findings.FAILED_GATE:
        return [*lines, f"failed the gate ({variant.output}), no speed: {variant.difference}"]
    if variant.difference is not None:
        lines.append(f"{variant.output}: {variant.difference}")
    if variant.growth is not None:
        lines.append(f"host work a chunk-consuming Talker step, last tenth over first tenth: {variant.growth:.1f}")
    if variant.against is None or variant.verdict == findings.NOT_MEASURED:
        return lines
    if variant.verdict == findings.NO_EFFECT:
        return [*lines, f"had no effect: no counter differs from {variant.against} by more than its own two trials do"]
    if not (ours_counts := moved_text(variant.counters, "")) and not variant.toggles:
        return lines  # an arm: it shows neither counters nor spans
    lines.append("counted: " + (ours_counts or "nothing that differs for certain"))
    spans = moved_text(variant.spans, " ms")
    return [*lines, f"spans (exploratory): {spans}" if spans else "no span sum moved beyond the noise"]


def moved_text(moved: Sequence[Moved], unit: str) -> str:
    """Name the largest few, with intervals of the change where there are any."""
    named = [f"{m.what} {short(m.before)} -> {short(m.after)}{unit}{_edges(m)}" for m in moved[:SHOWN]]
    return ", ".join(named) + (f" and {len(moved) - SHOWN} more" if len(moved) > SHOWN else "")


def _edges(moved: Moved) -> str:
    if moved.low is None or moved.high is None:
        return ""
    return f" (change [{short(moved.low)}, {short(moved.high)}])"


def predicted_lines(ours: Findings) -> list[str]:
    """Say what lengths alone predict beside what was measured."""
    lines = []
    for variant in ours.variants:
        if variant.predicted is None:
            continue
        counts = [
            f"{name} {before:,} -> {after:,} (measured {_span(variant.predicted.measured[name])})"
            for name, (before, after) in variant.predicted.counts.items()
            if before != after
        ]
        parts = [*(counts or ["no counted quantity changes"]), *_host_seconds(variant)]
        lines.append(f"**{variant.name}**: " + "; ".join(parts))
    return lines


def _host_seconds(variant: Variant) -> list[str]:
    """Say predicted and measured host seconds, and of a null whether it was to be expected."""
    found, wall = variant.predicted, variant.effects.get("wall_s")
    if found is None or found.host_s is None or found.measured_host_s is None:
        return []
    said = f"predicted {found.host_s:+.3f} s of host work a trial, measured {found.measured_host_s:+.3f} s"
    null = variant.verdict in (findings.INCONCLUSIVE, findings.EQUIVALENT)
    if not null or wall is None or wall.mde is None or wall.before is None:
        return [said]
    least = wall.mde * wall.before
    shown = f"the {least:.2f} s of wall time that can be shown"
    if abs(found.host_s) < least:
        return [f"{said}: less than {shown}, so lengths foretell a null"]
    return [f"{said}: more than {shown}, so a null surprises"]


def _span(pair: tuple[float, float]) -> str:
    return f"{pair[0]:,.0f} -> {pair[1]:,.0f}"


def sharing_lines(ours: Findings) -> list[str]:
    """Say where two toggles interact, strongest first, and how the total shares out."""
    lines = [
        f"**{found.first} and {found.second}** ({TITLES[ours.primary]}; together over expected "
        f"{ratio_text(found.effect)}): {found.words}"
        for found in ours.interactions
    ]
    lines += [
        f"**{pair}**, averaged over the others (exploratory): {ratio_text(effect)}, adjusted p {_p(effect.p_adjusted)}"
        for pair, effect in ours.pairs.items()
    ]
    return lines + ([] if ours.attribution is None else attribution_lines(ours.attribution))


def main_lines(ours: Findings) -> list[str]:
    """Say the main effects of a factorial: what its verdicts are on."""
    return [
        f"**{main.toggle}**: {ratio_text(main.effect)}, {main.verdict}; detectable {percent(main.effect.mde)}; "
        f"p = {_p(main.effect.p)}, adjusted {_p(main.effect.p_adjusted)}"
        for main in ours.mains
    ]


def attribution_lines(ours: Attribution) -> list[str]:
    """Say the Shapley values of a factorial."""
    lines = [
        f"All of these on: {ratio_text(ours.total)}. By noise alone, orders of turning toggles on spread a toggle's "
        f"worth over {100 * ours.noise_range:.1f} % on average."
    ]
    for share in ours.shares:
        part = "no share: the total is not clear of 1"
        if share.share is not None:
            value, low, high = (round(100 * edge) for edge in share.share)
            part = f"{value} % [{low}, {high}] of the total"
        lines.append(
            f"**{share.toggle}**: Shapley {ratio_text(share.shapley)}, {part}; from {share.least:.2f} to "
            f"{share.greatest:.2f} over all orders"
        )
    return lines


def carry_lines(ours: Findings) -> list[str]:
    """Say of each variant what carries over to a GPU."""
    return [f"**{variant.name}**: {variant.carries}" for variant in ours.variants if variant.carries]


def quantile_lines(ours: Findings) -> list[str]:
    """Say the effects on quantiles above the median, or why there are none; equal refusals once."""
    refused = [name for name, said in ours.quantiles.items() if said.startswith("refused")]
    lines = [f"{name} (exploratory): {said}" for name, said in ours.quantiles.items() if said and name not in refused]
    if refused:
        lines.append(f"{', '.join(refused)}: " + "; ".join(dict.fromkeys(ours.quantiles[name] for name in refused)))
    return lines


def reproduce_lines(run: Row) -> list[str]:
    """Say how to make these numbers again, and how to check them."""
    return [
        f"commit {run['commit']}; {_packages(run['versions'])}",
        f"`python -m omnilab.ablate` with the experiment {run['experiment']!r}, seed {run['seed']}; "
        f"plan {run['plan_hash'][:12]}",
        *(_arm_line(name, arm, run.get("installed", {}).get(name, {})) for name, arm in run.get("arms", {}).items()),
        *_subject_lines(run["model"], run.get("subject", {})),
        "`python -m omnilab.verify RUN` recomputes every number of this report from the rows",
        "intervals: 95 %, Student t over blocks, one position slope removed; Holm over the verdicts, "
        "Benjamini-Hochberg over the rest; detectable: least effect found in 80 % of runs at the verdict's level",
    ]


def _arm_line(name: str, arm: Row, packages: Mapping[str, str]) -> str:
    said = _packages(packages)
    return f"arm {name}: `{arm['command']}`" + (f"; {said}" if said else "")


def _subject_lines(model: str, subject: Row) -> list[str]:
    said = _packages(subject.get("versions", {}))
    return [f"{model}: {said}; the packages above are those of the client"] if said else []


def _packages(versions: Mapping[str, str | None]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items() if version)
