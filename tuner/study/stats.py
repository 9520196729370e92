"""Statistics of launches. Pure; the launch is the unit, never the step."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

_MAD_TO_SIGMA = 1.482602218505602
"""1 / Φ⁻¹(3/4): makes the median absolute deviation an estimate of σ of a normal distribution."""

_SMALL_N = {2: 1.196, 3: 1.495, 4: 1.363, 5: 1.206, 6: 1.200, 7: 1.140, 8: 1.129, 9: 1.107}
"""Factors that make the scaled deviation of few values unbiased: Croux and Rousseeuw, "Time-efficient algorithms for
two highly robust estimators of scale" (COMPSTAT 1992); checked by simulation in the tests."""


_RANGE = {2: 1.128, 3: 1.693, 4: 2.059}


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


def relative_spread(values: Sequence[float]) -> float:
    """Return the spread as a share of the median (0.01 is 1 %); see ``spread``.

    Raises:
        ValueError: Fewer than two values, or a median that is not above zero.
    """
    middle = statistics.median(values)
    if not middle > 0:
        raise ValueError("a relative spread needs a median above zero")
    return spread(values) / middle


def mean_log_ratio_bounds(ratios: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Bound the geometric mean of ratios from below and above, each one-sided.

    Student's bound of the mean of the logarithms: with probability ``confidence`` the true geometric mean lies above
    the first, and with the same probability it lies below the second.

    Args:
        ratios: At least two, all above zero; for instance ``default_us / candidate_us`` of each mirrored round.
        confidence: Of each bound by itself, between 0.5 and 1.

    Returns:
        Lower and upper bound, as ratios.

    Raises:
        ValueError: Fewer than two ratios, one that is not above zero, or a confidence out of range.
    """
    if len(ratios) < 2:
        raise ValueError("a bound needs at least two ratios")
    if not all(ratio > 0 and math.isfinite(ratio) for ratio in ratios):
        raise ValueError("ratios must be finite and above zero")
    if not 0.5 < confidence < 1:
        raise ValueError("the confidence must lie between 0.5 and 1")
    from scipy.special import stdtrit

    logs = [math.log(ratio) for ratio in ratios]
    mean = statistics.fmean(logs)
    half = float(stdtrit(len(logs) - 1, confidence)) * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(mean - half), math.exp(mean + half)
