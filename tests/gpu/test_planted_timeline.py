"""The profiled window says of a planted timeline what CUDA events say of it. Needs two GPUs or more."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from fakes import request

from nccltune.machine import facts as machine
from nccltune.records import Measurement, Steps
from nccltune.trial import environment
from nccltune.trial.runner import LaunchRunner

FACTS = machine.gather(os.environ)
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(180),
    pytest.mark.skipif(FACTS.backend != "nccl" or len(FACTS.gpus) < 2, reason="needs two GPUs and a torch with NCCL"),
]
STEPS = Steps(warmup_min=5, warmup_max=10, timed_min=20, timed_max=20, block=20, profiled=8)


def test_each_share_of_a_planted_timeline_is_within_two_per_cent(tmp_path: Path) -> None:
    asked = request("0000-search", workload="sleeps", backend="nccl", steps=STEPS)
    asked = environment.complete(asked, FACTS.inherited, os.environ)
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]),
    }

    outcome = LaunchRunner(tmp_path, environ=environ, package="planted_workloads").run(asked)

    assert isinstance(outcome, Measurement), outcome
    found, true = outcome.communication, outcome.metrics
    assert found is not None
    pairs = {
        "communication": (found.busy_us, true["true_communication_us"]),
        "compute": (found.compute_us, true["true_compute_us"]),
        "overlapped": (found.overlapped_us, true["true_overlapped_us"]),
        "exposed": (found.exposed_us, true["true_communication_us"] - true["true_overlapped_us"]),
        "idle": (found.idle_us, true["true_idle_us"]),
    }
    assert found.steps == STEPS.profiled
    assert found.step_us == pytest.approx(true["true_step_us"], rel=0.01)
    if folder := os.environ.get("NCCLTUNE_RECORDINGS"):
        (Path(folder) / "planted_timeline.json").write_text(
            json.dumps({**pairs, "step": (found.step_us, true["true_step_us"])}, indent=1)
        )
    print(pairs)
    for name, (measured_us, true_us) in pairs.items():
        assert measured_us / found.step_us == pytest.approx(true_us / true["true_step_us"], rel=0.02), (name, pairs)
