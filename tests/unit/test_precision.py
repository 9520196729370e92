"""How many steps a launch times follows from the noise floor, and changes no study's identity."""

from __future__ import annotations

import os
import random
import statistics

import pytest
from fakes import FakeRunner

from nccltune import plan as plans
from nccltune import terminal, tune
from nccltune.records import Steps
from nccltune.study import precision
from nccltune.study.entries import NoiseFloor
from nccltune.study.ledger import Ledger
from nccltune.workloads import stopping

SPACE = """
schema_version: 1
name: tiny
backend: gloo
knobs:
  OMP_NUM_THREADS: [null, 2, 3]
"""


def floor(relative: float) -> NoiseFloor:
    return NoiseFloor(relative=relative, medians=(1000.0, 1000.0), n=2)


@pytest.mark.parametrize(
    ("relative", "wanted"),
    [(0.003, 0.001), (0.0006, precision.FINEST), (0.0, precision.FINEST), (0.11, precision.COARSEST)],
)
def test_a_third_of_the_noise_floor_is_asked_for_within_bounds(relative: float, wanted: float) -> None:
    planned = Steps(timed_min=20, timed_max=100)

    asked = precision.steps(planned, floor(relative))

    assert asked.relative_error == pytest.approx(wanted)
    assert asked.model_copy(update={"relative_error": planned.relative_error}) == planned


def test_before_the_noise_floor_is_known_the_plan_holds() -> None:
    assert precision.steps(Steps(), None) == Steps()


@pytest.mark.parametrize(("spread", "low", "high"), [(0.002, 10, 20), (0.01, 50, 200), (0.05, 200, 200)])
def test_noisier_steps_are_timed_longer_between_the_fewest_and_the_most(spread: float, low: int, high: int) -> None:
    """A launch stops at the first block whose error is small enough; here with a noise floor of 0.4 %."""
    generator = random.Random(f"steps {spread}")
    steps = precision.steps(Steps(timed_min=10, timed_max=200, block=10), floor(0.004))
    times: list[float] = []
    blocks: list[float] = []
    while len(times) < steps.timed_max:
        block = [1000 * (1 + spread * generator.gauss(0, 1)) for _ in range(steps.block)]
        times += block
        blocks.append(statistics.median(block))
        if stopping.relative_error(times, blocks) <= steps.relative_error:
            break

    assert low <= len(times) <= high


def test_launches_after_the_noise_floor_ask_for_a_third_of_it_all_alike(tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    (tmp_path / "tiny.yaml").write_text(SPACE)
    options = plans.Options(
        workload="allreduce", space=str(tmp_path / "tiny.yaml"), trials=3, out=tmp_path, mlflow=False, nproc=2
    )
    plan = plans.prepare(options, dict(os.environ))
    runner = FakeRunner(1000.0, noise=0.005)

    tune.run(plan, terminal.Screen(plan), lambda: False, launcher=runner)

    with Ledger.open(plan.folder) as ledger:
        assert ledger.noise is not None
        wanted = precision.steps(plan.steps, ledger.noise).relative_error
    assert wanted not in (plan.steps.relative_error, precision.FINEST, precision.COARSEST)
    before = {each.steps.relative_error for each in runner.requests if "noise-floor" in each.launch_id}
    after = {each.steps.relative_error for each in runner.requests if "noise-floor" not in each.launch_id}
    assert before == {plan.steps.relative_error}
    assert after == {wanted}
    assert plan.identity["steps"]["relative_error"] == plan.steps.relative_error
    again = FakeRunner(1000.0, noise=0.005)
    tune.run(plan, terminal.Screen(plan), lambda: False, launcher=again)
    assert again.requests == [], "the same command finds its study"
