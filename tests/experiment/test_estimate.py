"""Effects over blocks: known answers by hand or from scipy, and what is missing, tied, equal or negative."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from omnilab.experiment.statistics.estimate import (
    Estimate,
    benjamini_hochberg,
    clip_outliers,
    equivalence_p,
    estimate,
    fieller_share,
    holm,
    least_requests,
    quantile_effect,
    remove_slope,
    slope_factor,
    t_summary,
)

MANY = 10**9  # variants: the slope then costs nothing


def orders(blocks: int, variants: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random((blocks, variants)).argsort(-1).astype(float)


def additive(blocks: int, variants: int) -> np.ndarray:
    """Return a table of block and variant effects alone, negative logs among them."""
    return np.linspace(-3.0, 2.0, blocks)[:, None] + np.linspace(0.0, -0.7, variants) ** 2


# The slope


def test_a_planted_slope_is_removed_exactly():
    places = orders(5, 6)
    flat = remove_slope(additive(5, 6) + 0.03 * places, places)
    assert flat == pytest.approx(additive(5, 6) + 0.03 * 2.5)  # every value at the middle of its block


def test_the_slope_is_that_of_least_squares():
    random = np.random.default_rng(3)
    values, places = random.standard_normal((4, 5)), orders(4, 5)
    blocks, variants = np.indices((4, 5)).reshape(2, -1)
    terms = np.column_stack([np.eye(4)[blocks], np.eye(5)[variants], places.ravel()])
    slope = np.linalg.lstsq(terms, values.ravel())[0][-1]
    assert remove_slope(values, places) == pytest.approx(values - slope * (places - 2.0))


def test_leading_axes_are_runs_of_their_own():
    random = np.random.default_rng(4)
    values, places = random.standard_normal((3, 5, 6)), np.stack([orders(5, 6, seed) for seed in range(3)])
    alone = [remove_slope(*run) for run in zip(values, places, strict=True)]
    assert remove_slope(values, places) == pytest.approx(np.stack(alone))
    assert remove_slope(values, places[0])[0] == pytest.approx(alone[0])  # one order for all


def test_with_a_trial_missing_the_slope_is_still_exact():
    places = orders(5, 6)
    values = additive(5, 6) + 0.03 * places
    values[1, 2] = values[1, 3] = values[4, 0] = np.nan
    flat = remove_slope(values, places)
    assert (np.isnan(flat) == np.isnan(values)).all()
    within = flat - additive(5, 6)  # left: one number a block, 0.03 times its middle
    assert np.nanmax(within, 1) == pytest.approx(np.nanmin(within, 1))
    assert np.nanmean(flat, 1) == pytest.approx(np.nanmean(values, 1))


def test_a_block_or_variant_missing_whole_changes_nothing_for_the_rest():
    places = orders(5, 6)
    values = additive(5, 6) + 0.03 * places + np.random.default_rng(5).standard_normal((5, 6))
    rest = remove_slope(values[:4], places[:4])
    values[4] = np.nan
    assert remove_slope(values, places)[:4] == pytest.approx(rest)
    assert np.isnan(remove_slope(np.full((3, 4), np.nan), orders(3, 4))).all()


@pytest.mark.parametrize("missing", [False, True])
def test_one_order_for_every_block_leaves_the_values_alone(missing: bool):
    values = np.random.default_rng(6).standard_normal((4, 5))
    if missing:
        values[0, 0] = np.nan
    np.testing.assert_array_equal(remove_slope(values, np.tile(np.arange(5.0), (4, 1))), values)


# One effect


def test_an_estimate_by_hand():
    found = estimate([0.1, 0.2, 0.3, 0.2, 0.2], variants=17)
    assert found is not None and found.p is not None and found.low is not None and found.high is not None
    assert found.value == pytest.approx(0.2)
    assert found.se == pytest.approx(math.sqrt(0.005 / 5) * (1 + 1 / 64))
    assert found.high - 0.2 == pytest.approx(2.776445 * 0.0321169, rel=1e-5)
    assert found.low + found.high == pytest.approx(0.4)
    assert found.p == pytest.approx(2 * stats.t.sf(0.2 / 0.0321169, 4), rel=1e-4)
    assert found.blocks == 5


def test_without_a_slope_it_is_the_t_test_of_the_library():
    values = np.random.default_rng(1).standard_normal(7)
    found, theirs = estimate(values, MANY, null=0.5, level=0.9), stats.ttest_1samp(values, 0.5)
    limits = theirs.confidence_interval(0.9)
    assert found is not None
    assert (found.p, found.low, found.high) == pytest.approx((theirs.pvalue, limits.low, limits.high))


def test_the_interval_leaves_out_what_p_rejects():
    for seed in range(50):
        values = np.random.default_rng(seed).normal(1.0, 1.0, 5)
        found = estimate(values, variants=6)
        assert found is not None and found.p is not None
        assert found.excludes(0.0) == (found.p < 0.05)


def test_the_slope_costs_what_the_formula_says():
    assert slope_factor(17, 5) == 1 + 1 / 64
    assert slope_factor(2, 2) == 2.0
    assert t_summary(np.arange(5.0)[:, None], 3)[1] == pytest.approx(math.sqrt(0.5) * (1 + 1 / 8))
    for variants, blocks in ((1, 5), (5, 1)):
        with pytest.raises(ValueError, match=f"not {variants} and {blocks}"):
            slope_factor(variants, blocks)


def test_few_blocks_give_no_interval():
    assert estimate([], 3) is None
    assert estimate([np.nan, np.nan], 3) is None
    assert estimate([-0.4, np.nan], 3) == Estimate(-0.4, None, None, None, None, 1)
    two = estimate([0.1, 0.3], 3)
    assert two is not None and two.p is not None
    assert (two.low, two.high, two.blocks, two.se) == (None, None, 2, pytest.approx(0.15))
    assert not two.excludes(0.0)
    three = estimate([0.1, 0.3, np.nan, 0.2], 3)
    assert three is not None and three.low is not None and three.blocks == 3


@pytest.mark.parametrize(("value", "p"), [(0.0, 1.0), (-0.25, 0.0), (1e-17, 1.0)])
def test_blocks_that_agree_exactly(value: float, p: float):
    found = estimate([value] * 5, 6)
    assert found is not None
    assert (found.value, found.se) == (pytest.approx(value), pytest.approx(0))
    assert found.p == pytest.approx(p, abs=1e-4)
    assert (found.low, found.high) == (pytest.approx(value), pytest.approx(value))


def test_many_runs_and_effects_at_once():
    values = np.random.default_rng(2).standard_normal((3, 5, 4))
    value, se, p = t_summary(values, 6, null=0.1)
    found = estimate(values[1, :, 2], 6, null=0.1)
    assert found is not None
    assert (found.value, found.se, found.p) == pytest.approx((value[1, 2], se[1, 2], p[1, 2]))
    assert value.shape == se.shape == p.shape == (3, 4)


# Many p values


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.5]) == pytest.approx([1.0, 1.0])
    assert holm([0.02, 0.02, 0.02]) == pytest.approx([0.06] * 3)  # ties
    assert holm([0.2]) == pytest.approx([0.2])
    assert holm([]).shape == (0,)
    two = holm([[0.01, 0.04], [0.03, 0.01]])
    assert two == pytest.approx(np.array([[0.02, 0.04], [0.03, 0.02]]))


def test_benjamini_hochberg_by_hand():
    assert benjamini_hochberg([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.02, 0.04, 0.04, 0.02])
    assert benjamini_hochberg([0.5]) == pytest.approx([0.5])
    assert benjamini_hochberg([]).shape == (0,)


@pytest.mark.parametrize("adjust", [holm, benjamini_hochberg])
def test_a_missing_p_does_not_count(adjust):
    found = adjust([0.01, np.nan, 0.04, 0.03])
    assert np.isnan(found[1])
    assert found[[0, 2, 3]] == pytest.approx(adjust([0.01, 0.04, 0.03]))
    assert np.isnan(adjust([np.nan, np.nan])).all()


def test_equivalence():
    edge = math.log(1.02)
    assert equivalence_p(0.0, 0.01, 5, 0.02) == pytest.approx(stats.t.sf(edge / 0.01, 4))
    assert equivalence_p(edge, 0.01, 5, 0.02) == pytest.approx(0.5)
    assert equivalence_p(-0.005, 0.01, 5, 0.02) == pytest.approx(equivalence_p(0.005, 0.01, 5, 0.02))
    assert equivalence_p(0.05, 0.001, 5, 0.02) > 0.999
    assert equivalence_p([0.0, 0.03], [0.0, 0.0], 5, 0.02) == pytest.approx([0.0, 1.0])  # no spread at all


# Outliers


def test_only_the_outlier_is_moved():
    values = additive(5, 6) + 0.01 * np.random.default_rng(8).standard_normal((5, 6))
    spoilt = values.copy()
    spoilt[2, 3] += 0.7
    found = clip_outliers(spoilt)
    assert (found != spoilt).sum() == 1
    assert values[2, 3] < found[2, 3] < values[2, 3] + 0.15
    np.testing.assert_array_equal(clip_outliers(values), values)
    assert clip_outliers(2 * values - spoilt)[2, 3] < values[2, 3]  # an outlier below


def test_outliers_where_trials_are_missing():
    values = additive(5, 6) + 0.01 * np.random.default_rng(9).standard_normal((5, 6))
    values[0, 1] = np.nan
    values[3] = np.nan
    values[2, 3] += 0.7
    found = clip_outliers(values)
    assert (np.isnan(found) == np.isnan(values)).all()
    assert np.flatnonzero(np.nan_to_num(found) != np.nan_to_num(values)).tolist() == [2 * 6 + 3]
    assert np.isnan(clip_outliers(np.full((3, 4), np.nan))).all()


def test_without_spread_nothing_is_clipped():
    table = additive(4, 5)
    table[1, 1] += 1.0
    np.testing.assert_array_equal(clip_outliers(table), table)
    np.testing.assert_array_equal(clip_outliers(np.full((5, 3), -1.5)), np.full((5, 3), -1.5))
    np.testing.assert_array_equal(clip_outliers([[0.1, 0.2]]), [[0.1, 0.2]])


def test_outliers_of_many_runs_at_once():
    values = np.random.default_rng(10).standard_t(2, (4, 5, 6))
    assert clip_outliers(values) == pytest.approx(np.stack([clip_outliers(run) for run in values]))


# Shares


def test_fieller_limits_are_the_shares_that_t_does_not_reject():
    random = np.random.default_rng(11)
    part = random.normal(-0.1, 0.02, 6)  # logs of speed-ups are negative
    total = part + random.normal(-0.2, 0.03, 6)
    found = fieller_share(part, total, variants=17)
    assert found is not None
    value, low, high = found
    assert value == pytest.approx(part.mean() / total.mean())
    assert low < value < high
    for limit in (low, high):
        _, _, p = t_summary((part - limit * total)[:, None], 17)
        assert p == pytest.approx(0.05)


def test_no_share_of_a_total_that_may_be_nothing():
    part, total = np.array([0.1, 0.2, 0.1, 0.3, 0.2]), np.array([0.3, -0.2, 0.2, -0.1, 0.1])
    assert fieller_share(part, total, 17) is None
    assert fieller_share(part, np.zeros(5), 17) is None
    assert fieller_share(part, np.full(5, 1e-17), 17) is None
    assert fieller_share([0.1, 0.2, np.nan], [0.5, 0.6, 0.7], 17) is None  # two blocks


def test_a_share_without_noise():
    assert fieller_share([0.1] * 5, [-0.4] * 5, 17) == pytest.approx((-0.25, -0.25, -0.25))
    with_hole = fieller_share([0.1, np.nan, 0.1, 0.1], [0.4, 0.4, 0.4, 0.4], 17)
    assert with_hole == pytest.approx((0.25, 0.25, 0.25))


# Quantiles


@pytest.mark.parametrize(("q", "least"), [(0.9, 29), (0.95, 59), (0.99, 299), (0.01, 299)])
def test_quantiles_are_refused_on_few_requests(q: float, least: int):
    assert least_requests(q) == least
    few = np.zeros((1, least - 1))
    with pytest.raises(ValueError, match=f"p{100 * q:g} needs {least} requests a variant, not {least - 1}"):
        quantile_effect(few, np.zeros((1, least)), q, seed=0)
    with pytest.raises(ValueError, match=f"not {least - 1}"):
        quantile_effect(np.zeros((1, least)), few, q, seed=0)


def test_no_requests_and_no_quantile():
    with pytest.raises(ValueError, match="not 0"):
        quantile_effect([], [], 0.9, seed=0)
    with pytest.raises(ValueError, match="not 0"):
        quantile_effect([[]], [[1.0]], 0.9, seed=0)
    with pytest.raises(ValueError, match="between 0 and 1"):
        least_requests(1.0)


def test_a_quantile_that_moved_by_a_constant():
    base = np.random.default_rng(12).normal(-1.0, 0.3, (8, 10))
    found = quantile_effect(base, base - 0.3, 0.9, seed=1)
    assert (found.value, found.se, found.low, found.high) == pytest.approx((-0.3, 0.0, -0.3, -0.3))
    assert (found.p, found.blocks) == (pytest.approx(0.0), 8)


def levelled(base: np.ndarray, arm: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    middle = (np.median(base, 1, keepdims=True) + np.median(arm, 1, keepdims=True)) / 2
    return base - middle, arm - middle


def test_a_quantile_is_pooled_and_repeats_with_its_seed():
    random = np.random.default_rng(13)
    base, arm = random.standard_normal((5, 12)), random.standard_normal((5, 12)) + 0.5
    found = quantile_effect(base, arm, 0.9, seed=1)
    below, above = (np.quantile(side, 0.9) for side in levelled(base, arm))
    assert found.value == pytest.approx(above - below)
    assert found == quantile_effect(base, arm, 0.9, seed=1)
    assert found.se != quantile_effect(base, arm, 0.9, seed=2).se
    assert found.low is not None and found.high is not None and found.low < found.value < found.high


def test_a_slow_block_does_not_make_the_quantile():
    random = np.random.default_rng(16)
    base, arm = random.standard_normal((5, 12)), random.standard_normal((5, 12))
    slow = np.array([0.0, 0.0, 3.0, 0.0, -1.0])[:, None]
    found, other = (quantile_effect(base + shift, arm + shift, 0.9, seed=1) for shift in (0.0, slow))
    assert (other.value, other.se) == pytest.approx((found.value, found.se))


def test_blocks_of_unequal_length_and_requests_without_a_value():
    random = np.random.default_rng(14)
    base, arm = random.standard_normal((5, 12)), random.standard_normal((5, 12))
    whole = quantile_effect(base[:4], arm[:4], 0.9, seed=1)
    holes = np.hstack([base, np.full((5, 1), np.nan)])
    assert quantile_effect(holes[:4], arm[:4], 0.9, seed=1) == whole
    assert quantile_effect([*base[:4], []], arm, 0.9, seed=1) == whole  # a block without a partner
    short = quantile_effect([*base[:4], base[4][:5]], arm, 0.9, seed=1)
    below, above = levelled(base[4:, :5], arm[4:])
    pooled = [
        np.concatenate([side.ravel(), last[0]])
        for side, last in zip(levelled(base[:4], arm[:4]), (below, above), strict=True)
    ]
    assert short.value == pytest.approx(np.quantile(pooled[1], 0.9) - np.quantile(pooled[0], 0.9))


def test_quantiles_of_few_blocks():
    values = np.random.default_rng(15).standard_normal((2, 20))
    one, two = (
        quantile_effect(values[:1].repeat(2, 1), values[1:].repeat(2, 1), 0.9, 0),
        quantile_effect(values, values + 1, 0.9, 0),
    )
    assert (one.se, one.p, one.low, one.blocks) == (None, None, None, 1)
    assert (two.low, two.high, two.blocks, two.value) == (None, None, 2, pytest.approx(1.0))
