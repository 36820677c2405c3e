"""What a run shows, as values: effects with their intervals, verdicts, what moved, how effects share out.

`analysis` makes them from rows; reports, figures and notebooks only read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from omnilab.metrics import THROUGHPUTS

# Verdicts. *faster* inside the margin reads "faster, below the margin".
FASTER, SLOWER, EQUIVALENT, INCONCLUSIVE = "faster", "slower", "equivalent", "inconclusive"
NO_EFFECT, FAILED_GATE, NOT_MEASURED, BASELINE = "had no effect", "failed the gate", "not measured", "baseline"
TOO_FEW, WITHHELD = "no verdict below 5 blocks", "withheld: the baseline differs from itself"

NO_BASELINE, NO_COMPARISON = "withheld: no A/A to judge noise by", "no comparison: what it is compared with failed"
LENGTHS_DIFFER = "withheld: audio lengths differ; ask for audio_throughput"
NO_MAINS = "no verdict: a cell is missing"
UNSETTLED = "no verdict: too few blocks to tell whether it took part"

# How two toggles go together.
SUB_ADDITIVE, SUPER_ADDITIVE, NO_INTERACTION = "sub-additive", "super-additive", "no interaction shown"

# Classes of the output gate.
SAME, OTHER_SAMPLES = "same output", "same work, other samples"
# Of servers that do not repeat, or need not: with other lengths, times are per audio second.
OTHER_TEXT, OTHER_LENGTHS = "same work, other text", "other audio lengths"
BATCH_SHAPE, OTHER_OUTPUT, OTHER_WORK, NOT_COMPARED = (
    "batch-shape numerics", "other output", "other work", "not compared",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Effect:
    """A ratio over what a variant is compared with, and its 95 % Student t interval over blocks.

    `low` and `high` are None below 3 blocks. `p` is two-sided and unadjusted, `p_adjusted` after Holm (primary) or
    Benjamini-Hochberg (the rest). `mde` is the least detectable ratio less one (0.03: 3 %) at the level of the
    verdict, `clipped` the ratio with trials beyond 5 MAD clipped. `before`, `after`: means of both sides, absolute.
    """

    ratio: float
    low: float | None
    high: float | None
    blocks: int
    p: float | None = None
    p_adjusted: float | None = None
    p_equivalent: float | None = None
    mde: float | None = None
    clipped: float | None = None
    before: float | None = None
    after: float | None = None

    def excludes_one(self) -> bool:
        """Does the interval leave out "no effect"?"""
        return self.low is not None and self.high is not None and not self.low <= 1.0 <= self.high


@dataclass(frozen=True, slots=True)
class Moved:
    """A counter or a span sum that differs: its means before and after; the difference's interval where it has one.

    `exact`: the two baseline trials of every block agree on it, so that any difference counts.
    """

    what: str  # "talker/receive/accumulate"
    before: float
    after: float
    low: float | None = None
    high: float | None = None
    p_adjusted: float | None = None
    exact: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """What lengths alone say a variant changes, over what it is compared with; from `laws` and the baseline's rates."""

    counts: Mapping[str, tuple[int, int]]  # counter -> predicted before, predicted after
    measured: Mapping[str, tuple[float, float]]  # the same, measured
    host_s: float | None  # predicted change of Talker host seconds a trial; negative: saved
    measured_host_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """What the run shows of one variant. `effects` is empty for the baseline and where the gate failed."""

    name: str
    toggles: tuple[str, ...]
    against: str | None
    output: str  # a class of the gate
    difference: str | None  # the first one, in words
    errors: tuple[str, ...]
    trials: int
    effects: Mapping[str, Effect]
    primary: bool  # is it one of the comparisons that the verdicts' error rate is shared over
    growth: float | None  # host work a chunk-consuming Talker step, last tenth over first tenth
    counters: tuple[Moved, ...]
    spans: tuple[Moved, ...]
    predicted: Predicted | None
    carries: str  # what of it carries over to a GPU, in words ...
    carries_short: str  # ... and for a table's cell
    verdict: str
    more_blocks: int | None = None  # about so many more would decide an inconclusive one


@dataclass(frozen=True, slots=True, kw_only=True)
class Interaction:
    """Two toggles and the four cells: is one worth less once the other is on?

    `first_alone` .. are ratios of the primary metric over neither. `expected` is the product of the two alone;
    `effect` is together over expected: above 1 (of a time) is sub-additive.
    """

    first: str
    second: str
    first_alone: float
    second_alone: float
    together: float
    expected: float
    effect: Effect
    metric: str
    words: str

    @property
    def kind(self) -> str:
        """Say how they go together; more of a throughput is better, less of anything else. Nothing below 5 blocks."""
        p = self.effect.p_adjusted
        if p is None or p > 0.05 or self.effect.blocks < 5:
            return NO_INTERACTION
        better = (self.effect.ratio > 1) == (self.metric in THROUGHPUTS)
        return SUPER_ADDITIVE if better else SUB_ADDITIVE


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A toggle's Shapley value as a ratio; the least and greatest it adds over all orders; a share of the total."""

    toggle: str
    main: Effect
    shapley: Effect
    least: float
    greatest: float
    share: tuple[float, float, float] | None  # value, low, high (Fieller); None: the total is not clear of 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Main:
    """A toggle's main effect in a factorial or in half-fractions: on against off, averaged over the others."""

    toggle: str
    effect: Effect
    verdict: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """How a factorial's total shares out. `noise_range`: the least-to-greatest span (log) that noise alone gives."""

    total: Effect
    shares: tuple[Share, ...]
    noise_range: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """All of it. `primary` is the metric of the verdicts; `same` is A/A; `baseline` holds absolute means by metric."""

    baseline_name: str
    primary: str
    margin: float
    metrics: tuple[str, ...]  # shown, in this order
    baseline: Mapping[str, float | None]
    same: Mapping[str, Effect]
    variants: tuple[Variant, ...]  # the baseline first
    interactions: tuple[Interaction, ...] = ()  # strongest first
    mains: tuple[Main, ...] = ()  # of a factorial or half-fractions: these have the verdicts, not single cells
    pairs: Mapping[str, Effect] = field(default_factory=dict)  # "one x other": interactions averaged over the others
    attribution: Attribution | None = None
    quantiles: Mapping[str, str] = field(default_factory=dict)  # metric and quantile -> an effect, or why there is none
    blocks: int = 0
    planned_blocks: int = 0
    unfinished: bool = False
    trials: int = 0
    disturbed: Mapping[str, int] = field(default_factory=dict)  # reason -> trials
    per_stage: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # variant -> "stage/name" -> ms a trial
    notes: tuple[str, ...] = ()
    per_audio: tuple[str, ...] = ()  # metrics that are per audio second, for audio lengths differ
