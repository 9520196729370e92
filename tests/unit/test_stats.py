"""Statistics of launches, checked by simulation."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from nccltune.study.stats import mean_log_ratio_bounds, relative_spread, robust_spread, spread


@pytest.mark.parametrize("n", [2, 3, 4, 5, 7, 9, 12, 20])
def test_spread_of_few_normal_values_is_unbiased(n: int) -> None:
    draw = random.Random(n)
    spreads = [robust_spread([draw.gauss(100, 3) for _ in range(n)]) for _ in range(8000)]
    assert statistics.fmean(spreads) == pytest.approx(3, rel=0.05)


def test_one_wild_launch_does_not_carry_the_spread_away() -> None:
    calm = [100, 101, 99, 100.5, 99.5, 100.2, 99.8]
    assert robust_spread([*calm, 1000]) < 3 * robust_spread(calm)
    assert statistics.stdev([*calm, 1000]) > 100 * robust_spread(calm)


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8])
def test_spread_of_few_values_is_unbiased_for_normal_noise(n: int) -> None:
    draw = random.Random(n)
    spreads = [spread([draw.gauss(100, 3) for _ in range(n)]) for _ in range(8000)]
    assert statistics.fmean(spreads) == pytest.approx(3, rel=0.05)


def test_two_equal_launches_of_three_do_not_hide_the_third() -> None:
    assert relative_spread([310.7, 337.9, 337.9]) > 0.04


def test_relative_spread_has_no_unit() -> None:
    values = [10.0, 10.1, 9.9]
    assert relative_spread(values) == pytest.approx(relative_spread([1000 * value for value in values]))


@pytest.mark.parametrize("values", [[], [1.0]])
def test_spread_of_too_few_values_is_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match="at least two"):
        robust_spread(values)


def test_relative_spread_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="above zero"):
        relative_spread([0.0, 0.0])


@pytest.mark.parametrize("n", [3, 5, 8])
def test_lower_bound_lies_below_the_truth_as_often_as_it_says(n: int) -> None:
    draw = random.Random(7)
    below = above = 0
    for _ in range(4000):
        low, high = mean_log_ratio_bounds([1.05 * math.exp(draw.gauss(0, 0.02)) for _ in range(n)], 0.95)
        below += low <= 1.05
        above += high >= 1.05
    assert below / 4000 == pytest.approx(0.95, abs=0.012)
    assert above / 4000 == pytest.approx(0.95, abs=0.012)


def test_bounds_of_equal_ratios_are_that_ratio() -> None:
    assert mean_log_ratio_bounds([1.1, 1.1, 1.1]) == pytest.approx((1.1, 1.1))


def test_bounds_turn_round_with_the_ratios() -> None:
    ratios = [1.02, 1.05, 0.99, 1.04]
    low, high = mean_log_ratio_bounds(ratios)
    turned_low, turned_high = mean_log_ratio_bounds([1 / ratio for ratio in ratios])
    assert (turned_low, turned_high) == pytest.approx((1 / high, 1 / low))


@pytest.mark.parametrize(
    ("ratios", "confidence"), [([1.0], 0.95), ([1.0, 0.0], 0.95), ([1.0, -1.0], 0.95), ([1.0, 2.0], 1.0)]
)
def test_what_has_no_bound_is_refused(ratios: list[float], confidence: float) -> None:
    with pytest.raises(ValueError):
        mean_log_ratio_bounds(ratios, confidence)
