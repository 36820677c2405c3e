"""The report as one HTML file: nothing from outside, readable on a phone, on paper and in the dark.

Only the timeline is drawn by a script; all else is there without.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from html import escape
from string import Template

from omnilab.experiment.analysis.findings import (
    EQUIVALENT,
    FAILED_GATE,
    FASTER,
    INCONCLUSIVE,
    NO_EFFECT,
    SLOWER,
    Findings,
    Interaction,
)
from omnilab.experiment.reports import words
from omnilab.experiment.reports.verdicts import ONE_CELL, Judged, judged
from omnilab.experiment.reports.waiting import Shown
from omnilab.metrics import METRICS

DEFINITIONS = "Definitions"
LONG = 24  # letters of a cell that may break into lines
# What stands first in the answer; verdicts that are not here come last.
ORDER = (FASTER, SLOWER, FAILED_GATE, EQUIVALENT, NO_EFFECT, INCONCLUSIVE)
KINDS = {FASTER: "good", SLOWER: "bad", FAILED_GATE: "bad", EQUIVALENT: "plain", NO_EFFECT: "plain"}

FIGURES = {
    "effects": ("Every variant", "The ratio of each variant and its 95 % interval. Left of 1 is less."),
    "waterfall": (
        "What each toggle brings",
        "Shapley values: a toggle's effect, averaged over all orders of turning the toggles on. They add up to the "
        "total. A thin bar as short as the one of noise alone means that the order does not matter.",
    ),
    "per-stage": (
        "Where time goes",
        "Where a trial's time stands, not what a change there would buy: spans of different threads overlap.",
    ),
}
TOGETHER = (
    "Filled: both together, as measured. Hollow: both together, had their effects multiplied. The shaded gap is the "
    "interaction."
)
DEFINED = {
    "ratio": "geometric mean over blocks of a variant's median over requests, over that of what it is compared with",
    "interval": "95 %, Student t over blocks; a block is a fresh set of processes in which every variant is tried once",
    "A/A": "the baseline over itself, measured twice in every block: what noise alone looks like",
    FASTER: "the primary metric's ratio is clear of 1 on the better side, after Holm over all primary comparisons",
    SLOWER: "the same on the worse side",
    EQUIVALENT: "both one-sided tests say that the ratio is within the margin of 1",
    INCONCLUSIVE: "neither: the run cannot tell",
    NO_EFFECT: "every counter equals that of what it is compared with: nothing was changed, so there is no speed",
    FAILED_GATE: "the output is not what the toggle promises to keep, or not the same work: no speed is given",
    "main effect": "a toggle on against off, averaged over all settings of the others",
    "exploratory": "not the primary metric: adjusted together with all other such metrics, and no verdict",
}


def page(
    title: str,
    question: str,
    heading_lines: Sequence[str],
    findings: Findings,
    table_header: Sequence[str],
    table_rows: Sequence[Sequence[str]],
    sections: Mapping[str, Sequence[str]],
    figures: Mapping[str, str],
    tables: Mapping[str, Shown] | None = None,
    timeline: str = "",
) -> str:
    """Return the report as one HTML file.

    `figures` holds SVG by name: "effects", "two-by-two", "waterfall", "per-stage"; others are folded away. All else is
    plain text, in which section lines may hold **bold** and `code`. The column whose title starts with "verdict" is
    coloured. The page brings its own definitions; notes that no section holds are at its top. `tables` stand in the
    sections of their headings. `timeline` is a section as HTML.
    """
    parts = [
        *_head(title, question, heading_lines, findings),
        *_notes(findings, {line for lines in sections.values() for line in lines}),
        "</header>",
        *_verdicts(table_header, table_rows),
        *(_together(findings.interactions[0], figures.get("two-by-two")) if findings.interactions else ()),
        *(part for stem in FIGURES if stem in figures for part in _figure(stem, figures[stem])),
        timeline,
        *_folded(figures),
        *(
            part
            for heading, lines in sections.items()
            if heading != DEFINITIONS
            for part in _section(heading, lines, (tables or {}).get(heading))
        ),
        *_definitions(findings),
    ]
    return PAGE.substitute(title=escape(title), style=STYLE, body="\n".join(parts))


def _head(title: str, question: str, lines: Sequence[str], findings: Findings) -> Iterator[str]:
    yield f'<header>\n<p class="run">{escape(title)}</p>\n<h1>{escape(question)}</h1>'
    yield from _answer(findings)
    yield from (f'<p class="fact">{escape(line)}</p>' for line in lines)


def _notes(findings: Findings, elsewhere: Container[str]) -> Iterator[str]:
    unfinished = "The run was not finished: this is what was measured before it stopped."
    notes = [unfinished] * findings.unfinished + [note for note in findings.notes if note not in elsewhere]
    if notes:
        yield '<ul class="notes">' + "".join(f"<li>{_marked(note)}</li>" for note in notes) + "</ul>"


def _answer(findings: Findings) -> Iterator[str]:
    """Say in a few lines which variants are faster, which are not, and by how much: all that many will read."""
    by_verdict: dict[str, list[Judged]] = {}
    for one in judged(findings, findings.primary):
        if one.verdict != ONE_CELL:
            by_verdict.setdefault(one.verdict, []).append(one)
    mean = words.amount(findings.baseline.get(findings.primary), findings.primary)
    over = escape(f"{words.TITLES.get(findings.primary, findings.primary)}, over {findings.baseline_name} ({mean})")
    yield f'<div class="answer"><p>On {over}:</p>\n<dl>'
    if findings.attribution is not None:
        yield f"<dt>all together</dt><dd>{words.ratio_text(findings.attribution.total)}</dd>"
    for verdict in sorted(by_verdict, key=_rank):
        named = ", ".join(_named(one) for one in by_verdict[verdict])
        yield f'<dt class="{_kind(verdict)}">{escape(verdict)}</dt><dd>{named}</dd>'
    yield "</dl></div>"


def _named(one: Judged) -> str:
    ratio = "" if one.effect is None or one.verdict == NO_EFFECT else f" {one.ratio}"
    return f"<b>{escape(one.name)}</b>{ratio}{escape(one.words.removeprefix(one.verdict))}"


def _rank(verdict: str) -> tuple[int, str]:
    places = [place for place, known in enumerate(ORDER) if verdict.startswith(known)]
    return (places[0] if places else len(ORDER), verdict)


def _kind(verdict: str) -> str:
    """Return the class of a verdict; its words say the same, for whoever sees no colour."""
    return next((kind for known, kind in KINDS.items() if verdict.startswith(known)), "open")


def _verdicts(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Write the table, its verdict right after the name: what does not fit on a screen is exploratory."""
    verdict = next((i for i, text in enumerate(header) if text.lower().startswith("verdict")), None)
    order = sorted(range(len(header)), key=lambda column: (column > 0, column != verdict, column))
    yield '<h2>Verdicts</h2>\n<div class="wide" role="region" tabindex="0" aria-label="Verdicts">\n<table>'
    yield f"<thead><tr>{''.join(f'<th scope=col>{escape(header[i])}</th>' for i in order)}</tr></thead>\n<tbody>"
    for row in rows:
        cells = [_cell(row[column], column == verdict) for column in order[1:]]
        long = ' class="long"' if len(row[0]) > LONG else ""
        yield f'<tr><th scope="row"{long}>{escape(row[0])}</th>{"".join(cells)}</tr>'
    yield "</tbody></table></div>"


def _cell(text: str, verdict: bool) -> str:
    kinds = [_kind(text)] * verdict + ["long"] * (len(text) > LONG)
    return f'<td class="{" ".join(kinds)}">{escape(text)}</td>' if kinds else f"<td>{escape(text)}</td>"


def _together(interaction: Interaction, svg: str | None) -> Iterator[str]:
    first, second = escape(interaction.first), escape(interaction.second)
    yield f"<h2>{first} and {second} together</h2>\n<p>{escape(interaction.words)}</p>"
    yield (
        f'<div class="wide" role="region" tabindex="0" aria-label="Two by two">\n<table><thead><tr><td></td>'
        f'<th scope="col">{second} off</th><th scope="col">{second} on</th></tr></thead>\n<tbody>'
        f'<tr><th scope="row">{first} off</th><td>1.00</td><td>{interaction.second_alone:.2f}</td></tr>'
        f'<tr><th scope="row">{first} on</th><td>{interaction.first_alone:.2f}</td>'
        f"<td><b>{interaction.together:.2f}</b>, {interaction.expected:.2f} if they "
        f"multiplied</td></tr></tbody></table></div>"
    )
    if svg:
        yield _drawn(svg, TOGETHER)


def _figure(stem: str, svg: str) -> Iterator[str]:
    heading, caption = FIGURES[stem]
    yield f"<h2>{escape(heading)}</h2>"
    yield _drawn(svg, caption)


def _folded(figures: Mapping[str, str]) -> Iterator[str]:
    others = [stem for stem in figures if stem not in (*FIGURES, "two-by-two")]
    if others:
        yield "<details><summary>More figures, exploratory: no verdict is drawn from them</summary>"
        yield from (_drawn(figures[stem], "") for stem in others)
        yield "</details>"


def _drawn(svg: str, caption: str) -> str:
    said = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return f'<figure><div class="wide" role="region" tabindex="0" aria-label="Figure">{svg}</div>{said}</figure>'


def _section(heading: str, lines: Sequence[str], table: Shown | None = None) -> Iterator[str]:
    yield f"<h2>{escape(heading)}</h2>"
    if table is not None:
        yield from _table(heading, table)
    yield "<ul>"
    yield from (f"<li>{_marked(line)}</li>" for line in lines)
    yield "</ul>"


def _table(heading: str, table: Shown) -> Iterator[str]:
    yield f'<div class="wide" role="region" tabindex="0" aria-label="{escape(heading)}">\n<table>'
    yield f"<thead><tr>{''.join(f'<th scope=col>{escape(title)}</th>' for title in table.header)}</tr></thead>\n<tbody>"
    for first, *others in table.rows:
        cells = "".join(_cell(text, False) for text in others)
        yield f'<tr><th scope="row">{escape(first)}</th>{cells}</tr>'
    yield "</tbody></table></div>"


def _marked(line: str) -> str:
    """Turn **bold** and `code` into HTML, and leave the rest as it is."""
    return re.sub(
        r"\*\*(.+?)\*\*|`([^`]+)`",
        lambda found: f"<b>{found[1]}</b>" if found[1] else f"<code>{found[2]}</code>",
        escape(line, quote=False),
    )


def _definitions(findings: Findings) -> Iterator[str]:
    metrics = {
        words.TITLES.get(name, name): f"{METRICS[name]} ({name})" for name in findings.metrics if name in METRICS
    }
    yield f"<details><summary>{DEFINITIONS} (margin: {100 * findings.margin:g} %)</summary><dl>"
    yield from (f"<dt>{escape(term)}</dt><dd>{escape(text)}</dd>" for term, text in {**metrics, **DEFINED}.items())
    yield "</dl></details>"


PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>$title</title>
<style>
$style</style>
</head>
<body>
$body
</body>
</html>
""")

STYLE = """:root { color-scheme: light dark; --paper: #fff; --ink: #222; --soft: #5c5c5c; --line: #d6d6d6;
  --tint: #f4f4f2; --good: #005a8c; --bad: #a84300; }
@media (prefers-color-scheme: dark) { :root { --paper: #16181a; --ink: #ddd; --soft: #a6a6a6; --line: #3a3d40;
  --tint: #202326; --good: #6cc0f0; --bad: #ff9b57; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 62rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 1rem; max-width: 40em; }
h2 { font-size: 1.15rem; margin: 2.5rem 0 .5rem; }
p, ul, dl, figcaption { max-width: 75ch; }
.run { margin: 0; color: var(--soft); }
.fact { margin: .15rem 0; color: var(--soft); font-size: .9rem; }
.notes { border-left: 3px solid var(--bad); margin: 1rem 0; padding: .1rem 0 .1rem 1.5rem; }
dl { display: grid; grid-template-columns: fit-content(13rem) 1fr; gap: .3rem 1rem; margin: 1rem 0; }
dt { font-weight: 600; }
dd { margin: 0; }
.answer { padding: .8rem 1rem; margin: 1rem 0; background: var(--tint); border-radius: .4rem; }
.answer p { margin: 0 0 .5rem; }
.answer dl { margin: 0; max-width: none; }
.good { color: var(--good); font-weight: 600; }
.bad { color: var(--bad); font-weight: 600; }
.plain { color: var(--ink); }
.open { color: var(--soft); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .8rem .35rem 0; text-align: left; vertical-align: top; white-space: nowrap;
  border-bottom: 1px solid var(--line); }
thead th { color: var(--soft); font-weight: 400; }
tbody th { font-weight: 600; }
.long { white-space: normal; min-width: 12em; }
th.long { min-width: 17em; }
figure { margin: 1rem 0; }
figure svg { display: block; width: 100%; min-width: 40rem; height: auto; }
figcaption { margin: .5rem 0 0; }
figcaption, summary { color: var(--soft); font-size: .9rem; }
details { margin: 2rem 0 0; }
summary { cursor: pointer; }
code { background: var(--tint); padding: .1rem .25rem; border-radius: .2rem; }
li { margin: .25rem 0; }
@media (max-width: 40rem) { dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: .6rem; } }
@media (min-width: 40rem) { tbody th { position: sticky; left: 0; background: var(--paper); } }
@media print { body { max-width: none; } .wide { overflow: visible; } figure, tr { break-inside: avoid; }
  figure svg { min-width: 0; } }
"""
