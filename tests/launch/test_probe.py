"""The probe under a real torchrun: what is sound, what lies and what hangs, each by its name."""

import os
from pathlib import Path

import pytest

from nccltune import probe, probe_faults
from nccltune.machine.facts import Facts
from nccltune.machine.library import TorchFacts
from nccltune.records import Measurement, Placement
from nccltune.trial.runner import LaunchRunner

pytestmark = pytest.mark.launch

CPU = Facts(torch=TorchFacts(version="2.6.0+cpu", path="/t"))
THREE = Placement(nproc_per_node=3)


class Kept:
    """The real runner, with its outcomes kept."""

    def __init__(self, runner):
        self.runner, self.requests, self.outcomes = runner, [], []

    def run(self, request):
        self.requests.append(request)
        self.outcomes.append(self.runner.run(request))
        return self.outcomes[-1]


def run(placement, *, package="nccltune.workloads", **more):
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    kept = []

    def make(folder):
        kept.append(Kept(LaunchRunner(folder, environ=environ, package=package)))
        return kept[0]

    return probe.run(CPU, placement, environ, lambda: False, make_runner=make, **more), kept[0]


def test_one_launch_tries_all_ranks_and_their_pair():
    found, runner = run(Placement())
    assert [(part.name, part.state) for part in found.parts] == [("world", "right"), ("0-1", "right")]
    assert all(part.gbytes_per_s > 0 for part in found.parts)
    assert len(runner.outcomes) == 1
    outcome = runner.outcomes[0]
    assert isinstance(outcome, Measurement)
    assert outcome.metrics["pair_0_1_gbytes_per_s"] == pytest.approx(found.pairs[0].gbytes_per_s)
    assert probe_faults.faults(found, CPU, Placement()) == []
    assert not Path(runner.requests[0].options["report"]).exists(), "nothing stays behind"


def test_a_pair_that_lies_and_one_that_hangs_are_named_and_the_others_are_still_tried():
    found, runner = run(THREE, package="planted_probe", patience_s=8.0)
    assert {part.name: part.state for part in found.parts} == {
        "world": "right", "0-1": "hangs", "0-2": "wrong", "1-2": "right"}  # fmt: skip
    assert "first at 77" in found.pairs[1].detail
    assert found.failure is None
    faults = probe_faults.faults(found, CPU, THREE)
    assert [fault.name for fault in faults] == ["pair_hangs", "pair_wrong_data"]
    assert faults[0].what == "Ranks 0 and 1 hang when they talk to each other: no answer within 8 s"
    assert [request.options["world"] for request in runner.requests] == [True, False], (
        "what is known is not tried again"
    )
    assert runner.requests[1].options["pairs"] == [[0, 2], [1, 2]]
