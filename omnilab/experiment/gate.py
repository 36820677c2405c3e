"""The output gate: is a variant's output still the baseline's? Comes before any speed.

A variant that changes what its toggles promise to keep, or does other work, gets no speed, only its first difference.
Trials are compared as they come; what is made of all comparisons is read from their rows, by the run itself and later.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from omnilab.experiment.analysis.findings import (
    BATCH_SHAPE,
    NOT_COMPARED,
    OTHER_LENGTHS,
    OTHER_OUTPUT,
    OTHER_SAMPLES,
    OTHER_TEXT,
    OTHER_WORK,
    SAME,
)
from omnilab.experiment.design import AGAIN
from omnilab.experiment.results import aborted
from omnilab.trial import RequestRecord, Trial

Row: TypeAlias = Mapping[str, Any]
COMPARISONS = ("gate comparison", "comparison")  # kinds of rows
STOPPED = (OTHER_OUTPUT, OTHER_WORK)  # classes without a speed

WORK = ("output_tokens", "frames", "audio_s")  # what no variant may change ...
WORK_OF_SERVERS = ("output_tokens",)  # ... and no arm: no request can say how long the audio shall be
SEAMS_SHARE = 0.08  # of the audio: a window of 4 frames loses 555 of 7,680 samples


@dataclass(frozen=True, slots=True)
class Difference:
    """The first thing that differs: in which request, what, at which token, frame or sample, and how."""

    request: int
    what: str
    position: int | None
    detail: str

    def __str__(self) -> str:
        """Say it in one line."""
        where = "" if self.position is None else f" at {self.position}"
        return f"request {self.request}: {self.what}{where}: {self.detail}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How a trial's output stands to the baseline's: what `exact` forbids, and what is equal whatever it allows."""

    difference: Difference | None  # the first that is forbidden
    same_work: bool
    same_length: bool | None  # of the audio, in every request; None where the work fixes it
    equal: dict[str, bool]  # tokens, codes, samples: bit for bit in every request
    differing: int  # requests in which any of the three differs
    requests: int

    def to_dict(self) -> dict[str, Any]:
        """Return it as a row of trials.jsonl."""
        said = None if self.difference is None else str(self.difference)
        return {
            "difference": said, "same_work": self.same_work, "same_length": self.same_length, "equal": self.equal,
            "differing": self.differing, "requests": self.requests,
        }  # fmt: skip


def compare(
    trial: Trial, base: Trial, exact: frozenset[str], tolerance_db: float, work: Sequence[str] = WORK
) -> Comparison:
    """Compare a trial with the baseline's on the same requests."""
    pairs = list(zip(trial.records, base.records, strict=False))
    equal = {what: all(same(new, old) for new, old in pairs) for what, same in EQUAL.items()}
    difference = first_difference(trial, base, exact, tolerance_db, work)
    return Comparison(
        difference=difference,
        same_work=difference is None or not first_difference(trial, base, frozenset(), tolerance_db, work),
        same_length=None if "audio_s" in work else all(new.audio_s == old.audio_s for new, old in pairs),
        equal=equal,
        differing=sum(not all(same(new, old) for same in EQUAL.values()) for new, old in pairs),
        requests=len(trial.records),
    )


def first_difference(
    trial: Trial, base: Trial, exact: frozenset[str], tolerance_db: float, work: Sequence[str] = WORK
) -> Difference | None:
    """Compare a trial with the baseline's on the same requests; None when it passes.

    Whatever `exact` promises must be equal (samples: bit for bit, or `tolerance_db` of signal over difference); the
    `work` must be equal in any case. Where samples may differ, so may the seconds that are lost where windows join.
    """
    if len(trial.records) != len(base.records):
        return Difference(0, "requests", None, f"{len(trial.records)}, not {len(base.records)}")
    for record, expected in zip(trial.records, base.records, strict=True):
        found = _compare(record, expected, exact, tolerance_db, work)
        if found is not None:
            return found
    return None


def _compare(
    record: RequestRecord, expected: RequestRecord, exact: frozenset[str], tolerance_db: float, work: Sequence[str]
) -> Difference | None:
    index = record.index
    if record.error or expected.error:
        whose = "" if record.error else "of the baseline: "
        return Difference(index, "error", None, f"{whose}{record.error or expected.error}")
    if "tokens" in exact and (found := _unequal(_written(record), _written(expected))):
        return Difference(index, "tokens", *found)
    if "codes" in exact and (found := _unequal(_rows(record.codes), _rows(expected.codes))):
        return Difference(index, "codes", *found)
    for what in work:
        new, old = getattr(record, what), getattr(expected, what)
        slack = SEAMS_SHARE * old if what == "audio_s" and "samples" not in exact else 0
        if abs(new - old) > slack:
            return Difference(index, f"work ({what})", None, f"{new}, not {old}")
    if "samples" in exact and (found := _unequal_samples(record.audio, expected.audio, tolerance_db)):
        return Difference(index, "samples", *found)
    if "codes" in exact and not _as_loud(record.audio, expected.audio):
        return Difference(index, "samples", None, "silent, not finite, or of quite another loudness")
    if _loudness(expected.audio) > 0 and not _loudness(record.audio) > 0:
        return Difference(index, "samples", None, "silent, or not finite")
    return None


def _written(record: RequestRecord) -> list[Any]:
    """Return the text's token ids, or its characters where a server gave no ids."""
    return record.token_ids or list(record.text or "")


def _as_loud(new: NDArray[Any] | None, old: NDArray[Any] | None) -> bool:
    """Samples of equal codes may round or be windowed otherwise; they do not fall silent."""
    ours, theirs = _loudness(new), _loudness(old)
    return theirs == 0 or theirs / 2 <= ours <= 2 * theirs


def _loudness(audio: NDArray[Any] | None) -> float:
    """Root mean square; 0 without samples, NaN where one is not finite."""
    if audio is None or not len(audio):
        return 0.0
    return float(np.sqrt(np.mean(np.square(audio, dtype=np.float64))))


def stopped(run: Row, lines: Sequence[Row]) -> set[str]:
    """Return the variants that get no speed: by their own output, or by that of what they are compared with."""
    found: set[str] = set()
    for variant in run["variants"]:
        if output_class(lines, run["baseline"], variant["name"])[0] in STOPPED:
            found.add(variant["name"])
    while more := {v["name"] for v in run["variants"] if v["against"] in found} - found:
        found |= more
    return found


def output_class(lines: Sequence[Row], baseline: str, name: str) -> tuple[str, str | None]:
    """Class a variant's output by the rows of all its comparisons; give the first difference that counts against it.

    A difference such as the baseline's two trials of the same block show as well is one of batch shapes, not of the
    toggle. A gate that was done anew after an interruption counts as it ended.
    """
    if name == baseline:
        return SAME, None
    ours = [line for line in lines if line["variant"] == name and not aborted(line)]
    tried = [line for line in ours if line["kind"] == "gate"]
    if tried and tried[-1]["error"]:
        return OTHER_OUTPUT, tried[-1]["error"]
    compared = list({(line["kind"], line["block"]): line for line in ours if line["kind"] in COMPARISONS}.values())
    again = {(line["kind"], line["block"]): line for line in lines
             if line["kind"] in COMPARISONS and line["variant"] == baseline + AGAIN}  # fmt: skip
    batch_shape: str | None = None
    for line in (line for line in compared if line["difference"]):
        twin = again.get((line["kind"], line["block"]))
        if not line["same_work"]:
            return OTHER_WORK, line["difference"]
        if twin is None or not excused(line, twin):
            return OTHER_OUTPUT, line["difference"]
        if line.get("same_length") is False and twin.get("same_length"):
            return OTHER_WORK, f"{line['difference']}; the baseline's own audio is as long in both of its trials"
        batch_shape = (
            f"{line['differing']} of {line['requests']} requests; the baseline differs from itself in "
            f"{twin['differing']}: {line['difference']}"
        )
    if not compared:
        return NOT_COMPARED, None
    if any(line.get("same_length") is not None for line in compared):
        return _class_of_server(compared), batch_shape
    if batch_shape is not None:
        return BATCH_SHAPE, batch_shape
    return (SAME if all(all(line["equal"].values()) for line in compared) else OTHER_SAMPLES), None


def _class_of_server(compared: Sequence[Row]) -> str:
    """Class outputs that passed, of a server: audio may be of any length, and may not repeat."""
    if not all(line["same_length"] for line in compared):
        return OTHER_LENGTHS
    if not all(line["equal"]["tokens"] for line in compared):
        return OTHER_TEXT
    return SAME if all(line["equal"]["samples"] for line in compared) else OTHER_SAMPLES


def excused(line: Row, twin: Row) -> bool:
    """Does the baseline differ from itself in the same things, and in about as many requests?"""
    if not twin["difference"]:
        return False
    ours, theirs = ({what for what, equal in row["equal"].items() if not equal} for row in (line, twin))
    most = twin["differing"] + 3 * math.sqrt(twin["differing"]) + 1
    return ours <= theirs and line["differing"] <= most


EQUAL: dict[str, Callable[[RequestRecord, RequestRecord], bool]] = {
    "tokens": lambda new, old: new.text_sha == old.text_sha,
    "codes": lambda new, old: new.codes_sha == old.codes_sha,
    "samples": lambda new, old: new.audio_sha == old.audio_sha,
}


def _rows(codes: NDArray[Any] | None) -> list[list[int]]:
    return [] if codes is None else np.asarray(codes).tolist()


def _unequal(new: list[Any], old: list[Any]) -> tuple[int, str] | None:
    for position, (ours, theirs) in enumerate(zip(new, old, strict=False)):
        if ours != theirs:
            return position, f"{ours}, not {theirs}"
    return None if len(new) == len(old) else (min(len(new), len(old)), f"{len(new)} of them, not {len(old)}")


def _unequal_samples(
    new: NDArray[Any] | None, old: NDArray[Any] | None, tolerance_db: float
) -> tuple[int | None, str] | None:
    ours = np.zeros(0) if new is None else np.asarray(new, dtype=np.float64)
    theirs = np.zeros(0) if old is None else np.asarray(old, dtype=np.float64)
    if len(ours) != len(theirs):
        return min(len(ours), len(theirs)), f"{len(ours)} of them, not {len(theirs)}"
    wrong = ~np.isclose(ours, theirs, rtol=0, atol=0)  # not finite on either side counts as different
    if not wrong.any():
        return None
    ratio = signal_to_difference_db(ours, theirs)
    if ratio >= tolerance_db:
        return None
    return int(np.argmax(wrong)), f"{ratio:.1f} dB of signal over difference, less than {tolerance_db:g}"


def signal_to_difference_db(new: NDArray[Any], old: NDArray[Any]) -> float:
    """Return 10 log10 of the power of `old` over that of the difference; -inf for what is not finite."""
    difference = float(np.sum((new - old) ** 2))
    signal = float(np.sum(old**2))
    if not np.isfinite(difference) or not np.isfinite(signal) or signal == 0:
        return -np.inf
    return np.inf if difference == 0 else float(10 * np.log10(signal / difference))
