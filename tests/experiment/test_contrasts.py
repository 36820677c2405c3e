"""Weights over cells: by hand for two toggles, against every order for more."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from omnilab.experiment.statistics.contrasts import (
    cells,
    factorial_weights,
    half_fractions,
    interaction_weights,
    noise_range,
    order_range,
    per_block,
    shapley_weights,
)


def by_every_order(log_cells: np.ndarray, k: int) -> np.ndarray:
    """Return each toggle's marginal effect in each order, [k!, k], counted one by one."""
    place = {tuple(cell): index for index, cell in enumerate(cells(k).tolist())}
    found = np.zeros((math.factorial(k), k))
    for row, order in enumerate(itertools.permutations(range(k))):
        on = [0] * k
        for toggle in order:
            before = log_cells[place[tuple(on)]]
            on[toggle] = 1
            found[row, toggle] = log_cells[place[tuple(on)]] - before
    return found


def test_cells_from_all_off_to_all_on():
    assert cells(2).tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert cells(4).shape == (16, 4)
    assert cells(0).shape == (1, 0)


def test_factorial_weights_of_two_toggles():
    subsets, weights = factorial_weights(cells(2))
    assert subsets == [(0,), (1,), (0, 1)]
    assert weights.T.tolist() == [[-0.5, -0.5, 0.5, 0.5], [-0.5, 0.5, -0.5, 0.5], [0.5, -0.5, -0.5, 0.5]]


def test_factorial_weights_are_orthogonal_and_equally_precise():
    subsets, weights = factorial_weights(cells(4))
    assert len(subsets) == 15
    assert weights.T @ weights == pytest.approx(np.eye(15) / 4)  # a main effect has half the sd of a trial
    assert weights.sum(0) == pytest.approx(np.zeros(15))


def test_planted_effects_come_back():
    on = cells(4)
    values = on @ np.array([-0.3, 0.2, 0.0, 0.1]) + 0.08 * on[:, 0] * on[:, 2]
    subsets, weights = factorial_weights(on)
    found = dict(zip(subsets, values @ weights, strict=True))
    assert [found[(toggle,)] for toggle in range(4)] == pytest.approx([-0.3 + 0.04, 0.2, 0.04, 0.1])
    pairs, weights = interaction_weights(on)
    assert len(pairs) == 6
    together = dict(zip(pairs, values @ weights, strict=True))
    assert together.pop((0, 2)) == pytest.approx(0.08)
    assert list(together.values()) == pytest.approx([0.0] * 5)


def test_an_interaction_is_together_over_expected():
    _, weights = interaction_weights(cells(2))
    none, second, first, both = np.log([10.0, 8.0, 5.0, 4.5])
    assert np.array([none, second, first, both]) @ weights == pytest.approx([math.log(4.5 / 4.0)])


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_shapley_values_are_the_mean_over_all_orders(k: int):
    log_cells = np.random.default_rng(k).standard_normal(2**k)
    values = log_cells @ shapley_weights(cells(k))
    assert values == pytest.approx(by_every_order(log_cells, k).mean(0))
    assert values.sum() == pytest.approx(log_cells[-1] - log_cells[0], abs=1e-9)


def test_shapley_weights_of_shuffled_cells():
    order = np.random.default_rng(0).permutation(16)
    assert shapley_weights(cells(4)[order]) == pytest.approx(shapley_weights(cells(4))[order])


def test_shapley_variance_is_a_third_more_than_a_main_effect():
    variances = (shapley_weights(cells(4)) ** 2).sum(0)
    assert variances == pytest.approx([0.577**2] * 4, rel=2e-3)


@pytest.mark.parametrize("short", [cells(3)[:-1], np.vstack([cells(3)[:-1], cells(3)[:1]])])
def test_shapley_values_need_every_cell(short: np.ndarray):
    with pytest.raises(ValueError, match="each of the 8 cells once"):
        shapley_weights(short)


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5])
def test_the_range_over_orders_needs_no_orders(k: int):
    log_cells = np.random.default_rng(k).standard_normal(2**k)
    every = by_every_order(log_cells, k)
    least, greatest = order_range(log_cells)
    assert least == pytest.approx(every.min(0))
    assert greatest == pytest.approx(every.max(0))


def test_the_range_of_many_runs_and_of_six_toggles():
    log_cells = np.random.default_rng(0).standard_normal((3, 5, 64))
    least, greatest = order_range(log_cells)
    assert least.shape == greatest.shape == (3, 5, 6)
    assert least[2, 4] == pytest.approx(order_range(log_cells[2, 4])[0])


@pytest.mark.parametrize("count", [1, 3, 12, 128])
def test_the_range_wants_all_cells_of_few_toggles(count: int):
    with pytest.raises(ValueError, match=f"{count} cells"):
        order_range(np.zeros(count))


def test_the_range_that_noise_gives():
    assert noise_range(1.0, 1) == pytest.approx(4.03, abs=0.005)
    assert noise_range(0.025, 5) == pytest.approx(0.045, abs=5e-4)
    assert noise_range(0.02, 8, toggles=1) == 0.0  # one order, no range
    assert noise_range(1.0, 1, toggles=2) == pytest.approx(math.sqrt(2) * 2 / math.sqrt(math.pi))


@pytest.mark.parametrize("k", [2, 4])
def test_the_range_that_noise_gives_by_drawing(k: int):
    least, greatest = order_range(np.random.default_rng(1).standard_normal((4000, 2**k)))
    assert (greatest - least).mean() == pytest.approx(noise_range(1.0, 1, k), rel=0.02)


def test_halves_of_the_cells():
    plus, minus = half_fractions(4)
    assert plus.shape == minus.shape == (8, 4)
    assert {tuple(cell) for cell in [*plus.tolist(), *minus.tolist()]} == set(map(tuple, cells(4).tolist()))
    assert [0, 0, 0, 0] in plus.tolist()
    assert [0, 0, 0, 0, 0] in half_fractions(5)[1].tolist()
    assert ((2 * plus - 1).prod(1) == 1).all() and ((2 * minus - 1).prod(1) == -1).all()
    with pytest.raises(ValueError, match="at least 4"):
        half_fractions(3)


@pytest.mark.parametrize("half", [0, 1])
def test_a_half_still_tells_toggles_apart(half: int):
    on = half_fractions(4)[half]
    subsets, weights = factorial_weights(on)
    assert (0, 1, 2, 3) not in subsets and len(subsets) == 14
    values = on @ np.array([-0.3, 0.2, 0.0, 0.1])
    assert (values @ weights)[:4] == pytest.approx([-0.3, 0.2, 0.0, 0.1])
    columns = dict(zip(subsets, weights.T, strict=True))
    assert np.abs(columns[0, 1] @ columns[2, 3]) == pytest.approx(0.5)  # one and the same
    assert (weights[:, :4] ** 2).sum(0) == pytest.approx([0.5] * 4)


def test_contrasts_of_each_block_where_values_are_missing():
    values = np.array([[1.0, 2.0, 4.0], [1.0, np.nan, 5.0], [np.nan, 2.0, 3.0]])
    weights = np.array([[-1.0, -1.0], [1.0, 0.0], [0.0, 1.0]])
    found = per_block(values, weights)
    np.testing.assert_array_equal(found, [[1.0, 3.0], [np.nan, 4.0], [np.nan, np.nan]])
    np.testing.assert_array_equal(per_block(values[:1], weights), [[1.0, 3.0]])
    assert per_block(np.zeros((7, 5, 3)), weights).shape == (7, 5, 2)
