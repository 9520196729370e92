"""Workloads under a real torchrun on gloo: right results, and every kind of failure told as what it is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nccltune.records import Candidate, Limits, Request, ResultFile, Steps

pytestmark = pytest.mark.launch

PLANTED = str(Path(__file__).with_name("planted.py"))
SHORT = Steps(warmup_min=2, warmup_max=6, warmup_s=0.0, timed_min=4, timed_max=8, block=4)


@dataclass
class Ended:
    status: int
    result: ResultFile | None
    errors: list[dict[str, Any]]
    log: str
    heartbeat: dict[str, Any]


def start(folder: Path, target: list[str], seen: dict[str, str] | None = None, **fields: Any) -> subprocess.Popen[str]:
    request = Request(
        **{
            "study": "s", "launch_id": "l", "token": "tok", "workload": "w", "backend": "gloo", "steps": SHORT,
            "limits": Limits(startup_s=60, no_progress_s=60), **fields,
        }
    )  # fmt: skip
    (folder / "request.json").write_text(request.model_dump_json())
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("NCCL_", "PET_"))}
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"),
            *(f"--log-dir={folder / 'torchelastic'}", *target),
            *("--request", str(folder / "request.json"), "--result", str(folder / "result.json")),
        ],
        env={**inherited, "OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "3",
             **(request.environment if seen is None else seen)},
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def launch(folder: Path, target: list[str], seen: dict[str, str] | None = None, **fields: Any) -> Ended:
    with start(folder, target, seen, **fields) as process:
        try:
            log, _ = process.communicate(timeout=100)
        finally:
            process.kill()
    result = folder / "result.json"
    return Ended(
        process.returncode,
        ResultFile.model_validate_json(result.read_text()) if result.exists() else None,
        [json.loads(path.read_text()) for path in (folder / "torchelastic").rglob("error.json")],
        log,
        json.loads((folder / "heartbeat").read_text()),
    )


def failed(ended: Ended) -> tuple[str | None, str]:
    assert ended.status == 1
    assert ended.result is not None, ended.log[-2000:]
    assert ended.result.status == "failed"
    assert ended.errors, "@record leaves an error file too"
    assert ended.heartbeat["phase"] != "end"
    return ended.result.failure, ended.result.detail


def test_all_reduce_of_a_mix_is_measured_checked_and_profiled(tmp_path: Path) -> None:
    environment = {"OMP_NUM_THREADS": "1", "NCCL_ALGO": "allreduce:ring"}
    ended = launch(
        tmp_path,
        ["-m", "nccltune.workloads.allreduce"],
        environment=environment,
        options={"sizes": [[1 << 18, 2], [1 << 12, 3]], "dtype": "fp32"},
        candidate=Candidate(settings={"OMP_NUM_THREADS": "1"}),
        steps=SHORT.model_copy(update={"profiled": 2}),
        per_rank_env={"0": {"NCCL_HOSTID": "a"}, "1": {"NCCL_HOSTID": "b"}},
    )

    assert ended.status == 0, ended.log[-2000:]
    assert ended.result is not None
    found = ended.result.measurement
    assert found is not None
    assert 4 <= len(found.step_times_us) <= 8
    assert found.clock == "host"
    assert found.warmup_steps >= 3
    assert 2 * found.size_times_us["262144"] + 3 * found.size_times_us["4096"] == pytest.approx(
        found.median_us, rel=0.5
    )
    assert found.metrics["bus_bandwidth_gbytes_per_s_262144"] == pytest.approx(
        262144 / found.size_times_us["262144"] / 1e3
    )
    assert found.checks.cases > 0
    assert found.checks.failures == ()
    assert found.communication is not None
    assert found.communication.source == "gloo"
    assert 0.2 < found.communication.share <= 1
    assert found.communication.transfer_us is not None
    assert [rank.echo.get("NCCL_HOSTID") for rank in found.ranks] == ["a", "b"]
    assert found.ranks[1].echo["NCCL_ALGO"] == "allreduce:ring"
    assert {"start", "import", "group", "build", "warmup", "timed", "profiled", "check"} <= set(found.parts_s)
    assert ended.heartbeat["phase"] == "end"
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")], "nothing half-written is left"


def test_resnet_trains_and_overlaps_its_communication(tmp_path: Path) -> None:
    steps = Steps(warmup_min=1, warmup_max=1, warmup_s=0.0, timed_min=2, timed_max=2, block=2, profiled=1)
    ended = launch(tmp_path, ["-m", "nccltune.workloads.resnet"], steps=steps)

    assert ended.status == 0, ended.log[-2000:]
    assert ended.result is not None
    found = ended.result.measurement
    assert found is not None
    assert found.metrics["images_per_s"] == pytest.approx(2 / found.median_us * 1e6)
    assert found.communication is not None
    assert found.communication.overlapped_us > 0
    assert found.communication.compute_us > 0
    assert any("not flat" in warning for warning in found.warnings)


def test_an_environment_that_differs_is_named_before_anything_runs(tmp_path: Path) -> None:
    ended = launch(
        tmp_path,
        ["-m", "nccltune.workloads.allreduce"],
        seen={"NCCL_MAX_NCHANNELS": "4"},
        candidate=Candidate(settings={"NCCL_MAX_NCHANNELS": "8"}),
    )

    name, detail = failed(ended)
    assert name == "environment_changed"
    assert detail.startswith("NCCL_MAX_NCHANNELS: rank")
    assert "sees '4', the request asks for '8'" in detail
    assert ended.heartbeat["phase"] == "import"


def test_a_step_that_raises_on_one_rank_is_the_workloads_fault(tmp_path: Path) -> None:
    name, detail = failed(launch(tmp_path, [PLANTED], options={"fault": "raises"}))

    assert name == "workload_error"
    assert detail == "rank 1, warmup: KeyError: 'layer\\nnot found'"


def test_a_wrong_sum_on_one_rank_is_wrong_data(tmp_path: Path) -> None:
    name, detail = failed(launch(tmp_path, [PLANTED], options={"fault": "wrong sum"}))

    assert name == "wrong_data"
    assert detail.startswith("all_reduce fp32 12340 bytes, rank 1, repeat 0: 1 of 3085 elements wrong, first at 777")


def test_ranks_with_different_collectives_end_within_our_own_limit(tmp_path: Path) -> None:
    began = time.monotonic()
    limits = Limits(startup_s=15, no_progress_s=15)
    ended = launch(tmp_path, [PLANTED], options={"fault": "one more"}, limits=limits)

    assert ended.status == 1
    assert ended.result is None, "whose fault a hang is must be read from error file and log"
    assert ended.errors
    assert time.monotonic() - began < 90


def test_workers_die_with_their_agent(tmp_path: Path) -> None:
    with start(tmp_path, [PLANTED], options={"fault": "sleeps"}) as process:
        try:
            workers = _wait_for_workers(process.pid, tmp_path)
            os.kill(process.pid, signal.SIGKILL)
            deadline = time.monotonic() + 10
            while any(_alive(pid) for pid in workers) and time.monotonic() < deadline:
                time.sleep(0.05)
            assert not [pid for pid in workers if _alive(pid)]
        finally:
            process.kill()


def _wait_for_workers(agent: int, folder: Path) -> list[int]:
    deadline = time.monotonic() + 60
    heartbeat = folder / "heartbeat"
    while time.monotonic() < deadline:
        if heartbeat.exists() and json.loads(heartbeat.read_text())["phase"] == "warmup":
            children = Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
            assert len(children) == 2
            return [int(pid) for pid in children]
        time.sleep(0.1)
    raise AssertionError("the workers never came up")


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
