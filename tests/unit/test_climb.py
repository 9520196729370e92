"""A ladder of batch sizes on ranks that are threads, with a store that is a dictionary and scripted measurements."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import MemoryStore

from nccltune import records
from nccltune.workloads import climb, harness
from nccltune.workloads.control import Control, RankSilent
from nccltune.workloads.failure import OutOfMemory, WorkloadError
from nccltune.workloads.group import Group
from nccltune.workloads.heartbeat import Heartbeat
from nccltune.workloads.measure import Timed, WarmUp
from nccltune.workloads.request import Ladder, Request
from nccltune.workloads.workload import Context

CPU = torch.device("cpu")
IDLE = {32: 0.4, 64: 0.2, 128: 0.02}
TOTAL = 1 << 30


class Ladders:
    """Runs a ladder on some ranks; ``fails`` may raise in the place of a measurement."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.idle: dict[int, float] = IDLE
        self.share: Callable[[int, int], float] = lambda rank, size: 0.001 * size
        self.fails: Callable[[int, int], None] = lambda rank, size: None
        self.sizes: list[tuple[int, int]] = []
        self._now: dict[int, int] = {}
        monkeypatch.setattr(climb, "_sample", self._sample)
        monkeypatch.setattr(climb, "_of_rank", self._of_rank)

    def _sample(self, launch: Any, group: Group, context: Context, build: Any, size: int) -> harness.Sample:
        launch.heartbeat.enter("warmup")
        self.sizes.append((group.rank, size))
        self._now[group.rank] = size
        self.fails(group.rank, size)
        timed = Timed([size * 10.0], [size * 10.0, size * 10.0 + 1], {}, 3.0)
        return harness.Sample("cuda-events", WarmUp(9, True, 1.0), timed, {"idle_share": self.idle[size]}, ())

    def _of_rank(self, launch: Any, group: Group) -> dict[str, Any]:
        report = {
            "rank": group.rank, "local_rank": group.rank, "host": "h", "pid": 1, "device": "d", "torch_version": "2",
        }  # fmt: skip
        used = round(TOTAL * self.share(group.rank, self._now[group.rank]))
        return {"memory": [used, TOTAL], "report": report}

    def run(self, ranks: int = 1, rule: Ladder | None = None) -> list[Any]:
        store, found = MemoryStore(), [None] * ranks
        request = Request("s", "l", "tok", "w", "nccl", ladder=rule or Ladder(first=32))

        def one(rank: int) -> None:
            heartbeat = Heartbeat(self.folder / "heartbeat", rank)
            heartbeat.enter("group")
            launch = harness.Launch(request, self.result, rank, {}, None, heartbeat, 0.0)
            group = Group(rank, rank, ranks, CPU, Control(store, rank, ranks, 60.0), False)
            context = Context(rank, rank, ranks, "nccl", CPU, {"image_size": 8}, 0)
            try:
                found[rank] = climb.climb(launch, group, context, lambda _: None)  # type: ignore[assignment, arg-type, return-value]
            except Exception as error:
                found[rank] = error  # type: ignore[call-overload]
                store.leave()

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found

    @property
    def result(self) -> Path:
        return self.folder / "result.json"


@pytest.fixture
def ladders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ladders:
    return Ladders(tmp_path, monkeypatch)


@pytest.mark.parametrize("ranks", [1, 8])
def test_all_ranks_climb_together_and_rank_0_has_the_result(ladders: Ladders, ranks: int) -> None:
    found = ladders.run(ranks)

    assert found[1:] == [None] * (ranks - 1)
    measured = records.Measurement.model_validate(found[0])
    assert measured.batches is not None
    assert (measured.batches.batch_size, measured.batches.reason) == (128, "busy")
    assert [each.idle_share for each in measured.batches.tries] == [0.4, 0.2, 0.02]
    assert measured.step_times_us == (1280.0, 1281.0), "those of the chosen batch"
    assert [report.rank for report in measured.ranks] == list(range(ranks))
    assert sorted(ladders.sizes) == [(rank, size) for rank in range(ranks) for size in (32, 64, 128)]


def test_the_fullest_gpu_decides(ladders: Ladders) -> None:
    ladders.share = lambda rank, size: 0.01 * size if rank == 5 else 0.001 * size

    batches = ladders.run(8)[0]["batches"]

    assert (batches["batch_size"], batches["reason"]) == (64, "memory")
    assert batches["tries"][-1]["memory_share"] == pytest.approx(0.64)


@pytest.mark.parametrize("error", [OutOfMemory("CUDA out of memory"), RuntimeError("CUBLAS_STATUS_ALLOC_FAILED")])
def test_a_rank_that_runs_out_of_memory_leaves_the_result_for_all(ladders: Ladders, error: Exception) -> None:
    """The other rank waits for it in vain, as in a collective; torchrun would end it."""

    def fails(rank: int, size: int) -> None:
        if (rank, size) == (1, 128):
            raise error

    ladders.fails = fails
    found = ladders.run(2)

    assert found[1] is error
    assert isinstance(found[0], RankSilent)
    result = records.ResultFile.model_validate_json(ladders.result.read_text())
    assert result.measurement is not None
    batches = result.measurement.batches
    assert batches is not None
    assert (batches.batch_size, batches.reason) == (64, "out of memory")
    assert [(each.batch_size, each.step_us is None) for each in batches.tries] == [
        (32, False), (64, False), (128, True),
    ]  # fmt: skip
    assert len(result.measurement.ranks) == 2


@pytest.mark.parametrize(
    ("size", "error"),
    [(32, OutOfMemory("CUDA out of memory")), (64, WorkloadError("a bug")), (64, RuntimeError("NCCL error"))],
)
def test_no_size_or_another_fault_leaves_no_result(ladders: Ladders, size: int, error: Exception) -> None:
    def fails(_: int, now: int) -> None:
        if now == size:
            raise error

    ladders.fails = fails

    assert ladders.run() == [error]
    assert not ladders.result.exists()


def test_each_size_is_built_with_its_own_options_and_under_the_same_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, Any]] = []

    def sample(run: harness.Run, build: Any) -> harness.Sample:
        seen.append(dict(run._context.options))
        return harness.Sample("host", WarmUp(1, True, 1.0), Timed([1.0], [1.0]), None, ("lost",))

    monkeypatch.setattr(harness.Run, "sample", sample)
    monkeypatch.setenv("LOCAL_RANK", "0")
    heartbeat = Heartbeat(tmp_path / "heartbeat", 0)
    heartbeat.enter("group")
    request = Request("s", "l", "tok", "w", "gloo", options={"batch_size": "auto", "a": 1}, ladder=Ladder(first=2))
    launch = harness.Launch(request, tmp_path / "result.json", 0, {}, None, heartbeat, 0.0)
    group = Group(0, 0, 1, CPU, Control(MemoryStore(), 0, 1, 1.0), False)

    found = climb.climb(launch, group, Context(0, 0, 1, "gloo", CPU, request.options, 0), lambda _: None)  # type: ignore[arg-type, return-value]

    assert seen == [{"batch_size": 2, "a": 1}]
    assert found is not None
    assert (found["batches"]["reason"], found["warnings"]) == ("not measured", ["lost"])
    assert json.loads((tmp_path / "heartbeat").read_text())["phase"] == "warmup"
