"""HTML and text that results show themselves with: tables, players, waveforms, bars. Standard library and numpy only.

No script, nothing from outside, no colour of its own for text or ground: it reads in the light and in the dark, in
JupyterLab, VS Code and Colab. All text that is handed in is escaped, unless it says that it is HTML.
"""

from __future__ import annotations

import base64
import io
import wave
from collections.abc import Mapping, Sequence
from html import escape

import numpy as np
from numpy.typing import NDArray

LINE = "1px solid rgba(128,128,128,.35)"
MOST_S = 120.0  # of audio in one player: 5.8 MB of a notebook
POINTS = 480  # of a waveform
LONG_CELL = 20  # characters; a longer one wraps, and not word by word
# Okabe and Ito's colours, which colour-blind readers tell apart; each is readable on white and on black.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8a8f98")
# Spans have the colours that profile/timeline.js gives them.
SPAN_COLOURS = {
    "forward": "#0072b2", "vocode": "#009e73", "sample": "#56b4e9", "embed": "#3f51b5", "build": "#e69f00",
    "save": "#f0c94a", "encode": "#b8860b", "put": "#d55e00", "get": "#cc79a7", "copy": "#8d6e63",
    "accumulate": "#a05195", "merge": "#c2185b", "pickle": "#7d6b3a", "unpickle": "#b39c5d", "transport": "#8a8f98",
    "schedule": "#5b7083", "update_states": "#7ba7a0", "events": "#7e57c2", "wait": "#b9bec6",
}  # fmt: skip


def frame(*parts: str) -> str:
    """Put parts of HTML one below the other."""
    return f'<div style="line-height:1.45;max-width:76rem;overflow-x:auto">{"".join(parts)}</div>'


def heading(text: str, note: str = "") -> str:
    """Return a bold line, with a note beside it."""
    said = f' <span style="opacity:.7;font-weight:normal">{escape(note)}</span>' if note else ""
    return f'<div style="font-weight:600;margin:.5em 0 .2em">{escape(text)}{said}</div>'


def columns(*parts: str) -> str:
    """Put parts of HTML side by side where there is room, else one below the other."""
    cells = "".join(f'<div style="flex:1 1 24em;min-width:0">{part}</div>' for part in parts)
    return f'<div style="display:flex;flex-wrap:wrap;gap:.2em 2em">{cells}</div>'


def said(text: str, note: str = "") -> str:
    """Return a sentence that a reader sees first, with a note below it."""
    below = f'<div style="opacity:.75;font-size:.9em">{escape(note)}</div>' if note else ""
    style = f"border-left:4px solid {COLOURS[0]};padding:.2em .8em;margin:.4em 0"
    return f'<div style="{style}"><div style="font-weight:600;font-size:1.1em">{escape(text)}</div>{below}</div>'


def line(text: str, *, soft: bool = False) -> str:
    """Return a paragraph; a soft one is paler."""
    return f'<div style="margin:.2em 0;max-width:52rem{";opacity:.75" if soft else ""}">{escape(text)}</div>'


def table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, titles: Mapping[str, str] | None = None, left: int = 1
) -> str:
    """Return a table; the first `left` columns and cells without a digit stand to the left and wrap, others do not.

    `titles` explain a cell: what is under its text is shown where the pointer rests.
    """
    titles = titles or {}
    head = "".join(_cell("th", text, index < left, titles) for index, text in enumerate(header))
    body = "".join(
        f"<tr>{''.join(_cell('td', text, index < left, titles) for index, text in enumerate(row))}</tr>" for row in rows
    )
    style = "border-collapse:collapse;font-variant-numeric:tabular-nums;margin:.3em 0"
    return f'<table style="{style}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def plain_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table as text, its columns aligned."""
    every = [list(header), *map(list, rows)]
    widths = [max(len(row[column]) for row in every) for column in range(len(header))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in every]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def wav(audio: NDArray[np.float32], sample_rate: int) -> bytes:
    """Return samples [n] in -1..1 as a WAV file of 16 bits; beyond that they are clipped, what is no number is 0."""
    known = np.nan_to_num(np.asarray(audio, dtype=np.float64), nan=0.0, posinf=1.0, neginf=-1.0)
    made = io.BytesIO()
    with wave.open(made, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(sample_rate)
        file.writeframes(np.round(np.clip(known, -1, 1) * 32767).astype("<i2").tobytes())
    return made.getvalue()


def player(audio: NDArray[np.float32], sample_rate: int, label: str = "") -> str:
    """Return an audio player that holds its samples; of more than two minutes the first two, and says so."""
    seconds = len(audio) / sample_rate
    if not len(audio):
        return line(f"{label}: no audio" if label else "no audio", soft=True)
    held = audio[: int(MOST_S * sample_rate)]
    source = base64.b64encode(wav(held, sample_rate)).decode()
    cut = f" (the first {MOST_S:.0f} s of {seconds:.1f} s)" if len(held) < len(audio) else f" {seconds:.2f} s"
    named = f'<span style="min-width:8em;opacity:.8">{escape(label)}{cut}</span>'
    sound = f'<audio controls preload="metadata" src="data:audio/wav;base64,{source}" style="height:2.2em"></audio>'
    return f'<div style="display:flex;gap:.8em;align-items:center;margin:.2em 0">{sound}{named}</div>'


def waveform(audio: NDArray[np.float32], sample_rate: int, *, width: int = 640, height: int = 64) -> str:
    """Return the waveform of samples [n] as SVG: lowest and highest of each stretch, full height at 1 or its peak."""
    if not len(audio):
        return ""
    known = np.nan_to_num(np.asarray(audio, dtype=np.float64))
    edges = np.unique(np.linspace(0, len(known), min(POINTS, len(known)) + 1).astype(int))[:-1]
    low, high = np.minimum.reduceat(known, edges), np.maximum.reduceat(known, edges)
    peak = max(float(np.abs(known).max()), 1e-9)
    x = edges / len(known) * width
    ups = (height / 2 * (1 - high / peak)).round(1).tolist()
    downs = (height / 2 * (1 - low / peak)).round(1).tolist()
    along = x.round(1).tolist()
    points = [*zip(along, ups, strict=True), *reversed(list(zip(along, downs, strict=True)))]
    path = "M" + "L".join(f"{a},{b}" for a, b in points) + "Z"
    seconds = len(known) / sample_rate
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" preserveAspectRatio="none" '
        f'style="max-width:100%;display:block;margin:.2em 0"><title>waveform, {seconds:.2f} s, peak {peak:.2f}</title>'
        f'<line x1="0" x2="{width}" y1="{height / 2}" y2="{height / 2}" stroke="currentColor" opacity=".3"/>'
        f'<path d="{path}" fill="{COLOURS[0]}" stroke="{COLOURS[0]}" stroke-width=".7"/></svg>'
    )


def bars(rows: Sequence[tuple[str, Mapping[str, float]]], unit: str, *, longest: float | None = None) -> str:
    """Return a bar a row, made of named parts, as HTML; all on one scale, `longest` or the longest row.

    A part's name stands in it where there is room, and with its number where the pointer rests. Spans have the
    timeline's colours.
    """
    longest = longest or max((sum(parts.values()) for _, parts in rows), default=0.0) or 1.0
    named = sorted({name for _, parts in rows for name in parts}, key=lambda n: -max(p.get(n, 0) for _, p in rows))
    colour = {name: SPAN_COLOURS.get(name, COLOURS[i % len(COLOURS)]) for i, name in enumerate(named)}
    lines = []
    for label, parts in rows:
        inside = "".join(
            _part(name, parts[name], longest, colour[name], unit) for name in named if parts.get(name, 0.0) > 0
        )
        lines.append(
            '<div style="display:flex;align-items:center;gap:.6em;margin:2px 0">'
            f'<span style="flex:0 0 13em;text-align:right;overflow:hidden;text-overflow:ellipsis;white-space:nowrap">'
            f'{escape(label)}</span><span style="flex:1 1 20em;display:flex;height:1.25em">{inside}</span>'
            f'<span style="flex:0 0 7em;font-variant-numeric:tabular-nums">{amount(sum(parts.values()), unit)}</span>'
            "</div>"
        )
    return "".join(lines)


def amount(value: float, unit: str) -> str:
    """Write a number with its unit; bytes as kB or MB."""
    if unit == "B":
        for size, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
            if abs(value) >= size:
                return f"{value / size:.3g} {name}"
    return f"{value:,.0f} {unit}" if abs(value) >= 100 or value == int(value) else f"{value:.3g} {unit}"


def _part(name: str, value: float, longest: float, colour: str, unit: str) -> str:
    share = 100 * value / longest
    said = f"{name}: {amount(value, unit)}"
    text = escape(name) if share > 2 * len(name) else ""
    return (
        f'<span title="{escape(said)}" style="flex:0 0 {share:.2f}%;background:{colour};color:#fff;font-size:.75em;'
        f"line-height:1.7;overflow:hidden;text-align:center;box-sizing:border-box;border-right:1px solid transparent;"
        f'background-clip:padding-box">{text}</span>'
    )


def _cell(kind: str, text: str, left: bool, titles: Mapping[str, str]) -> str:
    said = f' title="{escape(titles[text])}"' if text in titles else ""
    left = left or (kind == "td" and not any(map(str.isdigit, text)))
    style = f"text-align:{'left' if left else 'right'};padding:.15em .8em .15em 0;border-bottom:{LINE};"
    style += "min-width:8em;" if left and len(text) > LONG_CELL else ""
    style += f"white-space:{'normal' if left or kind == 'th' else 'nowrap'};"
    style += f"vertical-align:{'bottom' if kind == 'th' else 'top'}"
    return f'<{kind}{said} style="{style}">{escape(text)}</{kind}>'
