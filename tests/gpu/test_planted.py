"""A step that is made 2 % slower on real GPUs is found with five launches a side.

Needs two GPUs; some three minutes. With ``NCCLTUNE_GPU_RECORD=DIR`` the numbers are left in
``DIR/planted-slowdown.json``. How often it is found under the noise of real launches is simulated in
``tests/simulation/test_planted.py``.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
import os
import statistics
import time
from pathlib import Path

import pytest
from fakes import request

from nccltune.machine import facts as machine
from nccltune.records import DEFAULT, Candidate, Launch, Limits, Measurement, Placement, Steps
from nccltune.trial import environment
from nccltune.trial.runner import LaunchRunner
from nccltune.verdict import rounds
from nccltune.verdict.sequence import of_gain

FACTS = machine.gather(os.environ)
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(420),
    pytest.mark.skipif(FACTS.backend != "nccl" or len(FACTS.gpus) < 2, reason="needs two GPUs and a torch with NCCL"),
]

HERE = Path(__file__).parent
SLOWDOWN = 0.02
SLOWED = Candidate(settings={"PLANTED_SLOWDOWN": str(SLOWDOWN)})
ROUNDS = 5
CONFIDENCE = 0.99
STEPS = Steps(warmup_min=10, warmup_max=40, warmup_s=0.5, timed_min=30, timed_max=30, block=10, timed_s=5.0)


def launched(candidate: Candidate, number: int, place: int, runner: LaunchRunner) -> Launch:
    """One fresh launch of a round, as the finals make it."""
    name, began = f"{2 * (number - 1) + place:04d}-confirm", time.monotonic()
    wanted = request(
        name,
        candidate.settings,
        workload="slowed",
        backend="nccl",
        placement=Placement(nproc_per_node=2),
        steps=STEPS,
        limits=Limits(startup_s=120, no_progress_s=60),
    )
    outcome = runner.run(environment.complete(wanted, FACTS.inherited, os.environ))
    assert isinstance(outcome, Measurement), outcome
    return Launch(
        launch_id=name,
        purpose="confirm",
        candidate=candidate,
        round=number,
        started_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
        wall_s=time.monotonic() - began,
        folder=f"launches/{name}",
        outcome=outcome,
    )


def numbers(launches: list[Launch]) -> dict[str, object]:
    """What the launches showed, as plain data."""
    pairs = tuple(rounds.pairs(launches, SLOWED).values())
    found = of_gain(pairs)
    assert found is not None
    low, high = -found.upper(1 - CONFIDENCE), -found.lower(1 - CONFIDENCE)
    return {
        "planted": SLOWDOWN,
        "slowdown": math.expm1(-found.mean),
        "one_sided_99_bounds": [math.expm1(low), math.expm1(high)],
        "estimate": dataclasses.asdict(found),
        "machine": machine.fingerprint(FACTS),
        "launches": [
            {
                "id": launch.launch_id,
                "settings": launch.candidate.settings,
                "median_us": launch.outcome.median_us,
                "relative_deviation": statistics.stdev(launch.outcome.step_times_us) / launch.outcome.median_us,
                "steps": len(launch.outcome.step_times_us),
                "metrics": launch.outcome.metrics,
                "warnings": launch.outcome.warnings,
                "wall_s": launch.wall_s,
            }
            for launch in launches
            if isinstance(launch.outcome, Measurement)
        ],
    }


def test_a_step_that_is_two_percent_slower_is_found_with_five_launches_a_side(tmp_path):
    paths = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    runner = LaunchRunner(tmp_path, package="planted_workloads", environ=environ)
    launches = [
        launched(candidate, number, place, runner)
        for number in range(1, ROUNDS + 1)
        for place, candidate in enumerate(rounds.order(number, (SLOWED,)))
    ]
    found = numbers(launches)
    if folder := os.environ.get("NCCLTUNE_GPU_RECORD"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / "planted-slowdown.json").write_text(json.dumps(found, indent=1))

    assert sum(launch.candidate == DEFAULT for launch in launches) == ROUNDS
    assert found["one_sided_99_bounds"][0] > 0, found
    assert 0.5 * SLOWDOWN < found["slowdown"] < 1.5 * SLOWDOWN, found
