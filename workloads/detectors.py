"""What a series of step times says of itself: pure rules, each with the size from which it speaks.

A launch is judged by its median, so a rule speaks where the median is not what it seems (a trend, a warm-up that
was not over, two states) or where a reader should know what was in the window (a pause, a slow rank). Each was
tuned on seeded noise and on recorded launches: over clean series at most one in a hundred raises any alarm
(``tests/simulation/test_planted.py``). Steps of neighbouring times resemble each other; errors are widened for that.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from .stopping import deviation, median_error

# Fewer steps say too little about a trend or about states; a rule on them would be right by luck.
FEWEST_FOR_TREND = 20
FEWEST_FOR_STATES = 40

# Standard errors from which a trend is no chance. Four rules look at a launch, and one alarm in a hundred clean
# launches is the most that they may raise together.
DRIFT_ERRORS = 3.7
# From the first third of the window to the last, as a share of the step: a third of the smallest gain that the tool
# reports by default. What is smaller cannot turn a verdict.
DRIFT_SHARE = 0.003

SETTLING_ERRORS = 5.5
# The first steps against the last half; below one per cent warming up counts as over (``stopping.FLAT_SHARE``).
SETTLING_SHARE = 0.01
# Of the window, the share that is held against its last half.
HEAD_SHARE = 0.1
HEAD_LEAST = 4

# A step of twice the median is a pause or a late message, in noise of 5 % a chance of less than one in 1e5.
PAUSE_FACTOR = 2.0
# From this many in a launch they are not single events any more.
MANY_PAUSES = 3

# The empty stretch between two states, in standard deviations within them, and their distance as a share of the step.
STATES_GAP = 2.2
STATES_SHARE = 0.03
# Each state has at least this share of the steps; fewer are late steps.
STATES_LEAST = 0.1

# A rank is slow from this share of the others' step on; below it, it hardly keeps them waiting.
STRAGGLER_SHARE = 0.05
STRAGGLER_ERRORS = 5.0

_LAG_MOST = 0.9  # neighbours that resemble each other more leave no trend to be told from them


@dataclass(frozen=True)
class Change:
    """Two stretches of a window that differ.

    Attributes:
        before_us: Median of the first stretch.
        after_us: Median of the last one.
        steps: Length of the first stretch.
    """

    before_us: float
    after_us: float
    steps: int

    @property
    def share(self) -> float:
        """By how much the step became slower; negative where it became faster."""
        return self.after_us / self.before_us - 1


@dataclass(frozen=True)
class States:
    """Steps that fall into two groups.

    Attributes:
        fast_us: Median of the faster group.
        slow_us: Median of the slower one.
        slow_share: Share of the steps that are slow.
    """

    fast_us: float
    slow_us: float
    slow_share: float


@dataclass(frozen=True)
class Straggler:
    """A rank whose own steps take longer than the others'.

    Attributes:
        rank: Which.
        own_us: Its median step.
        others_us: The median of the other ranks' medians.
    """

    rank: int
    own_us: float
    others_us: float


def drift(times_us: Sequence[float]) -> Change | None:
    """Find a trend over the window.

    The correlation of the steps' ranks with their order is held against chance; one late step moves it little. What
    neighbouring steps have in common widens the error. A drift of three times the noise over the window is found in
    95 of 100 launches of 50 steps, and in half of those of 20.

    Args:
        times_us: All timed steps, in order.

    Returns:
        First and last third; ``None`` where there is no trend, or fewer than ``FEWEST_FOR_TREND`` steps.
    """
    n = len(times_us)
    if n < FEWEST_FOR_TREND:
        return None
    correlation, neighbours = _trend(times_us)
    error = math.sqrt((1 - correlation**2) / (n - 2) * (1 + neighbours) / (1 - neighbours))
    third = n // 3
    found = Change(statistics.median(times_us[:third]), statistics.median(times_us[-third:]), third)
    certain = abs(correlation) > DRIFT_ERRORS * error
    return found if certain and abs(found.share) > DRIFT_SHARE and found.share * correlation > 0 else None


def settling(times_us: Sequence[float]) -> Change | None:
    """Find a warm-up that was not over: the first steps are slower than the last half.

    Args:
        times_us: All timed steps, in order.

    Returns:
        First steps and last half; ``None`` where they do not differ, or with fewer than ``FEWEST_FOR_TREND`` steps.
    """
    n = len(times_us)
    if n < FEWEST_FOR_TREND:
        return None
    head = max(HEAD_LEAST, round(HEAD_SHARE * n))
    first, rest = times_us[:head], times_us[n // 2 :]
    found = Change(statistics.median(first), statistics.median(rest), head)
    error = median_error(rest) * math.sqrt(1 + len(rest) / head)
    slower = found.before_us - found.after_us
    return found if slower > max(SETTLING_ERRORS * error, SETTLING_SHARE * found.after_us) else None


def pauses(times_us: Sequence[float]) -> list[int]:
    """Find steps that took at least twice the median.

    Args:
        times_us: All timed steps, in order.

    Returns:
        Their numbers, from 0.
    """
    longest = PAUSE_FACTOR * statistics.median(times_us) if times_us else 0.0
    return [number for number, time in enumerate(times_us) if time >= longest]


def states(times_us: Sequence[float]) -> States | None:
    """Find two groups of steps with nothing between them; the median then says how many fell into each.

    Args:
        times_us: All timed steps.

    Returns:
        The groups; ``None`` where there is one, or fewer than ``FEWEST_FOR_STATES`` steps.
    """
    n = len(times_us)
    if n < FEWEST_FOR_STATES:
        return None
    times = sorted(times_us)
    least = math.ceil(STATES_LEAST * n)
    split = max(range(least, n - least + 1), key=lambda index: times[index] - times[index - 1])
    fast, slow = times[:split], times[split:]
    found = States(statistics.median(fast), statistics.median(slow), len(slow) / n)
    within = math.sqrt((len(fast) * deviation(fast) ** 2 + len(slow) * deviation(slow) ** 2) / n)
    apart = found.slow_us - found.fast_us > STATES_SHARE * found.fast_us
    return found if apart and slow[0] - fast[-1] > STATES_GAP * within else None


def straggler(ranks_us: Sequence[Sequence[float]]) -> Straggler | None:
    """Find the rank whose own steps take longest.

    Ranks that meet in every step have the same step time, whoever is late: there the profiled window says who keeps
    the others waiting. This rule is for ranks that run ahead of each other.

    Args:
        ranks_us: Own step times of each rank.

    Returns:
        ``None`` where no rank stands apart.
    """
    if len(ranks_us) < 2 or not all(len(times) >= 2 for times in ranks_us):
        return None
    medians = [statistics.median(times) for times in ranks_us]
    slowest = max(range(len(medians)), key=medians.__getitem__)
    others = statistics.median(medians[:slowest] + medians[slowest + 1 :])
    error = max(median_error(times) for times in ranks_us)
    if medians[slowest] - others <= max(STRAGGLER_SHARE * others, STRAGGLER_ERRORS * error):
        return None
    return Straggler(slowest, medians[slowest], others)


def is_steady(times_us: Sequence[float]) -> bool:
    """Say whether a window shows by itself that warming up was over: long enough, and without any trend."""
    return len(times_us) >= FEWEST_FOR_TREND and settling(times_us) is None and drift(times_us) is None


def warnings(step_us: Sequence[float], ranks_us: Sequence[Sequence[float]] = ()) -> list[str]:
    """Say in plain words what a reader of a launch's median should know.

    Args:
        step_us: Per step the maximum over the ranks, in order.
        ranks_us: Own step times of each rank.

    Returns:
        One sentence for each finding.
    """
    return [*_trend_words(step_us), *_pause_words(step_us), *_state_words(step_us), *_straggler_words(ranks_us)]


def _trend_words(times_us: Sequence[float]) -> list[str]:
    early = settling(times_us)
    # What goes on changing in the last three quarters is a drift; what does not was a warm-up. Of two states the
    # first steps may have met the slow one by chance.
    if early is not None and drift(times_us[len(times_us) // 4 :]) is None and states(times_us) is None:
        return [
            f"the step time was not flat when timing began: {_ms(early.before_us)} in the first {early.steps} steps,"
            f" {_ms(early.after_us)} in the last half"
        ]
    found = drift(times_us)
    if found is None:
        return []
    return [
        f"the step time drifted while it was timed: {_ms(found.before_us)} in the first third,"
        f" {_ms(found.after_us)} in the last ({_digits(100 * found.share):+g} %)"
    ]


def _pause_words(times_us: Sequence[float]) -> list[str]:
    found = pauses(times_us)
    if not found:
        return []
    middle, longest = statistics.median(times_us), max(times_us)
    if len(found) == 1:
        return [f"a pause: step {found[0] + 1} of {len(times_us)} took {_digits(longest / middle):g} times the median"]
    if len(found) < MANY_PAUSES:
        places = " and ".join(str(number + 1) for number in found)
        return [f"pauses: steps {places} of {len(times_us)} took up to {_digits(longest / middle):g} times the median"]
    return [
        f"late steps: {len(found)} of {len(times_us)} took at least twice the median, the longest"
        f" {_digits(longest / middle):g} times"
    ]


def _state_words(times_us: Sequence[float]) -> list[str]:
    found = states(times_us)
    if found is None:
        return []
    return [
        f"the steps fall into two groups, {_ms(found.fast_us)} and {_ms(found.slow_us)}"
        f" ({100 * found.slow_share:.0f} % of them): the median depends on how many fall into each"
    ]


def _straggler_words(ranks_us: Sequence[Sequence[float]]) -> list[str]:
    found = straggler(ranks_us)
    if found is None:
        return []
    return [
        f"rank {found.rank} is slow: its own step takes {_ms(found.own_us)}, the other ranks' {_ms(found.others_us)};"
        " no setting of the communication removes that"
    ]


def _trend(times_us: Sequence[float]) -> tuple[float, float]:
    """Correlate the steps' ranks with their order; and the rest of them with its neighbour, at least 0."""
    n = len(times_us)
    middle = (n - 1) / 2
    ranks = [0.0] * n
    for place, number in enumerate(sorted(range(n), key=times_us.__getitem__)):
        ranks[number] = place - middle
    square = n * (n * n - 1) / 12
    correlation = sum(rank * (number - middle) for number, rank in enumerate(ranks)) / square
    rest = [rank - correlation * (number - middle) for number, rank in enumerate(ranks)]
    of_rest = sum(value * value for value in rest)
    if of_rest <= 0:
        return correlation, 0.0
    lag = sum(earlier * later for earlier, later in itertools.pairwise(rest)) / of_rest
    # Too small on average by (1 + 4 r) / n in a series without its trend (Marriott and Pope, Biometrika 1954).
    return correlation, min(_LAG_MOST, max(0.0, lag + (1 + 4 * max(0.0, lag)) / n))


def _digits(number: float) -> float:
    """Two digits, to be written without an exponent."""
    return float(f"{number:.2g}")


def _ms(time_us: float) -> str:
    return f"{time_us / 1e3:.4g} ms"
