"""How sure the fresh rounds make one of a gain. Pure arithmetic on the logarithms of ratios; the launch is the unit.

A round gives one ratio, ``default_us / candidate_us``. Rounds alternate between two mirrored orders, so the logarithm
of the ratio is modelled as ``gain ± order effect + noise``: the gain is the mean of the two orders' means, the spread
is taken within each order, and Student's distribution with two degrees of freedom fewer than rounds gives the bounds.
What drifts steadily, and what the place in a round does to a launch, is then neither gain nor noise.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

LEAST_ROUNDS = 3
"""Fewer leave no degree of freedom for the noise."""


@dataclass(frozen=True)
class Estimate:
    """A gain as logarithm, and how well it is known.

    Attributes:
        mean: Estimate of the logarithm of the ratio.
        spread: Standard deviation of one round.
        error: Standard error of the mean.
        freedom: Degrees of freedom of the spread.
        rounds: Rounds behind it.
    """

    mean: float
    spread: float
    error: float
    freedom: int
    rounds: int

    @property
    def gain(self) -> float:
        """As a share: 0.01 is 1 % faster than the default."""
        return math.expm1(self.mean)

    def lower(self, error_rate: float) -> float:
        """Bound the logarithm from below; the true one is lower with probability ``error_rate``."""
        return self.mean - student(self.freedom, error_rate) * self.error

    def upper(self, error_rate: float) -> float:
        """Bound the logarithm from above; the true one is higher with probability ``error_rate``."""
        return self.mean + student(self.freedom, error_rate) * self.error

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Return the two-sided interval of the gain, as shares."""
        each = (1 - confidence) / 2
        return math.expm1(self.lower(each)), math.expm1(self.upper(each))


def estimate(logs: Mapping[int, float]) -> Estimate | None:
    """Estimate a gain from its rounds.

    Args:
        logs: Number of the round to the logarithm of its ratio; odd and even rounds ran in mirrored orders.

    Returns:
        ``None`` where there are fewer than ``LEAST_ROUNDS``, or one order only.
    """
    orders = [[value for number, value in logs.items() if number % 2 == parity] for parity in (1, 0)]
    n, counts = len(logs), [len(order) for order in orders]
    if n < LEAST_ROUNDS or 0 in counts:
        return None
    means = [statistics.fmean(order) for order in orders]
    squares = sum((value - mean) ** 2 for order, mean in zip(orders, means, strict=True) for value in order)
    spread = math.sqrt(squares / (n - 2))
    return Estimate(mean=sum(means) / 2, spread=spread, error=spread * _per_spread(*counts), freedom=n - 2, rounds=n)


def half_width(spread: float, rounds: int, error_rate: float) -> float:
    """Return how far a one-sided bound lies from the estimate after so many rounds of this spread."""
    return student(rounds - 2, error_rate) * spread * _per_spread((rounds + 1) // 2, rounds // 2)


def undecided(now: Estimate, rounds: int, threshold: float, ship: float, keep: float) -> float:
    """Predict the probability that the bounds still hold the threshold between them after the last round.

    The mean of the rounds to come is predicted from those that were measured; Student, since the spread is estimated.

    Args:
        now: What is known.
        rounds: At the last look.
        threshold: Logarithm of the smallest gain that is worth a change.
        ship: Error rate of the lower bound there.
        keep: Error rate of the upper bound there.
    """
    still = now.spread * math.sqrt(max(0.0, 1 / now.rounds - 1 / rounds))
    above, below = half_width(now.spread, rounds, ship), half_width(now.spread, rounds, keep)
    if still == 0.0:
        return float(threshold - below <= now.mean <= threshold + above)
    return _below((threshold + above - now.mean) / still, now.freedom) - _below(
        (threshold - below - now.mean) / still, now.freedom
    )


def detectable(spread: float, rounds: int, error_rate: float, power: float) -> float:
    """Return how far a gain must lie from the threshold to be shown after so many rounds, with this probability.

    Noncentral Student: the lower bound of an estimate lies above the threshold when the estimate, in standard errors,
    lies above the quantile.

    Args:
        spread: True standard deviation of one round.
        rounds: At the only look.
        error_rate: Of the one-sided bound there.
        power: Probability of showing it.

    Returns:
        As a logarithm.
    """
    from scipy.special import nctdtrinc

    quantile = student(rounds - 2, error_rate)
    error = half_width(spread, rounds, error_rate) / quantile
    return error * float(nctdtrinc(rounds - 2, 1 - power, quantile))


def spread_range(spread: float, freedom: float, confidence: float) -> tuple[float, float]:
    """Return the two-sided confidence interval of a standard deviation from an unbiased estimate of it.

    Args:
        spread: The estimate.
        freedom: Its degrees of freedom.
        confidence: For instance 0.8.
    """
    from scipy.special import chdtri

    # What makes the root of an unbiased variance unbiased: its expectation is this share of the standard deviation.
    bias = math.sqrt(2 / freedom) * math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2))
    low, high = (float(chdtri(freedom, beyond)) for beyond in ((1 - confidence) / 2, (1 + confidence) / 2))
    return spread * bias * math.sqrt(freedom / low), spread * bias * math.sqrt(freedom / high)


@functools.lru_cache(maxsize=1024)
def student(freedom: int, error_rate: float) -> float:
    """Return the quantile of Student's distribution that is exceeded with probability ``error_rate``."""
    from scipy.special import stdtrit

    return -float(stdtrit(freedom, error_rate))


def _below(value: float, freedom: int) -> float:
    from scipy.special import stdtr

    return float(stdtr(freedom, value))


def _per_spread(first: int, second: int) -> float:
    """Standard error of the mean of two means, for a spread of 1."""
    return math.sqrt(1 / first + 1 / second) / 2
