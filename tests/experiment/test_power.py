"""Blocks and what they can show: the tables of the protocol, the library's noncentral t, and the edges."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from omnilab.experiment.statistics.estimate import slope_factor
from omnilab.experiment.statistics.power import (
    LOOKS,
    blocks_after_five,
    blocks_for,
    decided,
    equivalence_blocks,
    mde,
    power,
)

MANY = 10**9  # variants: the slope then costs nothing
HOLM = 0.0125  # 5 % over four toggles


@pytest.mark.parametrize(
    ("blocks", "sds"), [(3, 6.55), (4, 3.45), (5, 2.48), (6, 2.01), (8, 1.53), (10, 1.28), (20, 0.81)]
)
def test_least_detectable_effects_of_the_protocol(blocks: int, sds: float):
    assert mde(1.0, blocks, HOLM, variants=MANY) == pytest.approx(sds, abs=0.0051)
    assert mde(0.02, blocks, HOLM, variants=6) == pytest.approx(
        0.02 * slope_factor(6, blocks) * mde(1.0, blocks, HOLM, variants=MANY)
    )


@pytest.mark.parametrize(("sd_df", "factor"), [(2, 1.64), (4, 1.27), (8, 1.12), (15, 1.06), (30, 1.03)])
def test_an_estimated_sd_costs_what_the_protocol_says(sd_df: int, factor: float):
    cost = mde(1.0, 6, HOLM, sd_df, variants=17) / mde(1.0, 6, HOLM, variants=17)
    assert cost == pytest.approx(factor, abs=0.006)


@pytest.mark.parametrize(("sd", "plain", "strict"), [(0.01, 4, 6), (0.0125, 6, 8), (0.02, 11, 16), (0.03, 22, 32)])
def test_blocks_for_equivalence_of_the_protocol(sd: float, plain: int, strict: int):
    assert equivalence_blocks(sd, 0.02, variants=MANY) == plain
    assert equivalence_blocks(sd, 0.02, 0.05 / 4, variants=MANY) == strict
    assert equivalence_blocks(sd, 0.02, variants=3) >= plain


@pytest.mark.parametrize("blocks", [3, 5, 8, 20, 60])
@pytest.mark.parametrize("centre", [0.5, 3.0, 10.0])
@pytest.mark.parametrize("alpha", [0.05, HOLM, 0.00041])
def test_power_is_that_of_the_noncentral_t(blocks: int, centre: float, alpha: float):
    edge = stats.t.ppf(1 - alpha / 2, blocks - 1)
    below = stats.nct.cdf(-edge, blocks - 1, centre) if centre < 3 else 0.0
    expected = stats.nct.sf(edge, blocks - 1, centre) + below
    assert power(centre / math.sqrt(blocks), 1.0, blocks, alpha, variants=MANY) == pytest.approx(expected, abs=2e-5)


def test_power_without_effect_or_spread():
    assert power(0.0, 0.01, 5, 0.05, variants=6) == pytest.approx(0.05, abs=1e-5)
    assert power(0.01, 0.0, 5, 0.05, variants=6) == 1.0
    assert power(0.0, 0.0, 5, 0.05, variants=6) == 0.05
    assert power(-0.03, 0.01, 5, 0.05, variants=6) == power(0.03, 0.01, 5, 0.05, variants=6)
    assert mde(0.0, 5, 0.05, variants=6) == 0.0


@pytest.mark.parametrize("sd_df", [math.inf, 4, 16])
def test_the_least_detectable_effect_is_found_in_four_of_five_runs(sd_df: float):
    effect = mde(0.013, 5, HOLM, sd_df, variants=17)
    assert power(effect, 0.013, 5, HOLM, sd_df, variants=17) == pytest.approx(0.80, abs=1e-4)


def test_extremes_are_numbers():
    assert mde(1.0, 3, 0.00041, 2, variants=3) > mde(1.0, 3, 0.00041, variants=3) > 10
    assert 0 < mde(1.0, 200, 0.05, variants=3) < 0.25
    assert power(1e6, 1.0, 3, 0.00041, 2, variants=3) == pytest.approx(1.0)


def test_blocks_for_an_effect_is_the_least_number():
    found = blocks_for(math.log(1.03), 0.0141, HOLM, 4, variants=6)
    assert mde(0.0141, found, HOLM, 4, variants=6) <= math.log(1.03) < mde(0.0141, found - 1, HOLM, 4, variants=6)
    assert blocks_for(-math.log(1.03), 0.0141, HOLM, 4, variants=6) == found  # a speed-up
    assert blocks_for(1.0, 0.001, HOLM, variants=6) == 3
    with pytest.raises(ValueError, match=r"an effect of 1.0% needs more than 50 blocks"):
        blocks_for(math.log(1.01), 0.05, HOLM, most=50, variants=6)


def test_blocks_for_equivalence_have_an_end():
    assert equivalence_blocks(0.0, 0.02, variants=6) == 3
    with pytest.raises(ValueError, match=r"a margin of 2.0% needs more than 30 blocks"):
        equivalence_blocks(0.05, 0.02, most=30, variants=6)


def test_equivalence_blocks_by_drawing():
    """A true 1, sd 2 % over 11 blocks: equivalent in about 80 % of draws, fewer with a block less."""
    random, margin = np.random.default_rng(1), math.log(1.02)
    for blocks, enough in ((11, True), (10, False)):
        draws = random.normal(0.0, 0.02, (20_000, blocks))
        reach = stats.t.ppf(0.95, blocks - 1) * draws.std(1, ddof=1) / math.sqrt(blocks)
        assert (np.mean(np.abs(draws.mean(1)) + reach < margin) >= 0.795) == enough


def test_a_run_is_sized_after_five_blocks_within_its_bounds():
    effect = math.log(1.02)
    sizes = [blocks_after_five(sd**2, effect, HOLM, 17) for sd in (0.0, 0.005, 0.01, 0.0125, 0.02, 0.5)]
    assert sizes == sorted(sizes)
    assert (sizes[0], sizes[-1]) == (5, 30)
    assert blocks_after_five(0.0125**2, effect, HOLM, 17) == blocks_for(effect, 0.0125, HOLM, variants=17)
    assert blocks_after_five(0.5**2, effect, HOLM, 17, cap=12) == 12
    assert blocks_after_five(0.5**2, effect, HOLM, 17, cap=5) == 5


@pytest.mark.parametrize("left", [1, 2, 3, 4])
def test_the_looks_spend_their_share_of_five_per_cent_and_no_more(left: int):
    edges = np.array([stats.norm.isf(LOOKS[blocks][left] / 2) for blocks in (5, 7, 10)])
    share = np.array([0.5, 0.7, 1.0])
    correlation = np.sqrt(np.minimum.outer(share, share) / np.maximum.outer(share, share))
    inside = stats.multivariate_normal([0, 0, 0], correlation).cdf(edges, lower_limit=-edges)
    assert 0.92 <= (1 - inside) / (0.05 / left) <= 1.0  # of large samples; in small ones t spends a little more
    first = 2 * stats.norm.sf(stats.norm.isf(0.05 / left / 2) / math.sqrt(0.5))  # O'Brien-Fleming at half the blocks
    assert LOOKS[5][left] == pytest.approx(first, rel=0.02)


def test_a_look_decides_step_by_step():
    none = [False] * 4
    assert decided([0.0004, 0.0007, 0.0015, 0.0055], 5, none).tolist() == [True] * 4
    assert decided([0.0005, 0.0006, 0.0006, 0.0006], 5, none).tolist() == none  # the first step fails
    assert decided([0.5, 0.0004, 0.0008, 0.5], 5, none).tolist() == [False, True, False, False]
    assert decided([0.5, 0.5, 0.003, 0.5], 7, [False, True, False, False]).tolist() == [False, True, True, False]
    assert decided([0.9, 0.9], 10, [True, True]).tolist() == [True, True]
    assert decided([np.nan, 0.0001], 5, [False, False]).tolist() == [False, True]
    with pytest.raises(KeyError):
        decided([0.5], 6, [False])
