from __future__ import annotations

import json
from pathlib import Path

import pytest

from nccltune.workloads import environment, harness, parent, rank_facts
from nccltune.workloads.heartbeat import PHASES, Heartbeat
from nccltune.workloads.request import Candidate, Request


def request(**changes: object) -> Request:
    settings: dict[str, object] = {
        "study": "s", "launch_id": "l", "token": "t", "workload": "w", "backend": "nccl",
        "candidate": Candidate({"NCCL_ALGO": "allreduce:tree", "OMP_NUM_THREADS": "2"}),
        "environment": {"NCCL_ALGO": "allreduce:tree", "OMP_NUM_THREADS": "2", "NCCL_DEBUG": "INFO"},
        "per_rank_env": {"1": {"NCCL_HOSTID": "b"}},
        **changes,
    }  # fmt: skip
    return Request(**settings)  # type: ignore[arg-type]


SEEN = {"NCCL_ALGO": "allreduce:tree", "OMP_NUM_THREADS": "2", "NCCL_DEBUG": "INFO", "HOME": "/root", "SECRET": "x"}


def test_the_right_environment_passes_and_only_names_that_matter_are_echoed() -> None:
    assert environment.difference(request(), 0, SEEN) is None
    assert environment.echo(request(), 0, SEEN) == {
        "NCCL_ALGO": "allreduce:tree", "NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "2",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("rank", "change", "words"),
    [
        (0, {"NCCL_ALGO": "ring"}, "NCCL_ALGO: rank 0 sees 'ring', the request asks for 'allreduce:tree'"),
        (0, {"NCCL_ALGO": None}, "NCCL_ALGO: rank 0 sees nothing"),
        (0, {"OMP_NUM_THREADS": "1"}, "OMP_NUM_THREADS"),
        (0, {"NCCL_FOREIGN": "1"}, "NCCL_FOREIGN: rank 0 sees '1', the request asks for nothing"),
        (0, {"NCCL_HOSTID": "b"}, "NCCL_HOSTID"),
        (1, {}, "NCCL_HOSTID: rank 1 sees nothing, the request asks for 'b'"),
    ],
)
def test_a_difference_is_named(rank: int, change: dict[str, str | None], words: str) -> None:
    seen = {name: value for name, value in {**SEEN, **change}.items() if value is not None}

    found = environment.difference(request(), rank, seen)

    assert found is not None
    assert found.startswith(words)


def test_a_candidate_that_its_own_environment_contradicts_is_refused() -> None:
    found = environment.difference(request(candidate=Candidate({"NCCL_DEBUG": "WARN"})), 0, SEEN)

    assert found is not None
    assert found.startswith("NCCL_DEBUG: the candidate says 'WARN'")


def test_what_only_this_rank_gets_is_set_before_anything_is_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = tmp_path / "request.json"
    asked.write_text(
        json.dumps(
            {"study": "s", "launch_id": "l", "token": "t", "workload": "w", "backend": "nccl",
             "environment": {"NCCL_A": "1"}, "per_rank_env": {"1": {"NCCL_HOSTID": "b"}}}
        )
    )  # fmt: skip
    for name, value in {"RANK": "1", "NCCL_A": "1", "NCCL_HOSTID": "old"}.items():
        monkeypatch.setenv(name, value)
    for name in list(harness.os.environ):
        if name.startswith("NCCL_") and name not in ("NCCL_A", "NCCL_HOSTID"):
            monkeypatch.delenv(name)

    launch = harness.prepare(["--request", str(asked), "--result", str(tmp_path / "result.json")])

    assert launch.difference is None
    assert launch.echo == {"NCCL_A": "1", "NCCL_HOSTID": "b"}
    assert not (tmp_path / "heartbeat").exists(), "only rank 0 writes it"


def test_rank_0_tells_phase_and_step_and_keeps_the_time_of_each(tmp_path: Path) -> None:
    heartbeat = Heartbeat(tmp_path / "heartbeat", rank=0)
    for phase in PHASES:
        heartbeat.enter(phase)
    heartbeat.beat(7)

    said = json.loads((tmp_path / "heartbeat").read_text())

    assert (said["phase"], said["step"]) == ("end", 7)
    assert said["time"] > 1e9
    assert set(heartbeat.parts_s) == set(PHASES) - {"end"}


def test_a_full_disk_does_not_end_the_launch_at_the_heartbeat(tmp_path: Path) -> None:
    heartbeat = Heartbeat(tmp_path / "missing" / "heartbeat", rank=0)

    heartbeat.enter("import")

    assert heartbeat.phase == "import"


def test_the_mapped_library_is_found_among_the_maps() -> None:
    maps = (
        "7f00-7f01 r--p 00000000 08:01 12  /usr/lib/libc.so.6\n"
        "7f02-7f03 r-xp 00001000 08:01 13  /opt/v/nvidia/nccl/lib/libnccl.so.2\n"
    )

    assert rank_facts.mapped_library(maps) == "/opt/v/nvidia/nccl/lib/libnccl.so.2"
    assert rank_facts.mapped_library(maps.replace(".so.2", ".so.2.28 (deleted)")) == (
        "/opt/v/nvidia/nccl/lib/libnccl.so.2.28"
    )
    assert rank_facts.mapped_library("7f00-7f01 r--p 00000000 08:01 12  /opt/libnccl-profiler.so\n") is None


def test_the_age_of_this_process_is_plausible() -> None:
    assert 0 < parent.age_s() < 86_400
