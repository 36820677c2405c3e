"""What the requests of a run waited for, and whether a what-if foretells what each variant did; from the span rows.

A path leads through the spans of one trial. Where a run was packed without them, what was found before is read back.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from omnilab.experiment.analysis.span_trials import END, FIRST, KnownSince, SpanTrial, chosen_blocks, span_trials
from omnilab.profile.order import pieces_of
from omnilab.profile.path import Paths, Segment, Until, shares
from omnilab.profile.whatif import Own, Recorded, factors_of, own_ns
from omnilab.record import SpanRow

KEPT = "waited.json"  # in a run folder: what was found, for when the spans are not there
UNTIL: tuple[Until, ...] = (FIRST, END)
OVERWRITTEN = "full rings had overwritten spans on the way"
NOT_PACKED = "span rows are not there (pack --no-spans), and nothing was kept of them"
Row: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Held:
    """What held a variant's requests, over blocks and requests: mean ms of the path, its shares by edge or place."""

    variant: str
    until: str
    ms: float
    shares: Mapping[str, float]  # by edge or "stage/name", the largest first


@dataclass(frozen=True, slots=True)
class Foretold:
    """A variant's ratio over the baseline, as predicted from the baseline's spans, and as measured in those trials."""

    variant: str
    until: str
    predicted: float
    measured: float


@dataclass(frozen=True, slots=True)
class Waited:
    """All of it. `limits` are places by variant that no prediction can scale, in words; `said` is what was left out."""

    held: tuple[Held, ...] = ()
    foretold: tuple[Foretold, ...] = ()
    limits: Mapping[str, Sequence[str]] = field(default_factory=dict)
    blocks: int = 0
    of_blocks: int = 0
    requests: int = 0  # looked at in a trial
    said: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> Waited:
        """Return what `to_dict` gave."""
        held = tuple(Held(**one) for one in found["held"])
        foretold = tuple(Foretold(**one) for one in found["foretold"])
        return cls(**{**found, "held": held, "foretold": foretold, "said": tuple(found["said"])})


def waited(folder: Path, run: Row, lines: Sequence[Row]) -> Waited:
    """Follow the spans of a run folder; of a run without span rows, return what was kept.

    OSError, ValueError or KeyError where row files are damaged.
    """
    trials = span_trials(folder, run, lines)
    if trials and not any(trial.spans.is_file() for trial in trials):
        kept = folder / KEPT
        return Waited.from_dict(json.loads(kept.read_text(encoding="utf-8"))) if kept.is_file() else Waited(
            said=(NOT_PACKED,)
        )  # fmt: skip
    blocks, left_out = chosen_blocks(trials)
    found = _Found(run["baseline"])
    for several in blocks:
        found.take_block(several)
    said = [f"{count} trials do not show the {why}" for why, count in sorted(found.left_out.items())]
    return Waited(
        held=tuple(found.held()),
        foretold=tuple(found.foretold()),
        limits={name: sorted(several) for name, several in found.limits.items() if several},
        blocks=len(blocks),
        of_blocks=len({trial.line["block"] for trial in trials}),
        requests=found.requests,
        said=(*(left_out if found.followed else ()), *said),
    )


class _Found:
    """What is gathered over trials."""

    def __init__(self, baseline: str) -> None:
        self._baseline = baseline
        self.limits: dict[str, set[str]] = defaultdict(set)
        self.left_out: dict[str, int] = defaultdict(int)
        self.requests = 0
        self._paths: dict[tuple[str, Until], list[tuple[float, dict[str, float]]]] = defaultdict(list)
        self._logs: dict[tuple[str, Until], list[tuple[float, float]]] = defaultdict(list)

    def take_block(self, trials: Sequence[SpanTrial]) -> None:
        """Follow the trials of one block; what-ifs need the baseline's."""
        base: _Base | None = None
        for trial in trials:
            if not trial.told:
                self.left_out[f"{FIRST} and {END}: {OVERWRITTEN}"] += 1
                continue
            rows = trial.read()
            pieces = pieces_of(rows)
            followed = self._follow(trial, rows, Paths(rows, pieces))
            if trial.variant == self._baseline and followed:
                base = _Base(trial, Recorded(rows, pieces), own_ns(pieces), followed)
            elif base is not None and followed:
                self._foretell(base, trial, own_ns(pieces), followed)

    def _follow(self, trial: SpanTrial, rows: Sequence[SpanRow], paths: Paths) -> set[Until]:
        """Add a trial's paths; return how far its spans can be followed."""
        there = {row.request for row in rows}
        heard = {row.request for row in rows if row.name == "vocode"}
        names = [name for name in trial.names() if name in there]
        self.requests = max(self.requests, len(names))
        several: dict[Until, list[list[Segment]]] = {END: [paths.path(name) for name in names]}
        several |= {FIRST: [paths.path(name, FIRST) for name in names if name in heard]}
        known = KnownSince(trial.line, rows)
        followed: set[Until] = {until for until in UNTIL if several[until] and known.holds(several[until], until)}
        if several[END] and len(followed) < bool(several[FIRST]) + 1:
            missing = " and ".join(until for until in UNTIL if several[until] and until not in followed)
            self.left_out[f"{missing}: {OVERWRITTEN}"] += 1
        for until in followed:
            for path in several[until]:
                self._paths[trial.variant, until].append(((path[-1].end_ns - path[0].start_ns) / 1e6, shares(path)))
        return followed

    def _foretell(self, base: _Base, trial: SpanTrial, own: Mapping[Own, int], followed: set[Until]) -> None:
        factors, limits = factors_of(base.own, own)
        self.limits[trial.variant] |= limits
        retimed = base.recorded.at(factors)
        names = [name for name in base.trial.names() if name in base.recorded.requests]
        for until in sorted(followed & base.followed, key=UNTIL.index):
            sums = [0.0, 0.0, 0.0]
            for index, name in enumerate(names):
                before, after = base.trial.measured_ms(index, until), trial.measured_ms(index, until)
                if before is not None and after is not None:
                    change = retimed.change(name, until) / 1e6
                    sums = [sums[0] + before, sums[1] + before + change, sums[2] + after]
            if min(sums) > 0:
                self._logs[trial.variant, until].append((math.log(sums[1] / sums[0]), math.log(sums[2] / sums[0])))

    @property
    def followed(self) -> bool:
        """Was there any path?"""
        return bool(self._paths)

    def held(self) -> Iterator[Held]:
        """Give the means over what was followed."""
        for (variant, until), several in sorted(self._paths.items(), key=lambda item: UNTIL.index(item[0][1])):
            sums: dict[str, float] = defaultdict(float)
            for _, parts in several:
                for key, share in parts.items():
                    sums[key] += share / len(several)
            largest = sorted(sums.items(), key=lambda item: (-item[1], item[0]))
            ms = sum(ms for ms, _ in several) / len(several)
            yield Held(variant, until, round(ms, 3), {key: round(share, 5) for key, share in largest})

    def foretold(self) -> Iterator[Foretold]:
        """Give the geometric means over blocks."""
        for (variant, until), logs in sorted(self._logs.items(), key=lambda item: UNTIL.index(item[0][1])):
            predicted, measured = (round(math.exp(sum(one) / len(logs)), 5) for one in zip(*logs, strict=True))
            yield Foretold(variant, until, predicted, measured)


@dataclass(frozen=True, slots=True)
class _Base:
    """The baseline's trial of a block."""

    trial: SpanTrial
    recorded: Recorded
    own: Mapping[Own, int]
    followed: set[Until]
