"""How often the rules on step times are wrong, and how often they find what is planted. Seeded throughout.

For the rules on one launch: noise of 0.3 to 5 % of the step, from step to step: normal, Student with three degrees of
freedom (scaled to that standard deviation), and AR(1) with 0.3. For launches held against each other: the noise that
was measured on GPUs.
"""

from __future__ import annotations

import json
import math
import random
import statistics
from collections.abc import Callable
from pathlib import Path

import pytest

from nccltune.records import Pair
from nccltune.verdict.sequence import of_gain
from nccltune.workloads import detectors

pytestmark = pytest.mark.simulation

STEP_US = 10_000.0
CLEAN = 400
PLANTED = 200
NOISES = ("normal", "student", "AR(1)")
LENGTHS = (20, 50, 100, 200)


def student(generator: random.Random) -> float:
    """Three degrees of freedom, standard deviation 1."""
    squares = sum(generator.gauss(0, 1) ** 2 for _ in range(3))
    return generator.gauss(0, 1) / math.sqrt(squares / 3) / math.sqrt(3)


def noise(generator: random.Random, kind: str, count: int) -> list[float]:
    """Deviations with standard deviation 1."""
    if kind == "student":
        return [student(generator) for _ in range(count)]
    found = [generator.gauss(0, 1) for _ in range(count)]
    if kind == "AR(1)":
        for index in range(1, count):
            found[index] = 0.3 * found[index - 1] + math.sqrt(1 - 0.3**2) * found[index]
    return found


def series(generator: random.Random, kind: str, count: int, trend: Callable[[int, float], float]) -> list[float]:
    """Step times; the trend is a share of the step, of the step's number and the size of the noise."""
    level = math.exp(generator.uniform(math.log(0.003), math.log(0.05)))
    deviations = noise(generator, kind, count)
    return [STEP_US * max(0.1, 1 + level * each + trend(index, level)) for index, each in enumerate(deviations)]


def flat(index: int, level: float) -> float:
    return 0.0


def share(tried: int, found: Callable[[], bool]) -> float:
    return sum(found() for _ in range(tried)) / tried


@pytest.mark.parametrize("kind", NOISES)
@pytest.mark.parametrize("count", LENGTHS)
def test_of_clean_launches_one_in_a_hundred_raises_any_alarm_at_most(kind: str, count: int) -> None:
    generator = random.Random(f"clean {kind} {count}")

    def alarm() -> bool:
        ranks = [series(generator, kind, count, flat) for _ in range(2)]
        return bool(detectors.warnings(ranks[0], ranks))

    assert share(CLEAN, alarm) <= 0.01


@pytest.mark.parametrize("kind", NOISES)
@pytest.mark.parametrize("count", LENGTHS)
@pytest.mark.parametrize("sign", [1, -1], ids=["slower", "faster"])
def test_a_drift_of_three_times_the_noise_is_found(kind: str, count: int, sign: int) -> None:
    """Twenty steps are too few for it, and so are fifty that resemble their neighbours: there the rule says less."""
    generator = random.Random(f"drift {kind} {count} {sign}")

    def found() -> bool:
        drifting = series(generator, kind, count, lambda index, level: sign * 3 * level * index / (count - 1))
        said = detectors.warnings(drifting)
        return any("drifted" in each or "not flat" in each for each in said)

    weak = {("normal", 20): 0.45, ("student", 20): 0.65, ("AR(1)", 20): 0.35, ("AR(1)", 50): 0.7}
    assert share(PLANTED, found) >= weak.get((kind, count), 0.95)


@pytest.mark.parametrize("kind", NOISES)
@pytest.mark.parametrize("count", LENGTHS)
def test_one_pause_of_three_steps_is_found_and_its_step_named(kind: str, count: int) -> None:
    generator = random.Random(f"pause {kind} {count}")

    def found() -> bool:
        times, number = series(generator, kind, count, flat), generator.randrange(count)
        times[number] *= 3
        said = detectors.warnings(times)
        return any(each.startswith("a pause:") and f"step {number + 1} of" in each for each in said)

    assert share(PLANTED, found) >= 0.95


@pytest.mark.parametrize("kind", NOISES)
@pytest.mark.parametrize("count", LENGTHS)
def test_a_warm_up_that_decays_into_the_window_is_found(kind: str, count: int) -> None:
    """It begins ten times the noise (5 % at least) above the level, and falls to 1/e in a tenth of the window."""
    generator = random.Random(f"warm-up {kind} {count}")

    def found() -> bool:
        times = series(
            generator, kind, count, lambda index, level: max(0.05, 10 * level) * math.exp(-10 * index / count)
        )
        return any("not flat" in each or "drifted" in each for each in detectors.warnings(times))

    assert share(PLANTED, found) >= (0.95 if count > 20 else 0.75)


@pytest.mark.parametrize("kind", NOISES)
@pytest.mark.parametrize("count", [count for count in LENGTHS if count >= detectors.FEWEST_FOR_STATES])
def test_two_states_are_found(kind: str, count: int) -> None:
    """Three steps of ten are slower by ten times the noise (10 % at least)."""
    generator = random.Random(f"states {kind} {count}")

    def found() -> bool:
        times = series(
            generator, kind, count, lambda _, level: max(0.1, 10 * level) if generator.random() < 0.3 else 0.0
        )
        return any("two groups" in each for each in detectors.warnings(times))

    assert share(PLANTED, found) >= 0.95


@pytest.mark.parametrize("kind", NOISES)
@pytest.mark.parametrize("count", LENGTHS)
def test_a_rank_that_is_slower_by_half_a_step_is_found_and_named(kind: str, count: int) -> None:
    """Among ranks that run ahead of each other; for those that meet in every step see ``tests/launch``."""
    generator = random.Random(f"straggler {kind} {count}")

    def found() -> bool:
        culprit = generator.randrange(4)
        ranks = [
            series(generator, kind, count, lambda *_, extra=0.5 * (rank == culprit): extra)  # type: ignore[misc]
            for rank in range(4)
        ]
        straggler = detectors.straggler(ranks)
        return straggler is not None and straggler.rank == culprit

    assert share(PLANTED, found) >= 0.95


# ---- a step that is slower in every launch


RESNET_MEDIANS_MS = (55.29, 55.29, 55.41, 55.58)
"""ResNet-50 under DDP, batch 256 a GPU, two H200 over NVLink: four launches of the same settings."""
RESNET_STEP_DEVIATION = 0.56 / 55.3
"""From step to step within one of them."""
ROUNDS = 5
STUDIES = 2000


def launch_deviation(medians: tuple[float, ...]) -> float:
    return statistics.stdev(medians) / statistics.fmean(medians)


def nvlink_medians() -> tuple[float, ...]:
    """Launches of the default in the recorded study of an all-reduce over NVLink."""
    ledger = Path(__file__).resolve().parents[1] / "recordings/ledgers/2xh200-allreduce-nvlink/ledger.jsonl"
    entries = [json.loads(line) for line in ledger.read_text().splitlines()]
    launches = [entry["launch"] for entry in entries if entry["record"] == "launch"]
    return tuple(
        statistics.median(launch["outcome"]["step_times_us"])
        for launch in launches
        if not launch["candidate"]["settings"] and launch["purpose"] != "evidence"
    )


def slower_bound(generator: random.Random, slowdown: float, between: float, within: float) -> float:
    """The lower 99 % bound of the slow-down after five mirrored rounds of 20 steps a launch, through the real code."""
    pairs = []
    for number in range(1, ROUNDS + 1):
        medians = []
        for factor in (1.0, 1.0 + slowdown):
            level = factor * (1 + between * generator.gauss(0, 1))
            medians.append(STEP_US * statistics.median(level * (1 + within * generator.gauss(0, 1)) for _ in range(20)))
        default, slowed = medians
        pairs.append(Pair(round=number, default_us=default, candidate_us=slowed, gain=default / slowed - 1))
    found = of_gain(pairs)
    assert found is not None
    return -found.upper(0.01)


def test_the_measured_noise_of_launches_is_what_it_was() -> None:
    assert launch_deviation(RESNET_MEDIANS_MS) == pytest.approx(0.0025, abs=0.0003)
    assert launch_deviation(nvlink_medians()) == pytest.approx(0.001, abs=0.0003)


@pytest.mark.parametrize(
    ("between", "within"),
    [
        (launch_deviation(RESNET_MEDIANS_MS), RESNET_STEP_DEVIATION),
        (launch_deviation(nvlink_medians()), 0.005),
    ],
    ids=["ResNet-50", "all-reduce"],
)
def test_a_step_that_is_two_percent_slower_is_shown_with_five_launches_a_side(between: float, within: float) -> None:
    generator = random.Random("slower")

    assert share(STUDIES, lambda: slower_bound(generator, 0.02, between, within) > 0) >= 0.95
    assert share(STUDIES, lambda: slower_bound(generator, 0.0, between, within) > 0) <= 0.02
