"""When warming up is over and when enough steps are timed: pure rules on step times in microseconds."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence

from .request import Steps

# Two windows are taken as equal when their medians differ by less than this share, or by less than chance
# explains. One per cent is the smallest gain that the tool reports by default.
FLAT_SHARE = 0.01
FLAT_ERRORS = 3.0

# A window shorter than this says more about the scheduler than about the step.
WINDOW_US = 20_000.0
WINDOW_MAX = 1_000

# Of the longest silence that the tuner accepts, the share that one block may take.
SILENCE_SHARE = 1 / 3

# A step so slow that the fewest steps take this many times the time meant for them is known well enough: it lost.
OVERTIME = 4.0
OVERTIME_LEAST_S = 4.0
FEWEST_STEPS = 3

_MAD_TO_DEVIATION = 1.4826  # of a normal distribution
_MEDIAN_TO_MEAN_ERROR = 1.2533  # sqrt(pi / 2): the median's standard error over the mean's


def deviation(times_us: Sequence[float]) -> float:
    """Estimate the standard deviation in a way that outliers do not move.

    Args:
        times_us: Step times.

    Returns:
        1.4826 times the median absolute deviation, in microseconds.
    """
    middle = statistics.median(times_us)
    return _MAD_TO_DEVIATION * statistics.median(abs(time - middle) for time in times_us)


def median_error(times_us: Sequence[float]) -> float:
    """Estimate the standard error of the median of independent steps.

    Args:
        times_us: Step times.

    Returns:
        Microseconds.
    """
    return _MEDIAN_TO_MEAN_ERROR * deviation(times_us) / math.sqrt(len(times_us))


def relative_error(times_us: Sequence[float], block_medians_us: Sequence[float]) -> float:
    """Estimate the relative standard error of a launch's median step time.

    Neighbouring steps resemble each other, so the error from single steps is too small when the time
    wanders; the medians of the blocks then show it. The larger of the two is taken.

    Args:
        times_us: All timed steps.
        block_medians_us: Median of each block.

    Returns:
        A share of the median; infinite where nothing can be said.
    """
    middle = statistics.median(times_us)
    if len(times_us) < 2 or middle <= 0:
        return math.inf
    error = median_error(times_us)
    if len(block_medians_us) >= 4:
        error = max(error, statistics.stdev(block_medians_us) / math.sqrt(len(block_medians_us)))
    return error / middle


def noise(windows_us: Sequence[Sequence[float]]) -> float:
    """Estimate the standard deviation from neighbouring steps, so that a trend does not count as noise.

    Args:
        windows_us: Step times of each window, in order.

    Returns:
        Microseconds; 0 where no window has two steps.
    """
    changes = [later - earlier for window in windows_us for earlier, later in itertools.pairwise(window)]
    return deviation(changes) / math.sqrt(2) if changes else 0.0


def is_flat(windows_us: Sequence[Sequence[float]]) -> bool:
    """Say whether warming up is over: the last two windows do not differ.

    Args:
        windows_us: Step times of each window, in order.

    Returns:
        False also where there are fewer than two windows.
    """
    if len(windows_us) < 2:
        return False
    earlier_us, later_us = windows_us[-2], windows_us[-1]
    error = _MEDIAN_TO_MEAN_ERROR * noise([earlier_us, later_us])
    chance = FLAT_ERRORS * error * math.hypot(1 / math.sqrt(len(earlier_us)), 1 / math.sqrt(len(later_us)))
    return not _differ(earlier_us, later_us, chance)


def window_steps(steps: Steps, typical_us: float | None, no_progress_s: float) -> int:
    """Choose the length of the next warm-up window.

    Args:
        steps: What was asked for.
        typical_us: Time of a step so far; ``None`` before the first window.
        no_progress_s: The tuner's limit of silence.

    Returns:
        Steps, at least one.
    """
    count = max(3, math.ceil(steps.warmup_min / 2))
    if typical_us is None:
        return max(1, min(count, steps.warmup_max))
    # Never cut to what is left of the limit: in a window of one or two steps the ranks' late starts pass for a change.
    count = max(count, min(WINDOW_MAX, math.ceil(WINDOW_US / max(typical_us, 1e-3))))
    return _within_silence(count, typical_us, no_progress_s)


def block_steps(steps: Steps, typical_us: float, done: int, no_progress_s: float) -> int:
    """Choose the length of the next timed block.

    Args:
        steps: What was asked for.
        typical_us: Time of a step.
        done: Timed steps so far.
        no_progress_s: The tuner's limit of silence.

    Returns:
        Steps, at least one.
    """
    count = min(max(1, steps.block), max(1, steps.timed_max - done))
    return _within_silence(slow_steps(steps, typical_us, count), typical_us, no_progress_s)


def overtime(steps: Steps, elapsed_s: float, done: int) -> bool:
    """Say whether a phase takes so long that waiting for its fewest steps is a waste.

    Args:
        steps: What was asked for.
        elapsed_s: Of the phase.
        done: Steps of the phase.
    """
    return done >= FEWEST_STEPS and elapsed_s > max(OVERTIME * steps.timed_s, OVERTIME_LEAST_S)


def slow_steps(steps: Steps, typical_us: float, count: int) -> int:
    """Lower a number of steps to what fits into the time for timing, where steps are very slow.

    Args:
        steps: What was asked for.
        typical_us: Time of a step.
        count: Steps wanted.

    Returns:
        ``count``, or fewer, yet not below ``FEWEST_STEPS`` unless ``count`` is.
    """
    fitting = math.ceil(max(steps.timed_s, OVERTIME_LEAST_S) * 1e6 / max(typical_us, 1e-3))
    return min(count, max(FEWEST_STEPS, fitting))


def _differ(earlier_us: Sequence[float], later_us: Sequence[float], chance_us: float) -> bool:
    first, second = statistics.median(earlier_us), statistics.median(later_us)
    return abs(second - first) > max(FLAT_SHARE * min(first, second), chance_us)


def _within_silence(count: int, typical_us: float, no_progress_s: float) -> int:
    longest = math.floor(SILENCE_SHARE * no_progress_s * 1e6 / max(typical_us, 1e-3))
    return max(1, min(count, longest))
