"""What every runner must do, whatever is behind it.

A runner joins by a factory of ``Subject``. Requests are small; ``failing`` makes the candidate's own launch fail.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from fakes import FakeRunner, failure, request

from nccltune.errors import Interrupted
from nccltune.records import DEFAULT, Candidate, Failure, Limits, Measurement, Request, Steps
from nccltune.trial import process
from nccltune.trial.runner import LaunchRunner, Runner

SLOWER = Candidate(settings={"OMP_NUM_THREADS": "2"})
LIMITS = Limits(startup_s=90, no_progress_s=30, total_s=110)
LAUNCHES = Path(__file__).parents[1] / "launch"


@dataclass
class Subject:
    """A runner and what it can be asked."""

    make: Callable[..., Runner]
    fields: dict[str, object]
    failing: dict[str, object]

    def request(self, launch_id: str, candidate: Candidate = DEFAULT, *, failing: bool = False) -> Request:
        fields = {"candidate": candidate, "token": secrets.token_hex(8), "limits": LIMITS} | self.fields
        return request(launch_id, **fields | (self.failing if failing else {}))


def fake(_folder: Path) -> Subject:
    bad = Candidate(settings={"OMP_NUM_THREADS": "0"})
    return Subject(
        make=lambda stop=lambda: False: FakeRunner(outcomes={bad.key: failure()}, stop=stop),
        fields={},
        failing={"candidate": bad},
    )


def scripted(folder: Path) -> Subject:
    """The real runner, guardian and processes; a launcher and a workload that need no torch."""
    quick = folder / "quick"
    quick.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{LAUNCHES / "quick_torchrun.py"}" "$@"\n')
    quick.chmod(0o755)
    environ = {**os.environ, "PYTHONPATH": str(LAUNCHES)}

    def make(stop=lambda: False):
        return LaunchRunner(folder, stop, environ=environ, python=str(quick), package="scripted_workloads")

    return Subject(
        make=make,
        fields={"workload": "act", "options": {"act": "ok"}},
        failing={"options": {"act": "raise"}},
    )


def real(folder: Path) -> Subject:
    """Everything real: torchrun, gloo, the all-reduce workload."""
    return Subject(
        make=lambda stop=lambda: False: LaunchRunner(folder, stop),
        fields={
            "options": {"sizes": [[4096, 1]], "dtype": "fp32"},
            "steps": Steps(warmup_min=2, warmup_max=4, timed_min=4, timed_max=4, block=4),
        },
        failing={"options": {"sizes": "none"}},
    )


@pytest.fixture(params=[fake, scripted], ids=lambda factory: factory.__name__)
def subject(request, tmp_path):
    return request.param(tmp_path)


@pytest.fixture(params=[fake, scripted, pytest.param(real, marks=pytest.mark.launch)], ids=lambda f: f.__name__)
def any_subject(request, tmp_path):
    return request.param(tmp_path)


def test_a_launch_gives_a_measurement_whose_ranks_saw_the_candidate(any_subject):
    asked = any_subject.request("0000-search", SLOWER)
    outcome = any_subject.make().run(asked)
    assert isinstance(outcome, Measurement), outcome
    assert outcome.median_us > 0
    assert [report.rank for report in outcome.ranks] == [0, 1]
    for report in outcome.ranks:
        assert report.echo["OMP_NUM_THREADS"] == "2"
    assert outcome.parts_s["start"] > 0
    assert Measurement.model_validate_json(outcome.model_dump_json()) == outcome
    assert not list(process.holders([asked.token]))


def test_a_candidate_that_fails_is_a_value(any_subject):
    asked = any_subject.request("0000-search", failing=True)
    outcome = any_subject.make().run(asked)
    assert isinstance(outcome, Failure)
    assert outcome.name
    assert outcome.message
    assert not list(process.holders([asked.token]))


def test_the_same_candidate_is_measured_again_under_another_launch_id(subject):
    runner = subject.make()
    first = runner.run(subject.request("0000-search", SLOWER))
    second = runner.run(subject.request("0001-repeat", SLOWER))
    assert isinstance(first, Measurement)
    assert isinstance(second, Measurement)


def test_a_launch_that_has_its_result_is_not_run_again(subject):
    runner = subject.make()
    first = runner.run(subject.request("0000-search"))
    again = runner.run(subject.request("0000-search"))
    assert again.step_times_us == first.step_times_us
    assert again.ranks == first.ranks


def test_a_failed_launch_is_run_again(subject):
    runner = subject.make()
    assert isinstance(runner.run(subject.request("0000-search", failing=True)), Failure)
    assert isinstance(runner.run(subject.request("0000-search")), Measurement)


def test_a_wish_to_stop_raises_and_starts_nothing(subject):
    asked = subject.request("0000-search")
    with pytest.raises(Interrupted):
        subject.make(stop=lambda: True).run(asked)
    assert not list(process.holders([asked.token]))


def test_the_request_stays_as_it_was(subject):
    asked = subject.request("0000-search", SLOWER)
    before = asked.model_dump()
    subject.make().run(asked)
    assert asked.model_dump() == before
