"""The launch that looks for a batch size, under a real torchrun on gloo."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from fakes import request

from nccltune.records import BatchChoice, Ladder, Limits, Measurement, Outcome, Placement, Steps
from nccltune.trial import launch
from nccltune.trial.runner import LaunchRunner

pytestmark = pytest.mark.launch

STEPS = Steps(warmup_min=2, warmup_max=4, warmup_s=0.0, timed_min=3, timed_max=3, block=3)


def climb(folder: Path, ladder: Ladder, package: str = launch.WORKLOADS, **fields: Any) -> Outcome:
    asked = request(
        "0000-batch",
        ladder=ladder,
        steps=STEPS,
        limits=Limits(startup_s=60, no_progress_s=60, grace_s=5, shutdown_s=1),
        placement=Placement(nproc_per_node=2),
        **fields,
    )
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    return LaunchRunner(folder, environ=environ, package=package).run(asked)


def batches(outcome: Outcome) -> BatchChoice:
    assert isinstance(outcome, Measurement), outcome
    assert outcome.batches is not None
    return outcome.batches


def test_on_a_cpu_nothing_tells_how_idle_it_is_and_the_first_batch_stays(tmp_path: Path) -> None:
    found = climb(tmp_path, Ladder(first=2), workload="transformer", options={"batch_size": "auto", "sequence": 8})

    assert batches(found).reason == "not measured"
    (only,) = batches(found).tries
    assert (only.batch_size, only.idle_share, only.memory_bytes) == (2, None, None)
    assert only.step_us is not None


def test_a_rank_without_memory_ends_the_search_with_the_largest_batch_that_fitted(tmp_path: Path) -> None:
    """Rank 0 waits for the other one in backward, for good; an earlier size that is not freed would fail the build."""
    found = climb(
        tmp_path,
        Ladder(first=1, idle_share=-1.0),
        "scripted_workloads",
        workload="batches",
        options={"batch_size": 64, "too_large": 8},
    )

    choice = batches(found)
    assert isinstance(found, Measurement)
    assert "the launcher ended with status 1 after the result was written" in found.warnings, "not the limit of silence"
    assert (choice.batch_size, choice.reason) == (4, "out of memory")
    assert [(each.batch_size, each.step_us is not None) for each in choice.tries] == [
        (1, True), (2, True), (4, True), (8, False),
    ]  # fmt: skip
