"""The harness reads and writes plain JSON; here both ends of it meet the models, field by field."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from nccltune import records
from nccltune.workloads import request as harness
from nccltune.workloads import result, timeline
from nccltune.workloads.failure import WorkloadFailure, WrongData
from nccltune.workloads.trace import RankTrace, StepTimes

REQUEST = records.Request(
    study="s",
    launch_id="t1-a1",
    token="0f",
    workload="allreduce",
    options={"sizes": [[1024, 3]], "dtype": "bf16", "deep": {"a": [None, True, 1.5]}},
    backend="gloo",
    candidate=records.Candidate(settings={"OMP_NUM_THREADS": "2"}),
    environment={"OMP_NUM_THREADS": "2", "NCCL_X": "1"},
    per_rank_env={"1": {"NCCL_Y": "b"}},
    placement=records.Placement(
        nnodes=2, nproc_per_node=3, emulated_nodes=4, launch_prefix=("srun", "-N2"), rendezvous_host="h"
    ),
    steps=records.Steps(
        warmup_min=1,
        warmup_max=2,
        warmup_s=0.5,
        timed_min=3,
        timed_max=4,
        block=5,
        relative_error=0.1,
        timed_s=6,
        profiled=7,
    ),
    limits=records.Limits(startup_s=1, no_progress_s=2, total_s=3, grace_s=4, shutdown_s=5),
    ladder=records.Ladder(first=8, last=64, idle_share=0.1, memory_share=0.5),
    checks=False,
    log_choices=True,
    seed=9,
)


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(dataclasses.asdict(value)))


def test_every_field_of_a_request_arrives() -> None:
    sent = json.loads(REQUEST.model_dump_json())
    default = json.loads(
        records.Request(study="", launch_id="", token="", workload="", backend="nccl").model_dump_json()
    )
    same = [name for name in sent if sent[name] == default[name] and name != "schema_version"]
    assert not same, "each field must differ from its default here, else its way is not tested"

    assert _plain(harness.parse(sent)) == sent


@pytest.mark.parametrize("name", ["Steps", "Limits", "Ladder", "Placement", "Request"])
def test_defaults_are_the_same_on_both_sides(name: str) -> None:
    needed = (
        {"study": "s", "launch_id": "l", "token": "t", "workload": "w", "backend": "nccl"} if name == "Request" else {}
    )

    ours = json.loads(getattr(records, name)(**needed).model_dump_json())

    assert _plain(getattr(harness, name)(**needed)) == ours


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"schema_version": 2}, "schema_version"),
        ({"surprise": 1}, "surprise: unknown"),
        ({"steps": {"block": "ten"}}, "steps.block"),
        ({"steps": {"blok": 1}}, "steps.blok: unknown"),
        ({"limits": 3}, "limits"),
        ({"per_rank_env": {"0": {"NCCL_Y": 1}}}, "per_rank_env.0.NCCL_Y"),
        ({"placement": {"launch_prefix": "srun"}}, "placement.launch_prefix"),
        ({"checks": 1}, "checks"),
        ({"seed": True}, "seed"),
    ],
)
def test_a_bad_field_is_named_with_its_path(change: dict[str, Any], path: str) -> None:
    document = {**json.loads(REQUEST.model_dump_json()), **change}

    with pytest.raises(harness.RequestError, match=f"^{path}"):
        harness.parse(document)


def test_a_missing_field_and_a_broken_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(harness.RequestError, match="token: missing"):
        harness.parse({"study": "s", "launch_id": "l"})
    path = tmp_path / "request.json"
    path.write_text('{"study": ')
    with pytest.raises(harness.RequestError, match=r"request\.json"):
        harness.read(path)


def test_a_failed_result_is_a_result_file_and_the_first_one_stays(tmp_path: Path) -> None:
    path = tmp_path / "result.json"

    result.failed(path, "tok", WrongData("all_reduce:\n 3 elements"))
    result.failed(path, "tok", WorkloadFailure("an echo of it"))

    read = records.ResultFile.model_validate_json(path.read_text())
    assert (read.status, read.failure, read.detail, read.token) == (
        "failed",
        "wrong_data",
        "all_reduce: 3 elements",
        "tok",
    )
    assert [each.name for each in tmp_path.iterdir()] == ["result.json"]


def test_a_result_that_is_no_number_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        result.measured(tmp_path / "result.json", "tok", {"step_times_us": [float("nan")]})

    assert not (tmp_path / "result.json").exists()


def test_communication_has_exactly_the_fields_of_the_record() -> None:
    step = StepTimes(1, 100.0, 40.0, 50.0, 10.0, 20.0, 0.0, ((1.0, 41.0),))
    ranks = [RankTrace(rank, "nccl", "cuda", (step,), 0, 0, 1, 0) for rank in (0, 1)]

    found = timeline.communication(ranks, untraced_step_us=80.0)

    assert found is not None
    assert set(found) == set(records.Communication.model_fields)
    assert records.Communication.model_validate(found).inflation == 1.25


def test_a_rank_trace_survives_json() -> None:
    step = StepTimes(1, 100.0, 40.0, 50.0, 10.0, 20.0, 0.0, ((1.0, 41.0),))
    trace = RankTrace(0, None, "gloo", (step, step), 1, 2, 3, 4)

    assert RankTrace.from_plain(json.loads(json.dumps(trace.to_plain()))) == trace
