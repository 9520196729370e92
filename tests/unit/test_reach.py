"""What a study says it can show before it spends anything: words, edges, agreement with the rule of the verdict."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nccltune.study.entries import NoiseFloor
from nccltune.verdict import reach
from nccltune.verdict.bounds import detectable, spread_range
from nccltune.verdict.sequence import Rule


def _load():
    path = Path(__file__).parents[2] / "benchmarks" / "verdict_simulation.py"
    spec = importlib.util.spec_from_file_location("verdict_simulation", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["verdict_simulation"] = module
    spec.loader.exec_module(module)
    return module


simulation = _load()


def floor(relative, n=3):
    return NoiseFloor(relative=relative, medians=(1.0,) * n, n=n)


def foreseen(relative, *, n=3, min_gain=0.01, rounds=20, finalists=3, launch_s=12.0):
    return reach.foresee(floor(relative, n), Rule(min_gain=min_gain, rounds=rounds, finalists=finalists), launch_s)


def shipped(level, gain, rule, studies, seed=5, word="ship"):
    """Share of studies, by the tool's own rule, that ship one finalist with this gain among others without any."""
    gains = dict(zip(simulation.FINALISTS, [gain, 0.0, 0.0][: rule.finalists], strict=False))
    launches = np.random.default_rng(seed).standard_normal((studies, rule.rounds * (1 + rule.finalists)))
    noise = np.maximum(0.1, 1 + level * launches).tolist()
    return sum(simulation.finals(line, gains, rule)[0] == word for line in noise) / studies


@pytest.mark.parametrize(("level", "rounds", "studies"), [(0.002, 8, 500), (0.02, 6, 700)])
def test_the_smallest_gain_is_shipped_as_often_as_is_said(level, rounds, studies):
    found = foreseen(level, rounds=rounds, finalists=1)
    rule = Rule(min_gain=0.01, rounds=rounds)
    assert shipped(level, found.smallest, rule, studies) == pytest.approx(found.power, abs=0.06)
    assert shipped(level, (0.01 + found.smallest) / 2, rule, studies) < found.power - 0.15


def test_the_rounds_that_are_named_show_what_they_should():
    found = foreseen(0.005, finalists=1)
    assert found.rounds_needed is not None
    rule = Rule(min_gain=0.01, rounds=found.rounds_needed)
    assert shipped(0.005, found.wanted, rule, 500) >= found.power - 0.06
    assert shipped(0.005, 0.0, rule, 500, word="keep-default") >= found.power
    fewer = Rule(min_gain=0.01, rounds=found.rounds_needed // 2)
    assert shipped(0.005, found.wanted, fewer, 500) < found.power - 0.15


@pytest.mark.parametrize(("relative", "asked"), [(0.012, 0.01), (0.004, 0.002), (0.05, 0.02)])
def test_each_way_out_that_is_named_is_one(relative, asked):
    found = foreseen(relative, min_gain=asked)
    assert found.falls_short
    assert not foreseen(relative, min_gain=asked, rounds=found.rounds_needed).falls_short
    assert not foreseen(0.999 * found.quieter, min_gain=asked).falls_short
    assert foreseen(1.001 * found.quieter, min_gain=asked).falls_short
    typed = reach.warning(found).partition("--min-gain ")[2].partition("%")[0]
    assert not foreseen(relative, min_gain=float(typed) / 100).falls_short
    assert foreseen(relative, min_gain=0.98 * found.farther).falls_short


def test_a_quiet_machine_is_told_what_it_can_show_and_what_that_costs():
    found = foreseen(0.005)
    assert found.sentences == (
        "20 fresh rounds can show gains from about 1.8 % on (1.5 % to 3.2 %: 3 launches tell the noise only roughly)",
        "to show 2 % where more than 1 % is asked for: 16 rounds, 64 launches of 12 s, about 13 min",
    )
    assert (found.launches_needed, found.seconds_needed) == (64, 768.0)
    assert reach.warning(found) == ""


def test_a_noisy_machine_is_warned_with_what_to_do():
    found = foreseen(0.012)
    assert reach.warning(found) == (
        "this study cannot be expected to show a gain of 2 %; what would let it: --rounds 60, or --min-gain 1.9%, "
        "or a machine whose launches differ by 0.63 %"
    )


def test_a_machine_that_can_show_nothing_is_not_told_numbers_that_mean_nothing():
    found = foreseen(2.13, n=2, rounds=6, finalists=1)
    assert found.sentences == (
        "6 fresh rounds can show no gain below 100 % at this noise",
        "to show 2 % where more than 1 % is asked for: more than 500 rounds",
    )
    assert reach.warning(found).endswith("what would let it: a machine whose launches differ by 0.29 %")


def test_one_launch_says_nothing_of_the_noise():
    found = foreseen(0.0, n=1)
    assert found.sentences == ("what the study can show is not known: 1 launch says nothing of the noise",)
    assert (found.smallest, found.rounds_needed, found.falls_short) == (None, None, None)
    assert reach.warning(found) == ""


def test_launches_that_do_not_differ_show_any_gain():
    found = foreseen(0.0)
    assert found.smallest == pytest.approx(0.01)
    assert found.sentences[0] == "3 launches did not differ: any gain above 1 % can be shown"
    assert found.falls_short is False


@pytest.mark.parametrize("rounds", [0, 1, 2])
def test_too_few_rounds_show_nothing(rounds):
    found = foreseen(0.001, rounds=rounds)
    assert found.sentences[0] == f"{rounds} fresh rounds are too few to show any gain"
    assert found.falls_short is True
    assert "--rounds" in reach.warning(found)


@settings(deadline=None)  # the first call imports scipy
@given(
    relative=st.floats(0, 1e6),
    n=st.integers(1, 12),
    min_gain=st.floats(1e-4, 10),
    rounds=st.integers(0, 60),
    finalists=st.integers(1, 5),
)
def test_any_study_gets_numbers_that_a_ledger_can_hold(relative, n, min_gain, rounds, finalists):
    found = foreseen(relative, n=n, min_gain=min_gain, rounds=rounds, finalists=finalists)
    json.dumps(found.model_dump(mode="json"), allow_nan=False)
    assert found.sentences
    assert type(found).model_validate_json(found.model_dump_json()) == found
    if found.likely is not None:
        low, high = found.likely
        assert low <= found.smallest <= high
        assert bool(reach.warning(found)) == found.falls_short


@pytest.mark.parametrize("rounds", [3, 4, 7, 20, 60])
def test_what_can_be_detected_shrinks_with_rounds_and_grows_with_the_noise(rounds):
    now = detectable(0.01, rounds, 0.001, 0.8)
    assert detectable(0.01, rounds + 2, 0.001, 0.8) < now < detectable(0.02, rounds, 0.001, 0.8)
    assert detectable(0.02, rounds, 0.001, 0.8) == pytest.approx(2 * now)
    assert detectable(0.01, rounds, 0.001, 0.5) < now < detectable(0.01, rounds, 0.0001, 0.8)


def test_many_rounds_need_what_the_normal_distribution_says():
    error = 0.01 / math.sqrt(4000)
    assert detectable(0.01, 4000, 0.005, 0.8) == pytest.approx((2.5758 + 0.8416) * error, rel=0.01)


def test_the_range_of_a_spread_is_that_of_its_chi_squared_distribution():
    low, high = spread_range(1.0, 2.0, 0.8)
    mean_of_root = math.sqrt(math.pi) / 2  # of a standard deviation with two degrees of freedom
    assert low == pytest.approx(mean_of_root * math.sqrt(2 / 4.6052), rel=1e-4)
    assert high == pytest.approx(mean_of_root * math.sqrt(2 / 0.21072), rel=1e-4)
