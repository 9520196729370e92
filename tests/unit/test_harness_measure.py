"""Rank 0's decisions, with ranks that are threads and a store that is a dictionary."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from fakes import MemoryStore

from nccltune.workloads import stopping
from nccltune.workloads.clock import Block, HostClock
from nccltune.workloads.control import Control, RankSilent
from nccltune.workloads.failure import WorkloadError
from nccltune.workloads.measure import Measure, Timed, WarmUp, slowest
from nccltune.workloads.request import Limits, Steps


@dataclass
class ScriptedClock(HostClock):
    """Runs the steps but says what the script says."""

    times_us: Callable[[int], float]
    ran: int = 0
    leads: list[int] = field(default_factory=list)

    def run(self, step: Callable[[], None], count: int, lead: int = 0) -> Block:
        for _ in range(lead + count):
            step()
        times = [self.times_us(self.ran + index) for index in range(count)]
        self.ran += count
        self.leads.append(lead)
        return Block(times, {}, 1.0)


def on_ranks(scripts: list[Callable[[int], float]], steps: Steps, patience_s: float = 5.0) -> list[Any]:
    """Warm up and time on one thread per rank; what each returned or raised."""
    store, results = MemoryStore(), [None] * len(scripts)

    def rank(number: int) -> None:
        control = Control(store, number, len(scripts), patience_s)
        measure = Measure(lambda: None, ScriptedClock(scripts[number]), control, steps, Limits(), lambda _: None)
        try:
            warm = measure.warm_up()
            results[number] = (warm, measure.timed(warm.typical_us))  # type: ignore[call-overload]
        except Exception as error:
            results[number] = error  # type: ignore[call-overload]

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(len(scripts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return results


STEPS = Steps(warmup_min=4, warmup_max=40, warmup_s=0.0, timed_min=10, timed_max=50, block=10, relative_error=0.01)


def test_steady_ranks_stop_at_the_minimum_and_the_slower_rank_counts() -> None:
    (warm, timed), (other, silent) = on_ranks([lambda _: 30_000.0, lambda _: 40_000.0], STEPS)

    assert isinstance(warm, WarmUp)
    assert isinstance(timed, Timed)
    assert warm == other
    assert warm.flat
    assert warm.steps == 6
    assert timed.step_us == [40_000.0] * 10
    assert timed.own_us == [30_000.0] * 10
    assert silent.own_us == [40_000.0] * 10
    assert silent.step_us == []


def test_warming_up_goes_on_until_the_time_has_settled() -> None:
    falling = lambda index: 30_000.0 * (1 + 0.2 * max(0, 12 - index))  # noqa: E731

    (warm, timed), _ = on_ranks([falling, lambda _: 1.0], STEPS)

    assert warm.flat
    assert 15 <= warm.steps < 40
    assert set(timed.step_us) == {30_000.0}


def test_a_time_that_never_settles_ends_at_the_limit_and_says_so() -> None:
    (warm, _), _ = on_ranks([lambda index: 30_000.0 * 1.05**index, lambda _: 1.0], STEPS)

    assert not warm.flat
    assert 40 <= warm.steps < 50


def test_noise_is_timed_longer_but_not_for_ever() -> None:
    wild = lambda index: 30_000.0 * (1 + index % 7)  # noqa: E731

    (_, timed), _ = on_ranks([wild, lambda _: 1.0], STEPS)

    assert len(timed.step_us) == 50


def test_no_time_left_stops_after_the_minimum() -> None:
    wild = lambda index: 30_000.0 * (1 + index % 7)  # noqa: E731
    hurried = Steps(warmup_min=4, warmup_max=4, warmup_s=0.0, timed_min=10, timed_max=50, block=5, timed_s=0.0)

    (_, timed), _ = on_ranks([wild, lambda _: 1.0], hurried)

    assert len(timed.step_us) == 10


def test_no_warm_up_is_not_called_flat() -> None:
    (warm, _), _ = on_ranks([lambda _: 5.0, lambda _: 5.0], Steps(warmup_max=0, timed_min=1, timed_max=1))

    assert warm == WarmUp(0, flat=False, typical_us=0.0)


def test_a_rank_that_does_not_answer_is_named_in_time() -> None:
    control = Control(MemoryStore(), 0, 2, 0.05)

    with pytest.raises(RankSilent, match="rank 1 did not answer 'timed'"):
        control.gather("timed", [1.0])


def test_ranks_that_count_differently_are_named() -> None:
    with pytest.raises(WorkloadError, match="disagree on the number of steps or marks: 2, 1"):
        slowest([[1.0, 2.0], [1.0]])
    assert slowest([[1.0, 5.0], [2.0, 3.0]]) == [2.0, 5.0]


def test_the_host_clock_loses_no_time_between_steps_and_splits_parts() -> None:
    clock = HostClock()
    stamps = iter([0, 1_000, 4_000, 5_000, 6_000, 9_000, 10_000])
    clock._stamp = lambda: next(stamps)  # type: ignore[method-assign]

    def step() -> None:
        clock.mark("a")
        clock.mark("b")

    block = clock.run(step, 2, lead=3)

    assert block.step_us == [5.0, 5.0]
    assert block.part_us == {"a": [1.0, 1.0], "b": [3.0, 3.0]}


def test_marks_outside_timed_steps_do_nothing() -> None:
    clock = HostClock()

    clock.mark("a")

    assert clock.run(lambda: None, 1).part_us == {}


def test_steps_that_are_far_too_slow_are_not_all_waited_for() -> None:
    slow = Steps(warmup_min=4, timed_min=10, timed_max=30, block=6, timed_s=3.0)

    assert stopping.block_steps(slow, 7e6, 0, no_progress_s=90.0) == stopping.FEWEST_STEPS
    assert stopping.block_steps(slow, 0.2e6, 0, no_progress_s=60.0) == 6
    assert stopping.overtime(slow, elapsed_s=21.0, done=3)
    assert not stopping.overtime(slow, elapsed_s=21.0, done=2)
    assert not stopping.overtime(slow, elapsed_s=11.0, done=9)
