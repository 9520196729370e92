"""The rules that end warming up and timing."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccltune.workloads import stopping
from nccltune.workloads.request import Steps


def noisy(rng: random.Random, count: int, middle: float = 1000.0, spread: float = 0.005) -> list[float]:
    return [middle * (1 + rng.gauss(0, spread)) for _ in range(count)]


def test_falling_windows_are_not_flat_and_steady_ones_are() -> None:
    rng = random.Random(1)
    falling = [noisy(rng, 5, middle) for middle in (1500, 1200, 1050)]

    assert not stopping.is_flat(falling)
    assert stopping.is_flat([*falling, noisy(rng, 5), noisy(rng, 5)])


def test_one_window_says_nothing() -> None:
    assert not stopping.is_flat([])
    assert not stopping.is_flat([[1.0, 1.0]])


def test_a_single_slow_step_does_not_hide_that_the_rest_is_flat() -> None:
    rng = random.Random(2)

    assert stopping.is_flat([[9000.0, *noisy(rng, 4)], noisy(rng, 5)])


def test_the_error_of_the_median_is_the_one_that_repeated_series_show() -> None:
    rng = random.Random(4)
    medians = [sorted(noisy(rng, 41))[20] for _ in range(400)]
    seen = stopping.deviation(medians)

    said = sum(stopping.median_error(noisy(rng, 41)) for _ in range(400)) / 400

    assert said == pytest.approx(seen, rel=0.2)


def test_a_wandering_series_has_a_larger_error_than_its_steps_say() -> None:
    rng = random.Random(5)
    blocks = [noisy(rng, 10, middle, 0.001) for middle in (1000, 1040, 980, 1030, 990)]
    times = [time for block in blocks for time in block]
    medians = [sorted(block)[5] for block in blocks]

    wandering = stopping.relative_error(times, medians)

    assert wandering > 0.008
    assert wandering > 1.5 * stopping.relative_error([*times], [])
    assert stopping.relative_error([5.0], [5.0]) == math.inf


@given(st.floats(0.01, 1e9), st.integers(0, 500), st.integers(1, 300), st.integers(1, 60), st.floats(1.0, 600.0))
def test_a_block_is_never_empty_too_long_or_too_many(
    typical_us: float, done: int, timed_max: int, block: int, no_progress_s: float
) -> None:
    count = stopping.block_steps(Steps(timed_max=timed_max, block=block), typical_us, done, no_progress_s)

    assert count >= 1
    assert count == 1 or count * typical_us <= no_progress_s * 1e6
    assert count <= block
    assert count == 1 or done + count <= timed_max


def test_windows_of_fast_steps_grow_and_those_of_slow_ones_do_not() -> None:
    steps = Steps(warmup_min=5, warmup_max=60)

    assert stopping.window_steps(steps, None, 60) == 3
    assert stopping.window_steps(steps, 50.0, 60) == 400
    assert stopping.window_steps(steps, 50_000.0, 60) == 3
    assert stopping.window_steps(steps, 15e6, 60) == 1


def test_a_steady_trend_within_the_windows_is_no_noise() -> None:
    sliding = [[1000.0 * 0.97 ** (3 * window + step) for step in range(3)] for window in range(4)]

    assert not stopping.is_flat(sliding)


def test_noisy_but_settled_series_soon_count_as_flat() -> None:
    rng = random.Random(6)

    flat = sum(
        any(stopping.is_flat([noisy(rng, 5, spread=0.1), noisy(rng, 5, spread=0.1)]) for _ in range(3))
        for _ in range(200)
    )

    assert flat >= 195
