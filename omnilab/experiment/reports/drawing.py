"""What figures are drawn with: one style, axes with round ticks, labels that keep apart, and SVG text.

Text stays text and takes the colour of the page; ids are unique over all figures, so that a page can hold any of them.
matplotlib is imported when a figure is drawn.
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

from omnilab.experiment.analysis.findings import Effect

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Line = list[tuple[float, Effect]]  # of one variant: x and the effect there

OTHER = "other"  # has ink for its colour

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


def cut(name: str, longest: int = SHORT) -> str:
    """Make a name fit: printable, and its middle left out when it is long."""
    plain = "".join(letter if letter.isprintable() else " " for letter in name)
    return plain if len(plain) <= longest else f"{plain[: longest - 12]}…{plain[-11:]}"


@contextmanager
def styled() -> Iterator[None]:
    """Draw as matplotlib ships and as RC says, whatever a user has set; a script that DejaVu lacks is no warning."""
    import matplotlib.style

    with warnings.catch_warnings(), matplotlib.style.context(["default", RC]):
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        yield


def new_figure(height: float, title: str, names: Iterable[str] = ()) -> Figure:
    """Make a figure of so many inches, wide enough for the names beside it."""
    from matplotlib.figure import Figure

    beyond = max((len(cut(name, LONGEST)) - SHORT for name in names), default=0)
    figure = Figure(figsize=(WIDTH + max(0, beyond) * LETTER / POINTS, height), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
    return figure


def row_figure(names: Sequence[str], title: str) -> tuple[Figure, Axes]:
    """Make axes of a row a name, the first on top."""
    figure = new_figure(1.2 + ROW * len(names), title, names)
    axes = figure.add_subplot()
    axes.spines["left"].set_visible(False)
    name_rows(axes, names)
    return figure, axes


def name_rows(axes: Axes, names: Sequence[str]) -> None:
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_yticks(range(len(names)), [cut(name, LONGEST) for name in names])
    axes.tick_params(axis="y", length=0)


def log_axis(axes: Axes, which: str, low: float, high: float, ticks: Sequence[float] | None = None) -> None:
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


def reach(found: Sequence[Effect]) -> tuple[float, float]:
    """Limits that hold 1, every ratio, and of each interval as much as leaves the points apart."""
    ratios = [1.0, *(effect.ratio for effect in found)]
    least, most = min(ratios) / 2, max(ratios) * 2
    lows = [max(least, effect.low) for effect in found if effect.low is not None]
    highs = [min(most, effect.high) for effect in found if effect.high is not None]
    return widened(min([*ratios, *lows]), max([*ratios, *highs]))


def widened(low: float, high: float) -> tuple[float, float]:
    margin = max(0.02, 0.06 * math.log(high / low))
    return low * math.exp(-margin), high * math.exp(margin)


def whisker(axes: Axes, effect: Effect, row: int, colour: str, gid: str) -> None:
    if effect.low is not None and effect.high is not None:
        axes.plot([effect.low, effect.high], [row, row], color=colour, linewidth=2)
    axes.plot([effect.ratio], [row], "o", color=colour, gid=gid)


def columns(axes: Axes, header: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    """Write columns of text at the right of the rows."""
    place: Any = {"textcoords": "offset points", "va": "center", "annotation_clip": False}
    offset = float(GAP)
    for column, head in enumerate(header):
        axes.annotate(head, (1, 1), (offset, GAP / 2), xycoords="axes fraction", alpha=FAINT, **place)
        for row, texts in enumerate(cells):
            axes.annotate(texts[column], (1, row), (offset, 0), xycoords=("axes fraction", "data"), **place)
        offset += LETTER * max(len(head), *(len(texts[column]) for texts in cells)) + GAP


def labels(figure: Figure, axes: Axes, marks: Sequence[tuple[float, float, str, str]], x: float, side: str) -> None:
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


def stacked_bars(axes: Axes, table: pd.DataFrame, unit: str) -> None:
    rows, lefts = range(len(table)), table.cumsum(axis=1) - table
    for name, fill in zip(table.columns, _fills(table.columns), strict=True):
        axes.barh(rows, table[name], left=lefts[name], height=0.68, linewidth=0, **fill)
    for row, total in enumerate(table.sum(axis=1)):
        axes.annotate(f"{total:.3g} {unit}", (total, row), (4, 0), textcoords="offset points", va="center")


def _fills(names: Iterable[str]) -> list[dict[str, Any]]:
    return [{"color": INK, "alpha": 0.3} if name == OTHER else {"color": COLOURS[i]} for i, name in enumerate(names)]


def legend(figure: Figure, names: Sequence[str] | pd.Index) -> None:
    from matplotlib.patches import Patch

    patches = [Patch(linewidth=0, **fill) for fill in _fills(names)]
    figure.legend(
        patches,
        [cut(name) for name in names],
        loc="outside lower left",
        ncols=len(names),
        handlelength=1,
        columnspacing=1.2,
    )


def shifts(places: Sequence[float], count: int) -> list[float]:
    """Return factors on x that keep the intervals of `count` lines beside each other."""
    width = 0.03 * max(1.0, math.log(max(places) / min(places)))
    return [math.exp(width * (index / max(1, count - 1) - 0.5)) for index in range(count)]


def spaced(places: Sequence[float]) -> list[float]:
    """Leave out what is so near to the place before it that their labels would overlap."""
    least, kept = 0.07 * math.log(max(places) / min(places)), list(places[:1])
    for place in places:
        if math.log(place / kept[-1]) > least:
            kept.append(place)
    return kept


def curve(axes: Axes, line: Line, index: int) -> tuple[float, Effect]:
    """Draw a variant's line and return where it ends."""
    colour, marker = COLOURS[index % LINES], "os^DvP"[index % LINES]
    dash = ("-", "--", ":")[index // LINES % 3]
    ratios = [effect.ratio for _, effect in line]
    axes.plot([x for x, _ in line], ratios, dash, marker=marker, color=colour, markersize=6, gid=f"line-{index}")
    for x, effect in line:
        if effect.low is not None and effect.high is not None:
            axes.plot([x, x], [effect.low, effect.high], color=colour, linewidth=1.5)
    return line[-1]


def as_svg(figure: Figure, kind: str, title: str) -> str:
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
