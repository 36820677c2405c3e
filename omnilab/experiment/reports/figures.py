"""Figures of a run as SVG text: one file reads well on a light and on a dark page, and is the same byte for byte."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from omnilab.experiment.analysis.findings import (
    FAILED_GATE,
    FASTER,
    NO_INTERACTION,
    SLOWER,
    Attribution,
    Findings,
    Interaction,
    Share,
)
from omnilab.experiment.reports import verdicts, words
from omnilab.experiment.reports.drawing import (
    BAND,
    BLUE,
    COLOURS,
    FAINT,
    INK,
    LINES,
    LONGEST,
    OTHER,
    VERMILION,
    Line,
    as_svg,
    columns,
    curve,
    cut,
    labels,
    legend,
    log_axis,
    name_rows,
    new_figure,
    reach,
    row_figure,
    shifts,
    spaced,
    stacked_bars,
    styled,
    whisker,
    widened,
)
from omnilab.metrics import THROUGHPUTS

if TYPE_CHECKING:
    import pandas as pd

STAGES = ("thinker", "talker", "code2wav")


def effects(findings: Findings, metric: str) -> str:
    """Draw a forest plot: a line a variant with its ratio and 95 % interval, on the band of the A/A noise.

    Only the primary metric has verdicts: of main effects where the design has them, else of variants. What failed the
    gate is named and has no point.
    """
    rows, same, primary = verdicts.judged(findings, metric), findings.same.get(metric), metric == findings.primary
    mean, last = words.amount(findings.baseline.get(metric), metric), len(rows)
    title = f"{_title(metric)}: ratio over {cut(findings.baseline_name)} ({mean})"
    with styled():
        figure, axes = row_figure([*(row.name for row in rows), "A/A: baseline again"], title)
        log_axis(axes, "x", *reach([effect for effect in (same, *(row.effect for row in rows)) if effect is not None]))
        axes.axvline(1.0, color=INK, linewidth=1)
        if same is not None:
            axes.axvspan(same.low or 1.0, same.high or 1.0, color=INK, alpha=BAND, linewidth=0, gid="noise")
            whisker(axes, same, last, INK, "same")
        for place, row in enumerate(rows):
            if row.effect is not None:
                whisker(axes, row.effect, place, _colour(row.verdict) if primary else INK, f"point-{place}")
        ratios = [row.ratio or ("" if primary else row.verdict) for row in rows]
        cells = [*zip(ratios, (row.words for row in rows), strict=True), (words.ratio_text(same), "grey band")]
        shown = 1 + primary
        columns(axes, ["ratio [95 %]", "verdict"][:shown], [texts[:shown] for texts in cells])
        less, more = ("slower", "faster") if metric in THROUGHPUTS else ("faster", "slower")
        axes.set_xlabel(f"← {less} (log axis) {more} →")
        return as_svg(figure, "effects", title)


def waterfall(findings: Findings) -> str | None:
    """Draw Shapley values as steps from the baseline's mean to everything on; None without an attribution.

    The thin bar beside a step is what the toggle adds at the least and at the most, over all orders of turning on.
    """
    if (found := findings.attribution) is None:
        return None
    ends, last = _ends(findings, found), len(found.shares) + 1
    noise = math.exp(found.noise_range)
    title = f"{_title(findings.primary)}: what each toggle brings (Shapley values)"
    start, after = (words.amount(end, findings.primary) for end in _span(findings, found))
    toggles = [share.toggle for share in found.shares]
    names = [f"{cut(findings.baseline_name)}: {start}", *toggles, f"all together: {after}", "noise alone"]
    with styled():
        figure, axes = row_figure(names, title)
        thin = [(ends[row] * s.least, ends[row] * s.greatest) for row, s in enumerate(found.shares)]
        reached = [*ends, ends[-1] * noise, *(edge for bar in thin for edge in bar)]
        log_axis(axes, "x", *widened(min(reached), max(reached)))
        for row, share in enumerate(found.shares, start=1):
            colour = _step_colour(share, findings.primary)
            left, right = sorted(ends[row - 1 : row + 1])
            axes.barh(row, right - left, left=left, height=0.4, color=colour, edgecolor=colour, linewidth=2)
        for row, (low, high) in zip([*range(1, last), last + 1], [*thin, (ends[-1], ends[-1] * noise)], strict=True):
            axes.plot([low, high], [row + 0.34] * 2, color=INK, linewidth=2.5, solid_capstyle="butt")
        for row, end in enumerate(ends):
            axes.plot([end] * 2, [row, row + 1], color=INK, linewidth=0.8, alpha=FAINT)
        axes.plot([ends[0], ends[-1]], [0, last], "D", color=INK)
        columns(axes, ["ratio [95 %]", "by order (thin)", "of total"], _step_cells(found))
        axes.set_xlabel("log axis; thin bars: the least and the most a toggle brings, over all orders of turning on")
        return as_svg(figure, "waterfall", title)


def two_by_two(interaction: Interaction, title: str) -> str:
    """Draw the four cells of two toggles as two lines; hollow: where both would be if the effects multiplied.

    What lies between the hollow point and the measured one is the interaction, in colour when its interval leaves
    out 1. `title` names the metric.
    """
    ours, clear = interaction, interaction.kind != NO_INTERACTION
    first, second = cut(ours.first), cut(ours.second)
    heading = f"{_capital(title)}: {first} and {second}"
    values = [1.0, ours.first_alone, ours.second_alone, ours.together, ours.expected]
    with styled():
        figure = new_figure(4.2, heading)
        axes = figure.add_subplot()
        log_axis(axes, "y", *widened(min(values), max(values)))
        measured, expected = [ours.first_alone, ours.together], [ours.first_alone, ours.expected]
        shade = {"color": VERMILION, "alpha": 0.35} if clear else {"color": INK, "alpha": BAND}
        axes.fill_between([0, 1], measured, expected, linewidth=0, gid="gap", **shade)
        axes.plot([0, 1], expected, "--", color=BLUE, linewidth=1.2)
        axes.plot([0, 1], [1.0, ours.second_alone], "-o", color=INK, linewidth=2)
        axes.plot([0, 1], measured, "-o", color=BLUE, linewidth=2)
        axes.plot([1], [ours.expected], "o", color=BLUE, markerfacecolor="none", markersize=10, gid="expected")
        axes.set_xlim(-0.75, 1.75)
        axes.set_xticks([0, 1], [f"{second} off", f"{second} on"])
        axes.set_ylabel("ratio over neither (log axis)")
        left = [(0, 1.0, "neither", INK), (0, ours.first_alone, first, BLUE)]
        right = [
            (1, ours.second_alone, second, INK),
            (1, ours.together, "both", BLUE),
            (1, ours.expected, "if they multiplied", BLUE),
        ]
        for x, side, marks in ((-0.06, "right", left), (1.06, "left", right)):
            labels(figure, axes, [(at, y, f"{text}: {y:.2f}", hue) for at, y, text, hue in marks], x, side)
        axes.set_xlabel(f"both over the product: {words.ratio_text(ours.effect)}, {ours.kind}")
        return as_svg(figure, "two-by-two", heading)


def per_stage(findings: Findings) -> str | None:
    """Draw time a trial by span name: a panel a stage, a bar a variant; None when no span was kept.

    The largest names have a colour each, the rest is "other". What failed the gate has no bar.
    """
    table = _table(findings)
    if table.empty:
        return None
    stages = sorted(table.index.unique("stage"), key=lambda s: (STAGES.index(s) if s in STAGES else len(STAGES), s))
    variants = [name for name in findings.per_stage if name in table.index.unique("variant")]
    unit, ms = ("s", 1e3) if table.sum(axis=1).max() >= 1e3 else ("ms", 1.0)
    title = "Where time goes: span sums of a trial, by stage"
    with styled():
        figure = new_figure(1.3 + len(stages) * (0.4 + 0.27 * len(variants)), title, variants)
        panels = figure.subplots(len(stages), 1, sharex=True, squeeze=False)[:, 0]
        for axes, stage in zip(panels, stages, strict=True):
            stacked_bars(axes, table.loc[stage].reindex(variants, fill_value=0.0) / ms, unit)
            axes.set_title(stage, fontweight="bold")
            name_rows(axes, variants)
        panels[-1].margins(x=0.12)
        panels[-1].set_xlabel(f"{unit}; spans of several threads overlap: bars do not add up to wall time")
        legend(figure, table.columns)
        return as_svg(figure, "per-stage", title)


def against_length(points: Sequence[tuple[str, float, Findings]], x_label: str = "tokens") -> str:
    """Draw the primary metric's ratio against x: a line a variant with 95 % intervals, on the A/A noise.

    `points`, one or more, are (label, x > 0, findings) of a sweep. A variant has no point where it failed the gate.
    """
    ordered = sorted(points, key=lambda point: point[1])
    findings = ordered[0][2]
    lines, places = _lines(ordered), [x for _, x, _ in ordered]
    same = [(x, found.same[found.primary]) for _, x, found in ordered if found.primary in found.same]
    title = f"{_title(findings.primary)}: ratio over {cut(findings.baseline_name)} against {x_label}"
    with styled():
        figure = new_figure(max(4.2, 1.2 + 0.22 * len(lines)), title, lines)
        axes = figure.add_subplot()
        log_axis(axes, "y", *reach([effect for line in (same, *lines.values()) for _, effect in line]))
        log_axis(axes, "x", *widened(min(places), max(places)), ticks=spaced(places))
        axes.axhline(1.0, color=INK, linewidth=1)
        noise = [(x, e.low, e.high) for x, e in same if e.low is not None and e.high is not None]
        if noise:
            axes.fill_between(*np.transpose(noise), color=INK, alpha=BAND, linewidth=0, gid="noise")
        marks = []
        for index, ((name, line), shift) in enumerate(zip(lines.items(), shifts(places, len(lines)), strict=True)):
            x, last = curve(axes, [(x * shift, effect) for x, effect in line], index)
            marks.append((x, last.ratio, cut(name, LONGEST), COLOURS[index % LINES]))
        labels(figure, axes, marks, axes.get_xlim()[1] * 1.01, "left")
        axes.set_ylabel("ratio (log axis)")
        axes.set_xlabel(f"{x_label} (log axis); grey: A/A noise{_without_speed(ordered)}")
        return as_svg(figure, "against", title)


def _span(findings: Findings, found: Attribution) -> tuple[float | None, float | None]:
    """Return the primary metric's mean with nothing on, and with everything on."""
    start = findings.baseline.get(findings.primary)
    return start, None if start is None else start * found.total.ratio


def _ends(findings: Findings, found: Attribution) -> list[float]:
    """Where the steps stand: the baseline's mean (1 when there is none), then after each toggle."""
    start = findings.baseline.get(findings.primary) or 1.0
    return (start * np.cumprod([1.0, *(share.shapley.ratio for share in found.shares)])).tolist()


def _step_cells(found: Attribution) -> list[list[str]]:
    steps = [[words.ratio_text(s.shapley), f"×{s.least:.2f} to ×{s.greatest:.2f}", _part(s)] for s in found.shares]
    noise = f"×{math.exp(found.noise_range):.2f} wide"
    return [["", "", ""], *steps, [words.ratio_text(found.total), "", ""], ["", noise, ""]]


def _step_colour(share: Share, metric: str) -> str:
    if not share.shapley.excludes_one():
        return INK
    return BLUE if (share.shapley.ratio < 1) != (metric in THROUGHPUTS) else VERMILION


def _table(findings: Findings) -> pd.DataFrame:
    """Return ms by (stage, variant), a column a span name: the largest, then the sum of the rest."""
    import pandas as pd

    failed = {variant.name for variant in findings.variants if variant.verdict == FAILED_GATE}
    rows = [
        (variant, key.split("/")[0], key.split("/")[-1], ms)
        for variant, by in findings.per_stage.items()
        if variant not in failed
        for key, ms in by.items()
    ]
    frame = pd.DataFrame(rows, columns=["variant", "stage", "name", "ms"])
    if frame.empty:
        return frame
    table = frame.pivot_table(index=["stage", "variant"], columns="name", values="ms", aggfunc="sum", fill_value=0.0)
    most = frame.pivot_table(index="name", columns="variant", values="ms", aggfunc="sum", fill_value=0.0).max(axis=1)
    largest = most.nlargest(len(COLOURS)).index
    rest = table.drop(columns=largest)
    return table.loc[:, largest].assign(**({OTHER: rest.sum(axis=1)} if rest.size else {}))


def _lines(points: Sequence[tuple[str, float, Findings]]) -> dict[str, Line]:
    """Return the effects by variant, in the order of the variants."""
    lines: dict[str, Line] = {}
    for _, x, findings in points:
        for variant in findings.variants:
            if (effect := verdicts.effect_of(variant, findings.primary)) is not None:
                lines.setdefault(verdicts.name_of(variant, findings), []).append((x, effect))
    return lines


def _without_speed(points: Sequence[tuple[str, float, Findings]]) -> str:
    failed = [v.name for _, _, findings in points for v in findings.variants if v.verdict == FAILED_GATE]
    names = [cut(name) for name in dict.fromkeys(failed)]
    shown = ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")
    return f"; {FAILED_GATE} somewhere: {shown}" if failed else ""


def _part(share: Share) -> str:
    return "" if share.share is None else f"{100 * share.share[0]:.0f} %"


def _title(metric: str) -> str:
    return _capital(words.TITLES.get(metric, metric))


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _colour(verdict: str) -> str:
    return BLUE if verdict.startswith(FASTER) else VERMILION if verdict.startswith(SLOWER) else INK
