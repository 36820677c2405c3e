"""Do the lines of a run agree with its plan and with each other? What needs no row file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from omnilab.experiment import gate, guards
from omnilab.experiment.analysis.blocks import rule_from
from omnilab.experiment.checks.differences import NOTHING, Check, Difference, brief, compared
from omnilab.experiment.design import AGAIN
from omnilab.experiment.results import aborted, plan_hash

Row: TypeAlias = Mapping[str, Any]
Lines: TypeAlias = Sequence[Row]


def where(number: int, line: Row) -> str:
    """Name a line of trials.jsonl by its number, kind and variant; blocks count from 0, as in names of row files."""
    return f"trials.jsonl line {number} ({line['kind']} {line['block']}-{line.get('position')}, {line['variant']})"


def plan_check(run: Row) -> Check:
    """Compare the plan's hash with that of what run.json plans."""
    hashed = plan_hash(run)
    said = f"hash {hashed[:12]} of what run.json plans, {len(run['orders'])} blocks at most"
    stored = str(run.get("plan_hash"))
    differs = [] if stored == hashed else [Difference("run.json plan_hash", stored[:12], hashed[:12])]
    return Check("plan", said, tuple(differs))


def order_check(run: Row, lines: Lines) -> Check:
    """Compare which trials there are, in which order, with the plan's; sizes and disturbances are computed again."""
    found = [*_twice(lines), *_misplaced(run, lines), *_missing(run, lines), *_sizes(run, lines)]
    found += _each(lines, lambda line: _disturbed(run, line))
    trials = sum(line["kind"] == "trial" and not aborted(line) for line in lines)
    blocks = len({line["block"] for line in lines if line["kind"] == "trial"})
    said = f"{trials} trials in {blocks} blocks where the plan puts them, {len(lines)} lines"
    return Check("order", said, tuple(found))


def occupants_check(run: Row, lines: Lines) -> Check:
    """Compare what filled every seam in each stage with the variant's recipe, by name, and its source over trials."""
    planned = {variant["name"]: variant["occupants"] for variant in run["variants"]}
    seen: dict[tuple[str, str], Mapping[str, str]] = {}
    found = _each(lines, lambda line: _occupants(planned, seen, line))
    trials = sum("metrics" in line and not line["error"] for line in lines)
    return Check("occupants", f"the seams of every stage in {trials} trials filled as the variants say", tuple(found))


def _each(lines: Lines, look: Callable[[Row], list[Difference]]) -> list[Difference]:
    """Look at every line; what `look` finds gets the line's name before it."""
    found = []
    for number, line in enumerate(lines, 1):
        try:
            several = look(line)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            several = [Difference("", "a line that cannot be read", f"{type(error).__name__}: {error}")]
        found += [
            Difference(f"{where(number, line)} {one.where}".rstrip(), one.stored, one.recomputed) for one in several
        ]
    return found


def _twice(lines: Lines) -> Iterator[Difference]:
    seen: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        text = json.dumps(line, sort_keys=True)
        if text in seen:
            yield Difference(where(number, line), f"line {seen[text]} again", NOTHING)
        seen.setdefault(text, number)


def _misplaced(run: Row, lines: Lines) -> Iterator[Difference]:
    """Find trials whose variant the plan puts elsewhere, and those that do not come after the one before."""
    last = (-1, -1)
    for number, line in enumerate(lines, 1):
        if line["kind"] != "trial" or aborted(line):
            continue
        place = (line["block"], line["position"])
        planned = _planned(run, *place)
        if planned != line["variant"]:
            yield Difference(f"{where(number, line)} variant", brief(line["variant"]), brief(planned))
        if place <= last:
            before = "{}-{}".format(*last)
            yield Difference(f"{where(number, line)} place", "{}-{}".format(*place), f"one after {before}")
        last = max(last, place)


def _planned(run: Row, block: int, position: int) -> str | None:
    orders = run["orders"]
    inside = 0 <= block < len(orders) and 0 <= position < len(orders[block])
    return orders[block][position] if inside else None


def _missing(run: Row, lines: Lines) -> Iterator[Difference]:
    """Find trials that the plan has before the last one of the run, and blocks that were never opened.

    A variant that a comparison has stopped is not tried again.
    """
    trials = [line for line in lines if line["kind"] == "trial" and not aborted(line)]
    tried = {(line["block"], line["variant"]) for line in trials}
    last = max(((line["block"], line["position"]) for line in trials), default=(-1, -1))
    stopped = gate.stopped(run, lines)
    for block, order in enumerate(run["orders"][: last[0] + 1]):
        for position, name in enumerate(order):
            due = (block, position) <= last and name not in stopped
            if due and (block, name) not in tried:
                yield Difference(f"trials.jsonl trial {block}-{position}", NOTHING, f"a line of {name}")
    opened = {line["block"] for line in lines if line["kind"] == "open"}
    for block in sorted({line["block"] for line in trials if not line["error"]} - opened):
        yield Difference(f"trials.jsonl block {block}", NOTHING, "a line of its opening")


def _sizes(run: Row, lines: Lines) -> Iterator[Difference]:
    """Compute again how many blocks the rule asked for, wherever a line says that it changed."""
    rule = rule_from(run["rule"])
    for number, line in enumerate(lines, 1):
        if line["kind"] == "sized":
            needed = rule.needed(run, lines[: number - 1], line["block"])
            yield from compared(f"{where(number, line)} blocks", line["blocks"], needed)


def _disturbed(run: Row, line: Row) -> list[Difference]:
    if "guards" not in line:
        return []
    before, after = line["guards"]["before"], line["guards"]["after"]
    own = sum(line.get("cpu_s", {}).values())
    found = guards.disturbances(before, after, line["seconds"], own, run["machine"]["cores"])
    return compared("disturbed", line["disturbed"], found)


def _occupants(
    planned: Mapping[str, Mapping[str, str]], seen: dict[tuple[str, str], Mapping[str, str]], line: Row
) -> list[Difference]:
    """Compare a trial that succeeded; one with the wrong occupant is a row with an error already.

    A stage may hash the source of a toggle that travels by value otherwise than the plan did, yet always the same way:
    `seen` holds each variant's occupants in a stage as its first trial had them.
    """
    if line.get("error") or "metrics" not in line:
        return []
    variant = line["variant"].removesuffix(AGAIN)
    found = [] if line["occupants"] else [Difference("occupants", NOTHING, "the seams of every stage")]
    for stage, by_seam in line["occupants"].items():
        shared = [seam for seam in by_seam if seam in planned[variant]]  # a stage may tell only of seams that it has
        named = ({seam: side[seam].split()[0] for seam in shared} for side in (by_seam, planned[variant]))
        name = f"occupants.{stage}"
        found += compared(name, *named) or compared(name, by_seam, seen.setdefault((variant, stage), by_seam))
    return found
