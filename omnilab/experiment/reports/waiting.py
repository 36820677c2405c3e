"""What requests waited for, and what-ifs beside what was measured, in words and tables of a report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from omnilab.experiment.analysis.span_trials import END, FIRST
from omnilab.experiment.analysis.waited import UNTIL, Foretold, Held, Waited
from omnilab.experiment.reports.words import short

WAITED, FORETOLD = "What the requests waited for", "What-if: predicted and measured"
# as data flows, with the titles of their columns
PLACES = {
    "thinker": "thinker", "thinker->talker": "to talker", "talker": "talker",
    "talker->code2wav": "to code2wav", "code2wav": "code2wav",
}  # fmt: skip
NAMED, LEAST = 2, 0.05  # places named of a path, and the least share of one


@dataclass(frozen=True, slots=True)
class Shown:
    """A table of a section: plain text cells, as many in each row as in the header."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]


def tables(found: Waited) -> dict[str, Shown]:
    """Return the tables of both sections by heading, empty ones left out."""
    shown = {WAITED: _paths(found), FORETOLD: _foretold(found)}
    return {heading: table for heading, table in shown.items() if table.rows}


def waited_lines(found: Waited, baseline: str) -> list[str]:
    """Say what held the baseline, where a variant was held elsewhere, what was looked at and what was left out."""
    if not found.held:
        return [f"not known: {said}" for said in found.said]
    all_of_them = found.blocks == found.of_blocks
    blocks = f"{found.blocks} blocks" if all_of_them else f"{found.blocks} of {found.of_blocks} blocks"
    how = (
        "at each moment a request waits for one stage or edge: this is how the time from its first span to the end of "
        f"its first or last `vocode` divides over them; means over {blocks}, {_requests(found.requests)} of each trial"
    )
    return [*_holders(found.held, baseline), how, *found.said]


def foretold_lines(found: Waited) -> list[str]:
    """Say how a what-if is made, how far it was off and what it cannot see."""
    if not found.foretold:
        return []
    off = max(abs(one.predicted - one.measured) for one in found.foretold)
    lines = [
        "the baseline's spans are timed anew, each place (stage and span name) as much longer or shorter as it was in "
        "the variant's trial of the same block; ratios over the baseline, measured in the same trials (total: RTF)",
        f"the prediction is off by {100 * off:.0f} points at most",
        "it keeps the recorded order, batches and gaps between spans, on the recorded threads; it knows nothing of "
        "stages that share a processor, or of what is named below: where it is off, look there",
    ]
    return lines + [f"**{name}**, beyond it: {'; '.join(several)}" for name, several in found.limits.items()]


def _requests(number: int) -> str:
    return "one request" if number == 1 else f"{number} requests"


def _holders(held: Sequence[Held], baseline: str) -> Iterator[str]:
    by_variant: dict[str, dict[str, Held]] = {}
    for one in held:
        by_variant.setdefault(one.variant, {})[one.until] = one
    usual = {until: _holder(one.shares) for until, one in by_variant.get(baseline, {}).items()}
    for name, several in by_variant.items():
        found = {until: _holder(several[until].shares) for until in UNTIL if until in several}
        if name == baseline or any(place != usual.get(until, (place, 0.0))[0] for until, (place, _) in found.items()):
            said = [f"its {until} was held by {_held(*one)}" for until, one in found.items()]
            yield f"**{name}**: {', '.join(said)}"


def _held(place: str, share: float) -> str:
    where, _, most = place.partition("/")
    return f"{where} ({_percent(share)}{f', most of it {most}' if most else ''})"


def _holder(shares: Mapping[str, float]) -> tuple[str, float]:
    """Return the edge, or the stage and what in it, that held most, and the edge's or stage's share."""
    sums = {place: _share_of(shares, place) for place in PLACES}
    where = max(sums, key=lambda place: sums[place])
    most = next((key.partition("/")[2] for key in shares if key.startswith(f"{where}/")), "")
    return f"{where}/{most}" if most else where, sums[where]


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _share_of(shares: Mapping[str, float], place: str) -> float:
    return sum(share for key, share in shares.items() if key == place or key.startswith(f"{place}/"))


def _paths(found: Waited) -> Shown:
    rows = [
        [
            one.variant,
            one.until,
            f"{short(one.ms)} ms",
            *(_percent(_share_of(one.shares, place)) for place in PLACES),
            ", ".join(f"{key} {_percent(share)}" for key, share in list(one.shares.items())[:NAMED] if share >= LEAST),
        ]
        for one in found.held
    ]
    return Shown(["variant", "until", "path", *PLACES.values(), "most of it"], rows)


def _foretold(found: Waited) -> Shown:
    names = list(dict.fromkeys(one.variant for one in found.foretold))
    known = {(one.variant, one.until): one for one in found.foretold}
    header = [title for until in (FIRST, "total") for title in (f"{until}, predicted", "measured", "off by")]
    rows = [[name, *_cells(known.get((name, FIRST))), *_cells(known.get((name, END)))] for name in names]
    return Shown(["variant", *header], rows)


def _cells(one: Foretold | None) -> list[str]:
    if one is None:
        return ["-", "-", "-"]
    off = round(one.predicted - one.measured, 2) + 0.0  # no -0.00
    return [f"{one.predicted:.2f}", f"{one.measured:.2f}", f"{off:+.2f}"]
