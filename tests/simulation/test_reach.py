"""What a study says that it can show is what the rule of the verdict then shows, at any noise and number of rounds."""

from __future__ import annotations

import importlib.util
import random
import sys
from pathlib import Path

import numpy as np
import pytest

from nccltune.study import stats
from nccltune.study.entries import NoiseFloor
from nccltune.verdict import reach
from nccltune.verdict.bounds import spread_range
from nccltune.verdict.sequence import Rule

pytestmark = pytest.mark.simulation


def _load():
    path = Path(__file__).parents[2] / "benchmarks" / "verdict_simulation.py"
    spec = importlib.util.spec_from_file_location("verdict_simulation", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["verdict_simulation"] = module
    spec.loader.exec_module(module)
    return module


simulation = _load()


def shipped(level, gain, rule, studies, seed):
    gains = dict(zip(simulation.FINALISTS, [gain, 0.0, 0.0][: rule.finalists], strict=False))
    launches = np.random.default_rng(seed).standard_normal((studies, rule.rounds * (1 + rule.finalists)))
    noise = np.maximum(0.1, 1 + level * launches).tolist()
    return sum(simulation.finals(line, gains, rule)[0] == "ship" for line in noise) / studies


@pytest.mark.parametrize("level", [0.002, 0.01, 0.05])
@pytest.mark.parametrize("rounds", [4, 6, 8, 12, 20])
@pytest.mark.parametrize("finalists", [1, 3])
def test_the_smallest_gain_is_shipped_as_often_as_is_said(level, rounds, finalists):
    rule = Rule(min_gain=0.01, rounds=rounds, finalists=finalists)
    found = reach.foresee(NoiseFloor(relative=level, medians=(1.0,) * 3, n=3), rule, 10.0)
    # 800 studies leave a standard error of 0.014.
    assert shipped(level, found.smallest, rule, 800, seed=11) == pytest.approx(found.power, abs=0.06)


@pytest.mark.parametrize("n", [3, 4, 5, 8])
def test_the_range_holds_the_true_noise_as_often_as_it_says(n):
    draw = random.Random(n)
    held = 0
    for _ in range(4000):
        estimate = stats.spread([draw.gauss(0, 1) for _ in range(n)])
        low, high = spread_range(estimate, stats.freedom(n), reach.CONFIDENCE)
        held += low <= 1 <= high
    assert held / 4000 == pytest.approx(reach.CONFIDENCE, abs=0.06)
