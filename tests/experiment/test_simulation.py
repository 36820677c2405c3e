"""The analysis on simulated runs: wrong verdicts, coverage and power for each kind of noise and design.

Every verdict comes from the functions of a real analysis, in its order: slope, contrasts, t, Holm. The short form has
2,000 runs a case and bounds wider by what 2,000 runs leave open (99 %); `pytest -m simulate` runs the long one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from omnilab.experiment.statistics.contrasts import (
    cells,
    factorial_weights,
    interaction_weights,
    per_block,
    shapley_weights,
)
from omnilab.experiment.statistics.estimate import (
    LEVEL,
    benjamini_hochberg,
    clip_outliers,
    equivalence_p,
    fieller_share,
    holm,
    quantile_effect,
    remove_slope,
    t_summary,
)
from omnilab.experiment.statistics.power import LOOKS, blocks_after_five, decided, mde
from tests.experiment.noise import HEAVY_TAILED, KINDS, simulate

Array = NDArray[np.float64]

ALPHA = 1 - LEVEL
TOGGLES = 4
PLANTED = 1  # the toggle that has an effect where power is asked
RUNS, MANY_RUNS = 2_000, 20_000
WRONG = 0.054  # most runs with any wrong verdict
COVERED = (0.93, 0.97)
FOUND = (0.75, 0.85)  # of effects as large as the least detectable one
DOUBLED = "2 % of trials x2"


@dataclass(frozen=True, slots=True)
class Layout:
    """The toggles of each trial of a block [V, k], the baseline first and again last; the main contrasts [V, k]."""

    on: NDArray[np.int64]
    weights: Array


def repeated(weights: Array) -> Array:
    """Share the first cell's weight between it and its repeat at the end."""
    return np.vstack([weights[:1] / 2, weights[1:], weights[:1] / 2])


def layout(on: NDArray[np.int64], weights: ArrayLike) -> Layout:
    return Layout(np.vstack([on, on[:1]]), repeated(np.asarray(weights, dtype=float)))


OFF, EACH, ONES = np.zeros((1, TOGGLES), dtype=np.int64), np.eye(TOGGLES, dtype=np.int64), np.ones((1, TOGGLES))
LAYOUTS = {
    "factorial": layout(cells(TOGGLES), factorial_weights(cells(TOGGLES))[1][:, :TOGGLES]),
    "one-at-a-time": layout(np.vstack([OFF, EACH]), np.vstack([-ONES, EACH])),
    "leave-one-out": layout(np.vstack([OFF, 1 - OFF, 1 - EACH]), np.vstack([0 * ONES, -ONES, EACH])),
}
FACTORIAL = LAYOUTS["factorial"]


@dataclass(frozen=True, slots=True)
class Rates:
    """Shares: of intervals that hold the truth, of runs with a wrong verdict, of planted effects that were found.

    `found` is of the effect that is least detectable at the true sd, `found_printed` of the one that an earlier run of
    the same size would have printed.
    """

    covered: float
    wrong: float
    found: float
    found_printed: float


def p_values(values: Array, positions: Array, weights: Array) -> Array:
    """Analyse runs [n, B, V] as they are analysed: unadjusted p [n, m]."""
    return t_summary(per_block(remove_slope(values, positions), weights), values.shape[-1])[2]


def rates(plan: Layout, kind: str, blocks: int, runs: int, clipped: bool = False) -> Rates:
    """Simulate runs without an effect, then the same noise with one."""
    seed = [runs, blocks, KINDS.index(kind), len(plan.on)]
    values, positions = simulate(kind, runs, blocks, plan.on, np.random.default_rng(seed))
    variants = len(plan.on)

    def p_with(effect: float | Array) -> Array:
        planted = values + np.broadcast_to(effect, runs)[:, None, None] * plan.on[:, PLANTED]
        return p_values(clip_outliers(planted) if clipped else planted, positions, plan.weights)

    p = p_with(0.0)
    contrasts = per_block(remove_slope(values, positions), plan.weights[:, [PLANTED]])
    sd = contrasts[..., 0].std(-1, ddof=1)
    least = mde(math.sqrt(float((sd**2).mean())), blocks, ALPHA / TOGGLES, variants=variants)
    printed = mde(1.0, blocks, ALPHA / TOGGLES, blocks - 1, variants=variants) * np.roll(sd, 1)
    return Rates(
        covered=float((p > ALPHA).mean()),
        wrong=float((holm(p) <= ALPHA).any(-1).mean()),
        found=float((holm(p_with(least))[:, PLANTED] <= ALPHA).mean()),
        found_printed=float((holm(p_with(printed))[:, PLANTED] <= ALPHA).mean()),
    )


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds on a share of so many runs; widened to what chance allows (99 %) unless `strict`."""

    runs: int
    strict: bool = False

    def most(self, share: float) -> float:
        return share if self.strict else float(stats.binom.ppf(0.995, self.runs, share)) / self.runs

    def least(self, share: float) -> float:
        return share if self.strict else float(stats.binom.ppf(0.005, self.runs, share)) / self.runs

    def hold(self, found: float, low: float, high: float) -> bool:
        return self.least(low) <= found <= self.most(high)


def check(found: Rates, kind: str, plan: str, bounds: Bounds) -> None:
    assert found.wrong <= bounds.most(WRONG), found
    assert bounds.hold(found.covered, COVERED[0], 1.0 if kind == DOUBLED else COVERED[1]), found
    if kind == DOUBLED and plan != "factorial":
        assert found.found >= bounds.least(0.70), found  # 73 % at 8 blocks: two trials a contrast are far from normal
    else:
        assert bounds.hold(found.found, FOUND[0], 1.0 if kind in HEAVY_TAILED else FOUND[1]), found
    if kind not in HEAVY_TAILED:  # with heavy tails most runs see too small a spread: the printed effect is too small
        assert bounds.hold(found.found_printed, *FOUND), found


@pytest.mark.parametrize("plan", LAYOUTS)
@pytest.mark.parametrize("kind", KINDS)
def test_verdicts_and_intervals_are_as_good_as_they_say(kind: str, plan: str):
    check(rates(LAYOUTS[plan], kind, 5, RUNS), kind, plan, Bounds(RUNS))


@pytest.mark.simulate
@pytest.mark.timeout(0)
@pytest.mark.parametrize("blocks", [5, 8])
@pytest.mark.parametrize("plan", LAYOUTS)
@pytest.mark.parametrize("kind", KINDS)
def test_verdicts_and_intervals_are_as_good_as_they_say_in_many_runs(kind: str, plan: str, blocks: int):
    found = rates(LAYOUTS[plan], kind, blocks, MANY_RUNS)
    print(f"{plan}, {kind}, {blocks} blocks: {found}")
    check(found, kind, plan, Bounds(MANY_RUNS, strict=True))


# Interactions and attribution


def interactions(blocks: int, effect: float, runs: int) -> tuple[Array, Array]:
    """Return unadjusted and adjusted p of the six interactions [n, 6]; the first pair has an effect."""
    on = FACTORIAL.on
    values, positions = simulate("normal", runs, blocks, on, np.random.default_rng([runs, blocks]))
    planted = values + effect * on[:, 0] * on[:, 1]
    p = p_values(planted, positions, repeated(interaction_weights(cells(TOGGLES))[1]))
    return p, benjamini_hochberg(p)


@pytest.mark.parametrize(("blocks", "often"), [(5, 0.50), (8, 0.93)])
def test_a_planted_interaction_is_found_about_as_often_as_the_protocol_says(blocks: int, often: float):
    p, adjusted = interactions(blocks, math.log(1.05), RUNS)
    assert Bounds(RUNS).hold(float((adjusted[:, 0] <= ALPHA).mean()), often - 0.02, often + 0.02)
    assert Bounds(RUNS).hold(float((p[:, 1:] > ALPHA).mean()), *COVERED)


@pytest.mark.parametrize("kind", ["normal", "AR(1)", "block x toggle"])
def test_shapley_values_add_up_and_their_intervals_hold_the_truth(kind: str):
    on = FACTORIAL.on
    values, positions = simulate(kind, RUNS, 5, on, np.random.default_rng([1, KINDS.index(kind)]))
    effects = np.array([-0.10, -0.06, -0.02, 0.0])
    values = values + on @ effects + 0.05 * on[:, 0] * on[:, 1]
    truth = effects + np.array([0.025, 0.025, 0.0, 0.0])  # two share what they do together
    flat = remove_slope(values, positions)
    shapley = per_block(flat, repeated(shapley_weights(cells(TOGGLES))))
    whole = flat[..., 15] - (flat[..., 0] + flat[..., 16]) / 2
    assert np.abs(shapley.sum(-1) - whole).max() < 1e-9
    _, _, p = t_summary(shapley - truth, len(on))
    assert Bounds(RUNS).hold(float((p > ALPHA).mean()), *COVERED)


def test_fieller_shares_hold_the_truth():
    on, runs, effects = FACTORIAL.on, 1_000, np.array([-0.10, -0.06, -0.02, 0.0])
    values, positions = simulate("normal", runs, 5, on, np.random.default_rng(3))
    flat = remove_slope(values + on @ effects, positions)
    shapley = per_block(flat, repeated(shapley_weights(cells(TOGGLES))))
    shares = [fieller_share(run[:, 0], run.sum(-1), len(on)) for run in shapley]
    known = [share for share in shares if share is not None]
    held = [low <= effects[0] / effects.sum() <= high for _, low, high in known]
    assert len(known) > 0.95 * runs  # the total is clear of 0
    assert Bounds(len(known)).hold(float(np.mean(held)), *COVERED)


# Equivalence, outliers, quantiles


@pytest.mark.parametrize("plan", ["factorial", "one-at-a-time"])
def test_an_effect_at_the_margin_is_called_equivalent_in_no_more_than_one_of_twenty(plan: str):
    weights, on = LAYOUTS[plan].weights, LAYOUTS[plan].on
    values, positions = simulate("normal", RUNS, 8, on, np.random.default_rng(4))
    planted = values + math.log(1.02) * on[:, PLANTED]
    value, se, _ = t_summary(per_block(remove_slope(planted, positions), weights), len(on))
    assert (equivalence_p(value, se, 8, 0.02)[:, PLANTED] <= 0.05).mean() <= Bounds(RUNS).most(0.05)


def test_clipping_finds_what_doubled_trials_hide():
    """A row beside the verdict, not the verdict: no more often wrong, far more often right."""
    raw, clipped = (rates(FACTORIAL, DOUBLED, 5, RUNS, clipped) for clipped in (False, True))
    assert clipped.wrong <= Bounds(RUNS).most(WRONG)
    assert Bounds(RUNS).hold(clipped.covered, *COVERED)
    assert clipped.found > raw.found + 0.1


@pytest.mark.simulate
@pytest.mark.timeout(0)
@pytest.mark.parametrize(("q", "blocks", "requests"), [(0.9, 8, 16), (0.95, 8, 16), (0.99, 8, 64)])
def test_intervals_of_quantiles_hold_the_truth(q: float, blocks: int, requests: int):
    random, runs, held = np.random.default_rng(5), 1_000, 0
    for run in range(runs):
        base, arm = (
            0.05 * random.standard_normal((blocks, 1))  # a block's own, paired out
            + 0.02 * random.standard_normal((2, blocks, 1))
            + 0.03 * random.standard_normal((2, blocks, requests))
        )
        found = quantile_effect(base, arm, q, seed=run)
        held += not found.excludes(0.0)
    print(f"p{100 * q:g}, {blocks} blocks of {requests} requests: {held / runs}")
    assert held / runs >= 0.93


# More blocks


def sized_once(effect: float, runs: int, cap: int) -> tuple[Array, NDArray[np.int64]]:
    """Size each run after 5 blocks, then analyse it: adjusted p [n, 4] and the blocks of each run."""
    on, variants = FACTORIAL.on, len(FACTORIAL.on)
    values, positions = simulate("normal", runs, cap, on, np.random.default_rng([runs, 6]))
    values = values + effect * on[:, PLANTED]
    every = repeated(factorial_weights(cells(TOGGLES))[1])
    variances = per_block(remove_slope(values[:, :5], positions[:, :5]), every).var(-2, ddof=1)
    noise = np.maximum(variances[:, :TOGGLES].mean(-1), variances[:, TOGGLES:].mean(-1))
    blocks = np.array([blocks_after_five(each, 0.018, ALPHA / TOGGLES, variants, cap) for each in noise.tolist()])
    p = np.empty((runs, TOGGLES))
    for count in np.unique(blocks):
        chosen = blocks == count
        p[chosen] = p_values(values[chosen, :count], positions[chosen, :count], FACTORIAL.weights)
    return p, blocks


@pytest.mark.simulate
@pytest.mark.timeout(0)
def test_sizing_once_from_the_noise_keeps_its_promises():
    p, blocks = sized_once(0.0, 6_000, cap=30)
    wrong = float((holm(p) <= ALPHA).any(-1).mean())
    adjusted = holm(sized_once(0.018, 6_000, cap=30)[0])
    print(f"sized once: wrong {wrong}, found {(adjusted[:, PLANTED] <= ALPHA).mean()}, blocks {blocks.mean()}")
    assert wrong <= Bounds(6_000).most(WRONG)
    assert (p > ALPHA).mean() >= COVERED[0]
    assert Bounds(6_000).hold(float((adjusted[:, PLANTED] <= ALPHA).mean()), 0.78, 0.92)
    assert 5 < blocks.mean() < 20


def after_the_looks(effect: float, runs: int) -> NDArray[np.bool_]:
    """Return which of the toggles were decided by the last look [n, 4]."""
    on = FACTORIAL.on
    values, positions = simulate("normal", runs, max(LOOKS), on, np.random.default_rng([runs, 7]))
    values = values + effect * on[:, PLANTED]
    found = np.zeros((runs, TOGGLES), dtype=bool)
    for blocks in LOOKS:
        p = p_values(values[:, :blocks], positions[:, :blocks], FACTORIAL.weights)
        found = np.stack([decided(run, blocks, before) for run, before in zip(p, found, strict=True)])
    return found


@pytest.mark.simulate
@pytest.mark.timeout(0)
def test_looking_three_times_keeps_its_promises():
    runs = 10_000
    wrong = float(after_the_looks(0.0, runs).any(-1).mean())
    sd = math.hypot(0.02, 0.03 * 0.546) / 2  # a main effect's; 0.546: the sd of the median of four normal draws
    found = after_the_looks(mde(sd, max(LOOKS), ALPHA / TOGGLES, variants=17), runs)
    print(f"three looks: wrong {wrong}, found {found[:, PLANTED].mean()}")
    assert wrong <= Bounds(runs).most(WRONG)
    assert Bounds(runs).hold(float(found[:, PLANTED].mean()), 0.75, 0.85)
