"""Figures of a run as SVG text: one file reads well on a light and on a dark page, and is the same byte for byte.

Text stays text and takes the colour of the page; ids are unique over all figures, so that a page can hold any of them.
matplotlib  is imported when a figure is drawn.
"""

from __future__ import annotations

import hashlib
import io
import math
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.optimize import isotonic_regression

from omnilab.experiment.analysis.findings import (
    FAILED_GATE,
    FASTER,
    NO_INTERACTION,
    SLOWER,
    Attribution,
    Effect,
    Findings,
    Interaction,
    Share,
)
from omnilab.experiment.reports import verdicts, words
from omnilab.metrics import THROUGHPUTS

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Line = list[tuple[float, Effect]]  # of one variant: x and the effect there


STAGES = ("thinker", "talker", "code2wav")
OTHER = "other"

# Okabe and Ito: told apart with any colour vision, on white and on black. The last, yellow, is for areas only.
BLUE, VERMILION = "#0072b2", "#d55e00"
COLOURS = (BLUE, VERMILION, "#009e73", "#e69f00", "#cc79a7", "#56b4e9", "#f0e442")
LINES = len(COLOURS) - 1
INK = "#010203"  # stands for the colour of the page's text until the SVG is written
BAND, FAINT = 0.14, 0.55  # how opaque ink is in areas, and in thin lines

WIDTH, ROW = 10.0, 0.3  # inches
POINTS = 72  # an inch
LETTER, GAP = 6.2, 14  # points: a letter's width, between columns and between labels
LONGEST, SHORT = 72, 30  # letters of a name, beside rows and elsewhere
FONTS = "system-ui, sans-serif"
RC = {
    "svg.fonttype": "none",
    "svg.hashsalt": "omnilab",
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans"],  # matplotlib brings it: texts measure the same everywhere, and wide
    "font.size": 10,
    "text.parse_math": False,  # a name may hold dollars
    **{f"{part}.color": INK for part in ("text", "xtick", "ytick", "grid")},
    **{f"axes.{part}color": INK for part in ("edge", "label")},
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
    "axes.axisbelow": True,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "grid.alpha": BAND,
    "lines.markersize": 7,
}


def effects(findings: Findings, metric: str) -> str:
    """Draw a forest plot: a line a variant with its ratio and 95 % interval, on the band of the A/A noise.

    Only the primary metric has verdicts: of main effects where the design has them, else of variants. What failed the
    gate is named and has no point.
    """
    rows, same, primary = verdicts.judged(findings, metric), findings.same.get(metric), metric == findings.primary
    mean, last = words.amount(findings.baseline.get(metric), metric), len(rows)
    title = f"{_title(metric)}: ratio over {_cut(findings.baseline_name)} ({mean})"
    with _style():
        figure, axes = _rows([*(row.name for row in rows), "A/A: baseline again"], title)
        _log(axes, "x", *_reach([effect for effect in (same, *(row.effect for row in rows)) if effect is not None]))
        axes.axvline(1.0, color=INK, linewidth=1)
        if same is not None:
            axes.axvspan(same.low or 1.0, same.high or 1.0, color=INK, alpha=BAND, linewidth=0, gid="noise")
            _whisker(axes, same, last, INK, "same")
        for place, row in enumerate(rows):
            if row.effect is not None:
                _whisker(axes, row.effect, place, _colour(row.verdict) if primary else INK, f"point-{place}")
        ratios = [row.ratio or ("" if primary else row.verdict) for row in rows]
        cells = [*zip(ratios, (row.words for row in rows), strict=True), (words.ratio_text(same), "grey band")]
        columns = 1 + primary
        _columns(axes, ["ratio [95 %]", "verdict"][:columns], [texts[:columns] for texts in cells])
        less, more = ("slower", "faster") if metric in THROUGHPUTS else ("faster", "slower")
        axes.set_xlabel(f"← {less} (log axis) {more} →")
        return _svg(figure, "effects", title)


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
    names = [f"{_cut(findings.baseline_name)}: {start}", *toggles, f"all together: {after}", "noise alone"]
    with _style():
        figure, axes = _rows(names, title)
        thin = [(ends[row] * s.least, ends[row] * s.greatest) for row, s in enumerate(found.shares)]
        reached = [*ends, ends[-1] * noise, *(edge for bar in thin for edge in bar)]
        _log(axes, "x", *_widened(min(reached), max(reached)))
        for row, share in enumerate(found.shares, start=1):
            colour = _step_colour(share, findings.primary)
            left, right = sorted(ends[row - 1 : row + 1])
            axes.barh(row, right - left, left=left, height=0.4, color=colour, edgecolor=colour, linewidth=2)
        for row, (low, high) in zip([*range(1, last), last + 1], [*thin, (ends[-1], ends[-1] * noise)], strict=True):
            axes.plot([low, high], [row + 0.34] * 2, color=INK, linewidth=2.5, solid_capstyle="butt")
        for row, end in enumerate(ends):
            axes.plot([end] * 2, [row, row + 1], color=INK, linewidth=0.8, alpha=FAINT)
        axes.plot([ends[0], ends[-1]], [0, last], "D", color=INK)
        _columns(axes, ["ratio [95 %]", "by order (thin)", "of total"], _step_cells(found))
        axes.set_xlabel("log axis; thin bars: the least and the most a toggle brings, over all orders of turning on")
        return _svg(figure, "waterfall", title)


def two_by_two(interaction: Interaction, title: str) -> str:
    """Draw the four cells of two toggles as two lines; hollow: where both would be if the effects multiplied.

    What lies between the hollow point and the measured one is the interaction, in colour when its interval leaves
    out 1. `title` names the metric.
    """
    ours, clear = interaction, interaction.kind != NO_INTERACTION
    first, second = _cut(ours.first), _cut(ours.second)
    heading = f"{_capital(title)}: {first} and {second}"
    values = [1.0, ours.first_alone, ours.second_alone, ours.together, ours.expected]
    with _style():
        figure = _figure(4.2, heading)
        axes = figure.add_subplot()
        _log(axes, "y", *_widened(min(values), max(values)))
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
            _labels(figure, axes, [(at, y, f"{text}: {y:.2f}", hue) for at, y, text, hue in marks], x, side)
        axes.set_xlabel(f"both over the product: {words.ratio_text(ours.effect)}, {ours.kind}")
        return _svg(figure, "two-by-two", heading)


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
    with _style():
        figure = _figure(1.3 + len(stages) * (0.4 + 0.27 * len(variants)), title, variants)
        panels = figure.subplots(len(stages), 1, sharex=True, squeeze=False)[:, 0]
        for axes, stage in zip(panels, stages, strict=True):
            _bars(axes, table.loc[stage].reindex(variants, fill_value=0.0) / ms, unit)
            axes.set_title(stage, fontweight="bold")
            _name_rows(axes, variants)
        panels[-1].margins(x=0.12)
        panels[-1].set_xlabel(f"{unit}; spans of several threads overlap: bars do not add up to wall time")
        _legend(figure, table.columns)
        return _svg(figure, "per-stage", title)


def against_length(points: Sequence[tuple[str, float, Findings]], x_label: str = "tokens") -> str:
    """Draw the primary metric's ratio against x: a line a variant with 95 % intervals, on the A/A noise.

    `points`, one or more, are (label, x > 0, findings) of a sweep. A variant has no point where it failed the gate.
    """
    ordered = sorted(points, key=lambda point: point[1])
    findings = ordered[0][2]
    lines, places = _lines(ordered), [x for _, x, _ in ordered]
    same = [(x, found.same[found.primary]) for _, x, found in ordered if found.primary in found.same]
    title = f"{_title(findings.primary)}: ratio over {_cut(findings.baseline_name)} against {x_label}"
    with _style():
        figure = _figure(max(4.2, 1.2 + 0.22 * len(lines)), title, lines)
        axes = figure.add_subplot()
        _log(axes, "y", *_reach([effect for line in (same, *lines.values()) for _, effect in line]))
        _log(axes, "x", *_widened(min(places), max(places)), ticks=_spaced(places))
        axes.axhline(1.0, color=INK, linewidth=1)
        noise = [(x, e.low, e.high) for x, e in same if e.low is not None and e.high is not None]
        if noise:
            axes.fill_between(*np.transpose(noise), color=INK, alpha=BAND, linewidth=0, gid="noise")
        marks = []
        for index, ((name, line), shift) in enumerate(zip(lines.items(), _shifts(places, len(lines)), strict=True)):
            x, last = _curve(axes, [(x * shift, effect) for x, effect in line], index)
            marks.append((x, last.ratio, _cut(name, LONGEST), COLOURS[index % LINES]))
        _labels(figure, axes, marks, axes.get_xlim()[1] * 1.01, "left")
        axes.set_ylabel("ratio (log axis)")
        axes.set_xlabel(f"{x_label} (log axis); grey: A/A noise{_without_speed(ordered)}")
        return _svg(figure, "against", title)


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
    names = [_cut(name) for name in dict.fromkeys(failed)]
    shown = ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")
    return f"; {FAILED_GATE} somewhere: {shown}" if failed else ""


def _part(share: Share) -> str:
    return "" if share.share is None else f"{100 * share.share[0]:.0f} %"


def _title(metric: str) -> str:
    return _capital(words.TITLES.get(metric, metric))


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _cut(name: str, longest: int = SHORT) -> str:
    """Make a name fit: printable, and its middle left out when it is long."""
    plain = "".join(letter if letter.isprintable() else " " for letter in name)
    return plain if len(plain) <= longest else f"{plain[: longest - 12]}…{plain[-11:]}"


@contextmanager
def _style() -> Iterator[None]:
    """Draw as matplotlib ships and as RC says, whatever a user has set; a script that DejaVu lacks is no warning."""
    import matplotlib.style

    with warnings.catch_warnings(), matplotlib.style.context(["default", RC]):
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        yield


def _figure(height: float, title: str, names: Iterable[str] = ()) -> Figure:
    """Make a figure of so many inches, wide enough for the names beside it."""
    from matplotlib.figure import Figure

    beyond = max((len(_cut(name, LONGEST)) - SHORT for name in names), default=0)
    figure = Figure(figsize=(WIDTH + max(0, beyond) * LETTER / POINTS, height), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
    return figure


def _rows(names: Sequence[str], title: str) -> tuple[Figure, Axes]:
    """Make axes of a row a name, the first on top."""
    figure = _figure(1.2 + ROW * len(names), title, names)
    axes = figure.add_subplot()
    axes.spines["left"].set_visible(False)
    _name_rows(axes, names)
    return figure, axes


def _name_rows(axes: Axes, names: Sequence[str]) -> None:
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_yticks(range(len(names)), [_cut(name, LONGEST) for name in names])
    axes.tick_params(axis="y", length=0)


def _log(axes: Axes, which: str, low: float, high: float, ticks: Sequence[float] | None = None) -> None:
    """Make the axis logarithmic, with few and round ticks."""
    from matplotlib.ticker import NullLocator

    axes.set(**{f"{which}scale": "log", f"{which}lim": (low, high)})
    axis = axes.xaxis if which == "x" else axes.yaxis
    places = _round(low, high) if ticks is None else ticks
    axis.set_ticks(places, [f"{place:,g}" for place in places])
    axis.set_minor_locator(NullLocator())
    axis.grid(True)


def _round(low: float, high: float) -> list[float]:
    from matplotlib.ticker import MaxNLocator

    if high < 4 * low:
        found = MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
    else:
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        found = [digit * 10.0**decade for decade in decades for digit in ((1, 2, 5) if high < 100 * low else (1,))]
    return [place for place in found if low <= place <= high]


def _reach(found: Sequence[Effect]) -> tuple[float, float]:
    """Limits that hold 1, every ratio, and of each interval as much as leaves the points apart."""
    ratios = [1.0, *(effect.ratio for effect in found)]
    least, most = min(ratios) / 2, max(ratios) * 2
    lows = [max(least, effect.low) for effect in found if effect.low is not None]
    highs = [min(most, effect.high) for effect in found if effect.high is not None]
    return _widened(min([*ratios, *lows]), max([*ratios, *highs]))


def _widened(low: float, high: float) -> tuple[float, float]:
    margin = max(0.02, 0.06 * math.log(high / low))
    return low * math.exp(-margin), high * math.exp(margin)


def _colour(verdict: str) -> str:
    return BLUE if verdict.startswith(FASTER) else VERMILION if verdict.startswith(SLOWER) else INK


def _whisker(axes: Axes, effect: Effect, row: int, colour: str, gid: str) -> None:
    if effect.low is not None and effect.high is not None:
        axes.plot([effect.low, effect.high], [row, row], color=colour, linewidth=2)
    axes.plot([effect.ratio], [row], "o", color=colour, gid=gid)


def _columns(axes: Axes, header: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    """Write columns of text at the right of the rows."""
    place: Any = {"textcoords": "offset points", "va": "center", "annotation_clip": False}
    offset = float(GAP)
    for column, head in enumerate(header):
        axes.annotate(head, (1, 1), (offset, GAP / 2), xycoords="axes fraction", alpha=FAINT, **place)
        for row, texts in enumerate(cells):
            axes.annotate(texts[column], (1, row), (offset, 0), xycoords=("axes fraction", "data"), **place)
        offset += LETTER * max(len(head), *(len(texts[column]) for texts in cells)) + GAP


def _labels(figure: Figure, axes: Axes, marks: Sequence[tuple[float, float, str, str]], x: float, side: str) -> None:
    """Write (x, y, text, colour) beside their points, moved apart where they would overlap, with a thin line."""
    low, high = axes.get_ylim()
    length = math.log(high / low)
    gap = length * GAP / (POINTS * (figure.get_figheight() - 1.2))
    for (at, y, text, colour), place in zip(marks, _apart([math.log(mark[1]) for mark in marks], gap), strict=True):
        line: dict[str, Any] = {"arrowstyle": "-", "color": colour, "linewidth": 0.8, "shrinkA": 1, "shrinkB": 4}
        line["relpos"] = (0 if side == "left" else 1, 0.5)  # it ends at the text's edge, not under it
        end = x, math.exp(place)
        axes.annotate(text, (at, y), end, ha=side, va="center", arrowprops=line, annotation_clip=False)


def _apart(wanted: Sequence[float], gap: float) -> list[float]:
    """Move places as little as it takes to keep them `gap` apart, in their order."""
    order = np.argsort(wanted, kind="stable")
    steps = gap * np.arange(len(wanted))
    places = np.empty(len(wanted))
    if len(wanted):
        places[order] = isotonic_regression(np.asarray(wanted)[order] - steps).x + steps
    return places.tolist()


def _bars(axes: Axes, table: pd.DataFrame, unit: str) -> None:
    rows, lefts = range(len(table)), table.cumsum(axis=1) - table
    for name, fill in zip(table.columns, _fills(table.columns), strict=True):
        axes.barh(rows, table[name], left=lefts[name], height=0.68, linewidth=0, **fill)
    for row, total in enumerate(table.sum(axis=1)):
        axes.annotate(f"{total:.3g} {unit}", (total, row), (4, 0), textcoords="offset points", va="center")


def _fills(names: Iterable[str]) -> list[dict[str, Any]]:
    return [{"color": INK, "alpha": 0.3} if name == OTHER else {"color": COLOURS[i]} for i, name in enumerate(names)]


def _legend(figure: Figure, names: Sequence[str] | pd.Index) -> None:
    from matplotlib.patches import Patch

    patches = [Patch(linewidth=0, **fill) for fill in _fills(names)]
    figure.legend(
        patches,
        [_cut(name) for name in names],
        loc="outside lower left",
        ncols=len(names),
        handlelength=1,
        columnspacing=1.2,
    )


def _shifts(places: Sequence[float], count: int) -> list[float]:
    """Return factors on x that keep the intervals of `count` lines beside each other."""
    width = 0.03 * max(1.0, math.log(max(places) / min(places)))
    return [math.exp(width * (index / max(1, count - 1) - 0.5)) for index in range(count)]


def _spaced(places: Sequence[float]) -> list[float]:
    """Leave out what is so near to the place before it that their labels would overlap."""
    least, kept = 0.07 * math.log(max(places) / min(places)), list(places[:1])
    for place in places:
        if math.log(place / kept[-1]) > least:
            kept.append(place)
    return kept


def _curve(axes: Axes, line: Line, index: int) -> tuple[float, Effect]:
    """Draw a variant's line and return where it ends."""
    colour, marker = COLOURS[index % LINES], "os^DvP"[index % LINES]
    dash = ("-", "--", ":")[index // LINES % 3]
    ratios = [effect.ratio for _, effect in line]
    axes.plot([x for x, _ in line], ratios, dash, marker=marker, color=colour, markersize=6, gid=f"line-{index}")
    for x, effect in line:
        if effect.low is not None and effect.high is not None:
            axes.plot([x, x], [effect.low, effect.high], color=colour, linewidth=1.5)
    return line[-1]


def _svg(figure: Figure, kind: str, title: str) -> str:
    """Write the SVG, its ids named after its content, and its ink the colour of the text around it."""
    written = io.StringIO()
    metadata = {"Title": title, **dict.fromkeys(("Date", "Creator", "Format", "Type"))}
    figure.savefig(written, format="svg", transparent=True, metadata=metadata)
    svg = written.getvalue()
    svg = svg[svg.index("<svg") :]  # a page has a doctype of its own
    name = f"{kind}-{hashlib.sha256(svg.encode()).hexdigest()[:8]}"
    svg = re.sub("<[^<>]+>", lambda tag: _tag(tag[0], name), svg)
    style = f"#{name}{{color:#222}}@media (prefers-color-scheme: dark){{#{name}{{color:#ddd}}}}"
    return svg.replace('<style type="text/css">*', f"<style>{style}#{name} *", 1)


def _tag(tag: str, name: str) -> str:
    if tag.startswith("<svg"):
        return tag.replace("<svg", f'<svg id="{name}" role="img"', 1)
    tag = re.sub(r'\bid="|url\(#|href="#', lambda found: f"{found[0]}{name}-", tag)
    return tag.replace("'DejaVu Sans', sans-serif", FONTS).replace(INK, "currentColor")
