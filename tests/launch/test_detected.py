"""Faults that are planted into real launches on gloo are recognised, and named by their rank or setting."""

from __future__ import annotations

import json
import secrets
from pathlib import Path

import pytest
from fakes import request

from nccltune import cli
from nccltune.records import Failure, Limits, Measurement, Placement, Steps
from nccltune.study.entries import NEVER_AGAIN
from nccltune.study.ledger import Ledger

pytestmark = [pytest.mark.launch, pytest.mark.timeout(300)]

SHORT = Steps(warmup_min=2, warmup_max=6, warmup_s=0.0, timed_min=20, timed_max=20, block=10, profiled=4)


def straggling(launches, culprit: int | None) -> Measurement:
    """Launch three ranks, one of which may be slow."""
    token = secrets.token_hex(8)
    launches.tokens.append(token)
    outcome = launches.runner(real=True).run(
        request(
            workload="straggling",
            options={"work_s": 0.03, "culprit": -1 if culprit is None else culprit},
            token=token,
            steps=SHORT,
            limits=Limits(startup_s=60, no_progress_s=60),
            placement=Placement(nproc_per_node=3),
            checks=False,
        )
    )
    launches.nobody_left()
    assert isinstance(outcome, Measurement), outcome
    return outcome


@pytest.mark.parametrize("culprit", [0, 1, 2])
def test_a_rank_that_is_late_by_half_a_step_is_named(launches, culprit):
    """All ranks have the same step time, the longest; who keeps the others waiting shows in the profiled window."""
    found = straggling(launches, culprit)

    accused = [warning for warning in found.warnings if "arrived last" in warning]
    assert len(accused) == 1
    assert f"rank {culprit} arrived last in most collectives" in accused[0]
    assert found.communication is not None
    assert found.communication.waiting_us > 0.1 * found.median_us


def test_ranks_that_are_equally_fast_accuse_nobody(launches):
    found = straggling(launches, None)

    assert not [warning for warning in found.warnings if warning.startswith("rank")]
    assert not [warning for warning in found.warnings if "drifted" in warning or "late steps" in warning]


JOB = """
import os
import time

import torch
from torch import distributed

THREADS = os.environ.get("OMP_NUM_THREADS")


def make(context):
    if THREADS == "2" and context.rank == 1:
        honest = distributed.all_reduce

        def lying(tensor, *given, **named):
            work = honest(tensor, *given, **named)
            if tensor.numel() > 50:
                tensor.view(-1)[17] += 1
            return work

        distributed.all_reduce = lying
    model = torch.nn.Linear(8, 8)
    took_s = 0.02 if THREADS == "2" else 0.06

    def step(model, batch):
        time.sleep(took_s)
        return model(batch).sum()

    return model, torch.zeros(4, 8), step
"""
SPACE = """
schema_version: 1
name: planted
backend: gloo
knobs:
  OMP_NUM_THREADS: [null, 2]
"""


def test_a_setting_that_gives_a_wrong_sum_is_never_launched_again_however_fast_it_is(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    Path("lying_job.py").write_text(JOB)
    Path("planted.yaml").write_text(SPACE)
    words = ["--workload", "lying_job:make", "--space", "planted.yaml", "--trials", "5", "--rounds", "4", "--no-mlflow"]

    assert cli.run([*words, "--json"]) == 0

    assert json.loads(capsys.readouterr().out)["verdict"]["word"] != "ship"
    (study,) = Path("runs").iterdir()
    with Ledger.open(study) as ledger:
        launched = [launch for launch in ledger.launches if launch.candidate.settings.get("OMP_NUM_THREADS") == "2"]
        (judged,) = [trial for trial in ledger.trials if trial.candidate.settings.get("OMP_NUM_THREADS") == "2"]
    assert len(launched) == 1
    assert isinstance(launched[0].outcome, Failure)
    assert (launched[0].outcome.name, launched[0].outcome.blame) == ("wrong_data", "candidate")
    assert judged.constraint >= NEVER_AGAIN
