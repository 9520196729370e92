"""Statistics of launches. Pure; the launch is the unit, never the step."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

_MAD_TO_SIGMA = 1.482602218505602
"""1 / Φ⁻¹(3/4): makes the median absolute deviation an estimate of σ of a normal distribution."""

_SMALL_N = {2: 1.196, 3: 1.495, 4: 1.363, 5: 1.206, 6: 1.200, 7: 1.140, 8: 1.129, 9: 1.107}
"""Factors that make the scaled deviation of few values unbiased: Croux and Rousseeuw, "Time-efficient algorithms for
two highly robust estimators of scale" (COMPSTAT 1992); checked by simulation in the tests."""


_RANGE = {2: 1.128, 3: 1.693, 4: 2.059}

_MAD_EFFICIENCY = 0.37
"""Of the median absolute deviation of normal values, against their standard deviation (Rousseeuw and Croux 1993)."""


def robust_spread(values: Sequence[float]) -> float:
    """Estimate the standard deviation from the median absolute deviation, unbiased for few normal values.

    Args:
        values: At least two.

    Returns:
        The spread, in the unit of the values.

    Raises:
        ValueError: Fewer than two values.
    """
    n = len(values)
    if n < 2:
        raise ValueError("a spread needs at least two values")
    middle = statistics.median(values)
    deviation = statistics.median(abs(value - middle) for value in values)
    return _SMALL_N.get(n, n / (n - 0.8)) * _MAD_TO_SIGMA * deviation


def spread(values: Sequence[float]) -> float:
    """Estimate how much launches differ, from few of them, without hiding one that stands apart.

    Below five values the median absolute deviation is no more than the distance of two of them: two that happen to be
    equal would make the noise of any machine vanish. There the range is taken, over its expectation for a normal
    distribution (the factor d2 of control charts); from five values on, the robust spread.

    Args:
        values: At least two.

    Returns:
        An estimate of the standard deviation, in the unit of the values.

    Raises:
        ValueError: Fewer than two values.
    """
    if len(values) in _RANGE:
        return (max(values) - min(values)) / _RANGE[len(values)]
    return robust_spread(values)


def freedom(n: int) -> float:
    """Return how well ``spread`` knows the spread: the degrees of freedom of a standard deviation known as well.

    Args:
        n: Values behind it, at least two. The range of up to four is nearly as good as their standard deviation.
    """
    return n - 1.0 if n in _RANGE else _MAD_EFFICIENCY * (n - 1)


def relative_spread(values: Sequence[float]) -> float:
    """Return the spread as a share of the median (0.01 is 1 %); see ``spread``.

    Raises:
        ValueError: Fewer than two values, or a median that is not above zero.
    """
    middle = statistics.median(values)
    if not middle > 0:
        raise ValueError("a relative spread needs a median above zero")
    return spread(values) / middle
