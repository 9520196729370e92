"""Statistics of launches, checked by simulation."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from nccltune.study.stats import freedom, relative_spread, robust_spread, spread


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


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8, 12])
def test_the_degrees_of_freedom_tell_how_much_an_estimate_varies(n: int) -> None:
    draw = random.Random(n)
    spreads = [spread([draw.gauss(0, 1) for _ in range(n)]) for _ in range(8000)]
    # The variation of an unbiased estimate of a standard deviation with so many degrees of freedom.
    free = freedom(n)
    unbiased = math.sqrt(2 / free) * math.exp(math.lgamma((free + 1) / 2) - math.lgamma(free / 2))
    assert statistics.stdev(spreads) == pytest.approx(math.sqrt(1 / unbiased**2 - 1), rel=0.15)


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
