"""A whole study with 2, 3 and 8 ranks and on two emulated nodes of four, with a fake in the place of the hardware."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from fakes import FakeRunner

from nccltune import plan as plans
from nccltune import terminal, tune
from nccltune.errors import StudyMismatch
from nccltune.study.ledger import Ledger
from nccltune.trial.environment import HOSTID
from nccltune.verdict.guard import why_withheld
from nccltune.verdict.reading import read_profile

SPACE = """
schema_version: 1
name: tiny
backend: gloo
knobs:
  OMP_NUM_THREADS: [null, 2]
"""


def prepare(folder: Path, ranks: int, nodes: int, **more: object) -> plans.Plan:
    space = folder / "tiny.yaml"
    space.write_text(SPACE)
    words = {"workload": "resnet", "space": str(space), "trials": 2, "rounds": 4, "out": folder, "mlflow": False}
    environ = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    return plans.prepare(plans.Options(**words, nproc=ranks, emulate_nodes=nodes, **more), environ)


def run(plan: plans.Plan, runner: FakeRunner) -> tune.Conclusion:
    return tune.run(plan, terminal.Screen(plan), lambda: False, launcher=runner)


def half(candidate):
    return 1000.0 if candidate.is_default else 500.0


@pytest.fixture(scope="module")
def many_cores() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
        yield patch


@dataclass(frozen=True)
class Study:
    ranks: int
    nodes: int
    plan: plans.Plan
    runner: FakeRunner
    conclusion: tune.Conclusion


@pytest.fixture(scope="module", params=[(2, 0), (3, 0), (8, 0), (8, 2)], ids=["2-ranks", "3-ranks", "8-ranks", "2x4"])
def study(request, tmp_path_factory, many_cores) -> Study:
    """A study in which every launch takes a second."""
    (ranks, nodes), ticks, real = request.param, itertools.count(), tune.campaigns.Campaign
    plan, runner = prepare(tmp_path_factory.mktemp("study"), ranks, nodes), FakeRunner(half)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            tune.campaigns, "Campaign", lambda *given, **more: real(*given, **more, clock=lambda: float(next(ticks)))
        )
        return Study(ranks, nodes, plan, runner, run(plan, runner))


def test_a_gain_is_shipped_with_the_world_it_was_measured_in(study):
    assert study.conclusion.verdict.word == "ship", study.conclusion.verdict.sentence
    profile = read_profile(study.conclusion.profile_file)
    assert (profile.conditions["world size"], profile.emulated) == (str(study.ranks), study.nodes)
    assert study.plan.cluster == f"cpu-16core{f'-emulated{study.nodes}' if study.nodes else ''}"
    assert (why_withheld(profile) is not None) == bool(study.nodes), "emulated nodes are for study only"


def test_every_launch_is_of_all_ranks_and_each_rank_of_one_node(study):
    each = study.ranks // study.nodes if study.nodes else study.ranks
    wanted = [f"emulated-{rank // each}" if study.nodes else None for rank in range(study.ranks)]
    for request in study.runner.requests:
        assert request.placement.world_size == study.ranks
        assert [request.per_rank_env.get(str(rank), {}).get(HOSTID) for rank in range(study.ranks)] == wanted


def test_the_time_of_every_rank_is_in_the_account(study):
    walls_s = [launch.wall_s for launch in Ledger.open(study.plan.folder).launches]
    assert set(walls_s) == {1.0}
    assert study.conclusion.verdict.gpu_s == study.ranks * len(walls_s)


def test_another_number_of_ranks_or_nodes_is_another_study(tmp_path, many_cores):
    names = {prepare(tmp_path, *shape).study for shape in ((2, 0), (3, 0), (8, 0), (8, 2), (8, 4))}
    assert len(names) == 5
    run(prepare(tmp_path, 8, 0, study="mine"), FakeRunner(half))
    with pytest.raises(StudyMismatch, match="emulated_nodes"):
        run(prepare(tmp_path, 8, 2, study="mine"), FakeRunner(half))
