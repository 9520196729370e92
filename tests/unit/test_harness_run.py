from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from nccltune.workloads import harness, profile_window
from nccltune.workloads.clock import CudaClock
from nccltune.workloads.control import Control
from nccltune.workloads.failure import OutOfMemory, WorkloadError
from nccltune.workloads.group import Group
from nccltune.workloads.heartbeat import Heartbeat
from nccltune.workloads.request import Request
from nccltune.workloads.timeline import RankTrace
from nccltune.workloads.trace import StepTimes
from nccltune.workloads.workload import Context

CPU = torch.device("cpu")


@pytest.fixture
def run(tmp_path: Path) -> harness.Run:
    heartbeat = Heartbeat(tmp_path / "heartbeat", 0)
    heartbeat.enter("warmup")
    request = Request("s", "l", "t", "w", "gloo", options={"batch_size": 512})
    launch = harness.Launch(request, tmp_path / "result.json", 0, {}, None, heartbeat, 0.0)
    group = Group(0, 0, 1, CPU, Control(None, 0, 1, 1.0), False)  # type: ignore[arg-type]
    return harness.Run(launch, group, Context(0, 0, 1, "gloo", CPU, request.options, 0))


def test_a_build_that_returns_something_else_is_named(run: harness.Run) -> None:
    with pytest.raises(WorkloadError, match="build returned NoneType, not a Workload"):
        run._build(lambda _: None)  # type: ignore[arg-type, return-value]


def test_only_what_is_surely_the_workloads_fault_is_called_so(run: harness.Run) -> None:
    def raising(error: Exception) -> Any:
        def action() -> None:
            raise error

        return action

    with pytest.raises(WorkloadError, match="rank 0, warmup: ZeroDivisionError: by zero"):
        run._guarded(raising(ZeroDivisionError("by zero")))
    with pytest.raises(OutOfMemory, match="batch_size': 512"):
        run._guarded(raising(torch.OutOfMemoryError("CUDA out of memory")))
    for passing in (RuntimeError("Connection closed by peer"), ConnectionResetError("reset")):
        with pytest.raises(type(passing)) as raised:
            run._guarded(raising(passing))
        assert raised.value is passing


def test_a_bad_request_reaches_the_error_file() -> None:
    with pytest.raises(ValueError, match="token: missing"):
        harness._run(ValueError("token: missing"), lambda _: None)


class Event:
    """A CUDA event on a clock that the test moves."""

    made = 0
    now_ms = 0.0

    def __init__(self) -> None:
        Event.made += 1

    def record(self) -> None:
        self.at_ms = Event.now_ms

    def elapsed_time(self, later: Event) -> float:
        return later.at_ms - self.at_ms


def test_the_cuda_clock_times_between_events_and_uses_them_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = CudaClock(torch.device("cuda", 0))
    waits: list[int] = []
    monkeypatch.setattr(clock, "_event", Event)
    monkeypatch.setattr(clock, "_finish", lambda: waits.append(1))

    def step() -> None:
        Event.now_ms += 2.0
        clock.mark("a")
        Event.now_ms += 1.0

    first, second = clock.run(step, 3, lead=1), clock.run(step, 3, lead=1)

    assert first.step_us == pytest.approx([3000.0] * 3)
    assert second.part_us == {"a": pytest.approx([2000.0] * 3)}
    assert Event.made == 7, "one before the first step, two in each; none is made twice"
    assert len(waits) == 2, "the host waits once a block"


def test_the_profiled_window_warns_of_what_a_reader_must_know() -> None:
    def rank(number: int, busy_us: float, **changes: Any) -> RankTrace:
        step = StepTimes(2, 1000.0, busy_us, 100.0, 0.0, 0.0, 0.0, ((900 - busy_us, 900.0),))
        values = {"rank": number, "backend": "nccl", "source": "cuda", "steps": (step,), "dropped": 0, "invalid": 0}
        return RankTrace(**{**values, "comm_kernels": 1, "comm_copies": 0, **changes})

    def warned(*ranks: RankTrace, step_us: float = 1000) -> list[str]:
        return profile_window._warnings([*ranks], {"step_us": step_us})

    assert warned(rank(0, 50), rank(1, 50)) == []
    assert warned(rank(0, 550), rank(1, 50)) == [
        "profiled window: rank 1 arrived last in most collectives, others waited 0.5 ms a step for it (50 %);"
        " no NCCL setting removes that"
    ]
    assert warned(rank(0, 550), rank(1, 50), step_us=20_000) == [], "some rank is always the last"
    lost = profile_window._warnings([rank(0, 50, dropped=2, invalid=3), rank(1, 50)], None)
    assert [warning.split(",")[0] for warning in lost] == [
        "profiled window: 2 steps left out",
        "profiled window: 3 kernels without time stamps left out",
        "profiled window: no communication was found",
    ]


def test_a_profiled_window_on_this_machine_counts_the_steps_that_it_should(tmp_path: Path) -> None:
    ran: list[int] = []

    def step() -> None:
        ran.append(1)
        torch.ones(1000).sum()
        time.sleep(0.001)

    profile_window._record(step, 3, CPU, tmp_path / "trace.json", lambda _: None)
    reduced, problem = profile_window._reduce(tmp_path / "trace.json", 3)

    assert problem == ""
    assert reduced is not None
    assert len(ran) == 5
    assert [each.number for each in reduced.steps] == [2, 3, 4]
    assert all(each.step_us >= 1000 and each.compute_us > 0 for each in reduced.steps)
    assert reduced.source is None


def test_a_trace_that_cannot_be_read_is_a_problem_not_an_end(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text("{")

    assert profile_window._reduce(tmp_path / "trace.json", 3)[1].startswith("the trace cannot be read")
