"""Paired ratios: known answers, coverage, no verdict below five blocks."""

import math

import numpy as np
import pytest

from omnilab.experiment.statistics import Estimate, difference, interval, ratio, verdict


def test_ratio_is_geometric_and_paired():
    found = ratio({0: 2.0, 1: 8.0}, {0: [1.0], 1: [4.0]})
    assert found.value == pytest.approx(2.0)
    assert found.low == pytest.approx(2.0)  # both blocks say 2: no spread
    assert ratio({0: 6.0}, {0: [2.0, 8.0]}).value == pytest.approx(1.5)  # over the geometric mean of both


def test_interval_is_students():
    found = interval([0.0, 1.0, 2.0])
    assert found.high - found.value == pytest.approx(4.302653 * 1 / math.sqrt(3), rel=1e-5)
    assert interval([3.0]) == Estimate(3.0, None, None, 1)
    assert interval([]) is None


def test_blocks_without_a_partner_or_value_are_left_out():
    found = ratio({0: 2.0, 1: None, 2: 0.0, 3: 5.0}, {0: [1.0], 1: [1.0], 2: [1.0]})
    assert (found.value, found.blocks) == (2.0, 1)
    assert ratio({0: 2.0}, {0: [None, 4.0]}).value == 0.5
    assert ratio({0: None}, {0: [1.0]}) is None


def test_difference_in_ms():
    found = difference({0: 5.0, 1: 7.0}, {0: [35.0, 37.0], 1: [38.0]})
    assert found.value == pytest.approx(-31.0)


@pytest.mark.parametrize(
    ("estimate", "said"),
    [
        (Estimate(0.5, 0.4, 0.6, 5), "faster"),
        (Estimate(1.5, 1.4, 1.6, 5), "slower"),
        (Estimate(0.9, 0.7, 1.1, 5), "no difference shown"),
        (Estimate(0.5, 0.4, 0.6, 4), "none below 5 blocks"),
        (Estimate(0.5, None, None, 1), "none below 5 blocks"),
        (None, "not measured"),
    ],
)
def test_verdicts(estimate, said):
    assert verdict(estimate) == said


def test_the_interval_covers_the_truth_as_often_as_it_says():
    random = np.random.default_rng(7)
    hits = 0
    for _ in range(2000):
        base = {b: [float(np.exp(random.normal(b, 0.05)))] for b in range(5)}  # blocks differ wildly: paired out
        treated = {b: base[b][0] * 1.1 * float(np.exp(random.normal(0, 0.03))) for b in range(5)}
        found = ratio(treated, base)
        hits += found.low <= 1.1 <= found.high
    assert 0.935 <= hits / 2000 <= 0.965
