"""The output gate once more, from what rows hold of outputs: hashes, counts of tokens and frames, seconds of audio.

Where in a request two outputs differ, and by how many dB, cannot be told from hashes: those words stay as stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from omnilab.experiment.checks.agreement import where
from omnilab.experiment.checks.differences import NOTHING, Check, Difference, compared
from omnilab.experiment.checks.recount import Rows
from omnilab.experiment.design import AGAIN
from omnilab.experiment.gate import COMPARISONS, EQUAL, WORK, WORK_OF_SERVERS, first_difference
from omnilab.experiment.results import aborted
from omnilab.trial import Trial

Row: TypeAlias = Mapping[str, Any]
COMPARED = {"comparison": ("trial", "reference"), "gate comparison": ("gate",)}  # kind -> whose outputs


def outputs_check(run: Row, lines: Sequence[Row], rows: Mapping[int, Rows]) -> Check:
    """Compare every comparison of outputs with what the row files say; `rows` is by line number, from 1."""
    found = [*_uncompared(run, lines)]
    for number, line in enumerate(lines, 1):
        if line["kind"] in COMPARISONS:
            found += _differences(run, lines, rows, number, line)
    count = sum(line["kind"] in COMPARISONS for line in lines)
    return Check("outputs", f"{count} comparisons of hashes, tokens, frames and seconds", tuple(found))


def _differences(run: Row, lines: Sequence[Row], rows: Mapping[int, Rows], number: int, line: Row) -> list[Difference]:
    """Compare with the base that agrees best: after an interruption a block has several, which should be equal."""
    ours = _outputs_of(lines, rows, line, {line["variant"]})
    bases = _outputs_of(lines, rows, line, {run["baseline"], run["baseline"] + AGAIN} - {line["variant"]})
    name = where(number, line)
    if not ours or not bases:
        return [Difference(name, "a comparison", "no rows of both sides")]
    exact = {v["name"]: v["exact"] for v in run["variants"]}[line["variant"].removesuffix(AGAIN)]
    stored = {key: line[key] for key in ("equal", "differing", "requests", "same_work")}
    stored |= {"difference": line["difference"] is not None, "same_length": line.get("same_length")}
    work = WORK_OF_SERVERS if run.get("arms") else WORK
    tries = [compared(name, stored, _again(ours[-1], base, exact, line, work)) for base in bases]
    return min(tries, key=len)


def _outputs_of(lines: Sequence[Row], rows: Mapping[int, Rows], line: Row, names: set[str]) -> list[Rows]:
    return [
        rows[number]
        for number, other in enumerate(lines, 1)
        if number in rows
        and (other["kind"] in COMPARED[line["kind"]] and other["block"] == line["block"] and other["variant"] in names)
        and not other["error"]
    ]


def _again(ours: Rows, base: Rows, exact: Sequence[str], line: Row, work: Sequence[str]) -> dict[str, Any]:
    """Return what the gate says of two outputs; `difference`: is there one, where samples leave it open as stored."""
    pairs = list(zip(ours.outputs, base.outputs, strict=False))
    equal = {what: all(new[i] == old[i] for new, old in pairs) for i, what in enumerate(EQUAL)}
    other_work, differs = (_other_work(ours, base, promised, work) for promised in (frozenset(), frozenset(exact)))
    differs = differs or any(not equal[what] for what in exact if what != "samples")
    if not differs and not equal["samples"]:
        differs = line["difference"] is not None  # within the tolerance, as loud: hashes do not say
    return {
        "equal": equal, "differing": sum(new != old for new, old in pairs), "requests": len(ours.records),
        "same_work": not (differs and other_work), "difference": differs,
        "same_length": None if "audio_s" in work else all(
            new.audio_s == old.audio_s for new, old in zip(ours.records, base.records, strict=False)
        ),
    }  # fmt: skip


def _other_work(ours: Rows, base: Rows, exact: frozenset[str], work: Sequence[str]) -> bool:
    """Do tokens, frames or seconds differ? Records read back hold no outputs, so that `exact` finds nothing else."""
    return first_difference(Trial(ours.records), Trial(base.records), exact, 0.0, work) is not None


def _uncompared(run: Row, lines: Sequence[Row]) -> Iterator[Difference]:
    """Find outputs that were never compared, in blocks that ran through in one go: an interruption loses outputs."""
    written = {(line["kind"], line["block"], line["variant"]) for line in lines if line["kind"] in COMPARISONS}
    opened = [line["block"] for line in lines if line["kind"] == "open"]
    once = [len(order) if run.get("arms") else 1 for order in run["orders"]]  # sets of processes of a block
    broken = {line["block"] for line in lines if aborted(line) or opened.count(line["block"]) != once[line["block"]]}
    for kind, sources in COMPARED.items():
        known = [line for line in lines if line["kind"] in sources and not line["error"]]
        answered = {(line["block"], line["variant"]) for line in known}
        for block in sorted({line["block"] for line in known} - broken):
            names = [name for there, name in sorted(answered) if there == block and name != run["baseline"]]
            if (block, run["baseline"]) not in answered:
                names = [name for name in names if name != run["baseline"] + AGAIN]
            if names and _is_over(kind, block, lines):
                missing = [name for name in names if (kind, block, name) not in written]
                yield from (Difference(f"trials.jsonl {kind} {block} of {name}", NOTHING, "a line") for name in missing)


def _is_over(kind: str, block: int, lines: Sequence[Row]) -> bool:
    """Must all comparisons of this kind be there? They are written together, before what comes next."""
    if kind == "gate comparison":
        return any(line["kind"] in (kind, "trial") for line in lines)
    return any((line["kind"], line["block"]) == (kind, block) or line["block"] > block for line in lines)
