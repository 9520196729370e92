"""The verdict under simulated noise: seldom wrong, and it finds what is there.

The finals are those of ``benchmarks/verdict_simulation.py`` with fewer studies, so error rates are judged over the
three levels of noise together; its table in ``docs/verdict.md`` has each by itself. Whole studies run through the main
job.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from fakes import FakeRunner

from nccltune import plan as plans
from nccltune import tune

pytestmark = pytest.mark.simulation

STUDIES = 500


def _load():
    path = Path(__file__).parents[2] / "benchmarks" / "verdict_simulation.py"
    spec = importlib.util.spec_from_file_location("verdict_simulation", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["verdict_simulation"] = module
    spec.loader.exec_module(module)
    return module


simulation = _load()


def share(kind, gain, word):
    """Of the studies of three equal finalists, over all levels of noise."""
    cells = [simulation.simulate(kind, level, [gain] * 3, STUDIES, seed=7) for level in simulation.LEVELS]
    return np.mean([cell.words.get(word, 0.0) for cell in cells])


@pytest.mark.parametrize("kind", simulation.KINDS)
@pytest.mark.parametrize("gain", [0.0, simulation.MIN_GAIN])
def test_what_is_not_worth_it_is_shipped_in_one_study_of_a_hundred_at_most(kind, gain):
    assert share(kind, gain, "ship") <= (0.015 if kind == "AR(1) 0.8" else 0.01)


@pytest.mark.parametrize("kind", simulation.KINDS)
def test_a_loss_is_shipped_in_one_study_of_two_hundred_at_most(kind):
    assert share(kind, -0.01, "ship") <= 0.005


@pytest.mark.parametrize("kind", simulation.KINDS)
@pytest.mark.parametrize("level", simulation.LEVELS)
def test_a_gain_that_is_worth_it_is_found(kind, level):
    cell = simulation.simulate(kind, level, [simulation.WORTH[level], 0.0, 0.0], STUDIES, seed=7)
    assert cell.words.get("ship", 0.0) >= (0.9 if kind in ("10 % spikes", "two states") else 0.95)
    assert cell.words.get("keep-default", 0.0) <= 0.05
    assert cell.launches <= 50


def test_no_gain_on_a_quiet_machine_keeps_the_default():
    cell = simulation.simulate("normal", 0.005, [0.0] * 3, STUDIES, seed=7)
    assert cell.words["keep-default"] >= 0.95


@pytest.mark.parametrize("look", [6, 12, 20])
def test_the_interval_holds_the_gain_as_often_as_it_says(look):
    covered = np.mean([simulation.coverage("normal", level, look, 1000, seed=7) for level in simulation.LEVELS])
    assert 0.93 <= covered <= 0.98


# ---- whole studies: search, finals, verdict and profile


SPACE = """
schema_version: 1
name: threads
backend: gloo
knobs:
  OMP_NUM_THREADS: [null, 2, 3, 4, 5, 6, 7, 8]
"""
GOOD = "OMP_NUM_THREADS=5"


class Quiet:
    """Is told of everything, and says nothing."""

    def __getattr__(self, name):
        if not name.startswith("on_"):
            raise AttributeError(name)
        return lambda *_: None


@pytest.fixture
def study(tmp_path, monkeypatch):
    """Runs the main job with simulated launches whose noise follows the order in which they are made."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    space = tmp_path / "threads.yaml"
    space.write_text(SPACE)

    def run(number, kind, level, gain):
        options = plans.Options(
            workload="resnet", space=str(space), trials=16, rounds=20, finalists=3, mlflow=False, nproc=2,
            out=tmp_path, study=f"{number}", seed=number,
        )  # fmt: skip
        noise = iter(np.maximum(0.1, 1 + level * simulation.KINDS[kind](np.random.default_rng(number), 1, 200))[0])

        def took(candidate):
            return float(1000 * next(noise) / (1 + gain * (candidate.key == GOOD)))

        runner = FakeRunner(took, noise=0.0, within=level, seed=number)
        return tune.run(plans.prepare(options, dict(os.environ)), Quiet(), lambda: False, launcher=runner)

    return run


@pytest.mark.parametrize(
    ("kind", "level"), [("normal", 0.005), ("normal", 0.1), ("AR(1) 0.8", 0.02), ("10 % spikes", 0.1)]
)
def test_whole_studies_without_a_gain_ship_nothing(study, kind, level):
    found = [study(number, kind, level, 0.0) for number in range(6)]
    assert not any(conclusion.profile.settings for conclusion in found)
    words = [conclusion.verdict.word for conclusion in found]
    assert "ship" not in words
    if (kind, level) == ("normal", 0.005):
        assert words.count("keep-default") >= 5


@pytest.mark.parametrize(
    ("kind", "level"),
    [("normal", 0.005), ("normal", 0.02), ("normal", 0.1), ("linear drift", 0.02), ("two states", 0.02)],
)
def test_whole_studies_find_and_ship_what_is_there(study, kind, level):
    gain = simulation.WORTH[level]
    found = [study(number, kind, level, gain).verdict for number in range(5)]
    shipped = [verdict for verdict in found if verdict.word == "ship"]
    assert len(shipped) >= 4
    assert {verdict.candidate.key for verdict in shipped} == {GOOD}
    assert all(verdict.rounds <= 20 for verdict in shipped)
    assert all(verdict.bounds[0] < gain for verdict in shipped)
    assert sum(verdict.interval[0] <= gain <= verdict.interval[1] for verdict in shipped) >= 4
