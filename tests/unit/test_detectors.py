"""What the rules on step times say of small series; their error rates are in ``tests/simulation/test_planted.py``."""

from __future__ import annotations

import gc
import json
import random
from pathlib import Path

import pytest

from nccltune.workloads import detectors
from nccltune.workloads.clock import Block, HostClock
from nccltune.workloads.control import Control
from nccltune.workloads.measure import Measure
from nccltune.workloads.request import Limits, Steps

LEDGERS = Path(__file__).resolve().parents[1] / "recordings" / "ledgers"


def noisy(seed: int, count: int = 60, spread: float = 0.005) -> list[float]:
    generator = random.Random(seed)
    return [10_000 * (1 + generator.gauss(0, spread)) for _ in range(count)]


def recorded(study: str) -> dict[str, list[float]]:
    """Launch id to the step times of every measured launch of a recorded study."""
    entries = [json.loads(line) for line in (LEDGERS / study / "ledger.jsonl").read_text().splitlines()]
    launches = [entry["launch"] for entry in entries if entry["record"] == "launch"]
    return {
        launch["launch_id"]: launch["outcome"]["step_times_us"]
        for launch in launches
        if launch["outcome"]["outcome"] == "measurement"
    }


def test_a_steady_series_says_nothing() -> None:
    assert detectors.warnings(noisy(1), [noisy(1), noisy(2)]) == []
    assert detectors.is_steady(noisy(1))


@pytest.mark.parametrize("times_us", [[], [5.0], [5.0, 900.0, 5.0], [7.0] * 40])
def test_nothing_few_or_equal_steps_are_no_reason_to_fail(times_us: list[float]) -> None:
    assert detectors.drift(times_us) is None
    assert detectors.settling(times_us) is None
    assert detectors.states(times_us) is None
    assert detectors.straggler([times_us, times_us]) is None


def test_a_drift_is_told_with_both_ends() -> None:
    rising = [time * (1 + 0.05 * index / 60) for index, time in enumerate(noisy(3))]

    found = detectors.drift(rising)

    assert found is not None
    assert found.share == pytest.approx(0.05 * 2 / 3, abs=0.005)
    (said,) = detectors.warnings(rising)
    assert said.startswith("the step time drifted while it was timed: 10.0")
    assert said.endswith("(+3 %)")


def test_a_drift_that_is_too_small_to_matter_is_not_told() -> None:
    exact = [10_000 * (1 + 0.003 * index / 60) for index in range(60)]

    assert detectors.drift(exact) is None


def test_steps_that_resemble_their_neighbours_are_no_drift() -> None:
    """The same values in a random order would be none; as one slow wave they are not a trend either."""
    wave, value = [], 0.0
    generator = random.Random(4)
    for _ in range(60):
        value = 0.9 * value + generator.gauss(0, 50)
        wave.append(10_000 + value)

    assert detectors.drift(wave) is None


def test_a_warm_up_that_was_not_over_is_told_apart_from_a_drift() -> None:
    decaying = [time * (1 + 0.3 * 0.7**index) for index, time in enumerate(noisy(5))]

    (said,) = detectors.warnings(decaying)

    assert said.startswith("the step time was not flat when timing began")
    assert "in the first 6 steps, 10 ms in the last half" in said
    assert not detectors.is_steady(decaying)


def test_large_numbers_have_no_exponent() -> None:
    paused = noisy(6)
    paused[16] *= 130
    (said,) = detectors.warnings(paused)
    assert said == "a pause: step 17 of 60 took 130 times the median"


def test_one_pause_or_two_are_named_by_their_steps_and_more_are_late_steps() -> None:
    paused = noisy(6)
    paused[16] *= 3
    (said,) = detectors.warnings(paused)
    assert said == "a pause: step 17 of 60 took 3 times the median"

    paused[3] *= 2.5
    (said,) = detectors.warnings(paused)
    assert said == "pauses: steps 4 and 17 of 60 took up to 3 times the median"

    for number in (30, 44, 59):
        paused[number] *= 2.5
    (said,) = detectors.warnings(paused)
    assert said == "late steps: 5 of 60 took at least twice the median, the longest 3 times"


def test_two_groups_of_steps_are_told_with_their_times() -> None:
    generator = random.Random(7)
    jumping = [time * (1.2 if generator.random() < 0.4 else 1.0) for time in noisy(7)]

    (said,) = detectors.warnings(jumping)

    assert said.startswith("the steps fall into two groups, 9.992 ms and 12.01 ms (47 % of them)")


def test_a_rank_whose_own_steps_are_longer_is_named() -> None:
    ranks = [noisy(8), noisy(9), [1.5 * time for time in noisy(10)], noisy(11)]

    found = detectors.straggler(ranks)

    assert found is not None
    assert found.rank == 2
    assert found.own_us == pytest.approx(1.5 * found.others_us, rel=0.01)
    assert "rank 2 is slow: its own step takes 14.98 ms" in detectors.warnings(noisy(8), ranks)[0]


def test_ranks_that_meet_in_every_step_have_no_straggler_by_their_own_times() -> None:
    slow = [1.5 * time for time in noisy(12)]

    assert detectors.straggler([slow, slow]) is None


def test_quiet_recorded_launches_raise_no_alarm() -> None:
    """All-reduce over NVLink, 27 launches of a real study."""
    alarms = {name: detectors.warnings(times) for name, times in recorded("2xh200-allreduce-nvlink").items()}

    assert len(alarms) == 27
    assert {name: said for name, said in alarms.items() if said} == {}


@pytest.mark.parametrize(
    ("launch", "said"),
    [
        ("0001-noise-floor", "drifted"),  # 14.4 ms to 12.5 ms
        ("0047-confirm", "late steps: 51 of 200"),
        ("0051-confirm", "drifted"),  # two levels, 8.5 and 11.7 ms
        ("0016-search", "a pause: step 154"),
    ],
)
def test_what_recorded_launches_over_sockets_suffered_from_is_told(launch: str, said: str) -> None:
    assert any(said in warning for warning in detectors.warnings(recorded("2xh200-allreduce-tcp")[launch]))


class Alone:
    """A store with one rank."""

    def set(self, key: str, value: str) -> None:
        self.value = value

    def get(self, key: str) -> bytes:
        return self.value.encode()

    def wait(self, keys: list[str], timeout: object) -> None:
        return


class Watching(HostClock):
    """Notes whether the collector is on while steps run."""

    def __init__(self) -> None:
        super().__init__()
        self.collecting: list[tuple[int, bool]] = []

    def run(self, step, count: int, lead: int = 0) -> Block:  # type: ignore[no-untyped-def]
        self.collecting.append((lead, gc.isenabled()))
        return super().run(step, count, lead)


def test_pythons_collector_is_off_while_steps_are_timed_and_on_afterwards() -> None:
    clock = Watching()
    steps = Steps(warmup_min=1, warmup_max=1, warmup_s=0.0, timed_min=4, timed_max=8, block=2)
    measure = Measure(lambda: None, clock, Control(Alone(), 0, 1, 1.0), steps, Limits(), lambda _: None)
    assert gc.isenabled()

    measure.timed(measure.warm_up().typical_us)

    timed = [enabled for lead, enabled in clock.collecting if lead]
    assert len(timed) >= 2
    assert not any(timed)
    assert gc.isenabled()


def test_pythons_collector_comes_back_when_a_timed_step_fails_and_stays_off_where_it_was() -> None:
    def fails() -> None:
        raise KeyError("layer")

    steps = Steps(timed_min=1, timed_max=1)
    measure = Measure(fails, HostClock(), Control(Alone(), 0, 1, 1.0), steps, Limits(), lambda _: None)
    with pytest.raises(KeyError):
        measure.timed(1.0)
    assert gc.isenabled()

    gc.disable()
    try:
        Measure(lambda: None, HostClock(), Control(Alone(), 0, 1, 1.0), steps, Limits(), lambda _: None).timed(1.0)
        assert not gc.isenabled()
    finally:
        gc.enable()
