"""The harness with 1, 2, 3 and 8 ranks, which are threads here: talk, step times, known answers, timelines, numbers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from fakes import MemoryStore, measurement, request
from torch import distributed

from nccltune.records import Checks, FirstStep, Placement
from nccltune.trial import model_check, runner
from nccltune.workloads import bandwidth, checks, collective, reducescatter, timeline
from nccltune.workloads.clock import Block, HostClock
from nccltune.workloads.control import Control, RankSilent
from nccltune.workloads.failure import WorkloadError
from nccltune.workloads.measure import Measure, Timed, WarmUp
from nccltune.workloads.request import Limits, Steps
from nccltune.workloads.workload import Context, Numbers

CPU = torch.device("cpu")
WORLDS = pytest.mark.parametrize("world", [1, 2, 3, 8], ids=lambda world: f"{world}-ranks")
SEVERAL = pytest.mark.parametrize("world", [2, 3, 8], ids=lambda world: f"{world}-ranks")


def on_threads(world: int, act: Callable[[int], Any]) -> list[Any]:
    """What ``act`` returned or raised on each rank."""
    results: list[Any] = [None] * world

    def rank(number: int) -> None:
        try:
            results[number] = act(number)
        except Exception as error:
            results[number] = error

    threads = [threading.Thread(target=rank, args=(number,), daemon=True) for number in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    return results


class TestControl:
    @WORLDS
    def test_rank_0_gets_the_values_in_the_order_of_the_ranks_and_all_hear_it(self, world: int) -> None:
        store = MemoryStore()

        def talk(rank: int) -> tuple[Any, Any]:
            control = Control(store, rank, world, 20.0)
            return control.gather("own", rank * rank), control.announce("said", "on" if rank == 0 else None)

        told = on_threads(world, talk)
        assert told == [([rank * rank for rank in range(world)], "on")] + [(None, "on")] * (world - 1)

    def test_the_one_rank_of_eight_that_says_nothing_is_named(self) -> None:
        store = MemoryStore()

        def talk(rank: int) -> Any:
            return None if rank == 5 else Control(store, rank, 8, 0.2).gather("timed", rank)

        silent = on_threads(8, talk)[0]
        assert isinstance(silent, RankSilent)
        assert str(silent) == "rank 5 did not answer 'timed' within 0.2 s (RuntimeError)"


class ScriptedClock(HostClock):
    """Runs the steps and says a time that depends on the rank."""

    def __init__(self, time_us: float) -> None:
        super().__init__()
        self.time_us = time_us

    def run(self, step: Callable[[], None], count: int, lead: int = 0) -> Block:
        for _ in range(lead + count):
            step()
        return Block([self.time_us] * count, {}, 1.0)


class TestSteps:
    @WORLDS
    def test_a_step_takes_as_long_as_its_slowest_rank_and_all_do_the_same_steps(self, world: int) -> None:
        store, done = MemoryStore(), [0] * world
        steps = Steps(warmup_min=4, warmup_max=40, warmup_s=0.0, timed_min=10, timed_max=20, block=10)

        def measured(rank: int) -> tuple[WarmUp, Timed]:
            def step() -> None:
                done[rank] += 1

            clock = ScriptedClock(2000.0 if rank == world - 1 else 1000.0)
            measure = Measure(step, clock, Control(store, rank, world, 20.0), steps, Limits(), lambda _: None)
            warm = measure.warm_up()
            return warm, measure.timed(warm.typical_us)

        found = on_threads(world, measured)
        assert {warm.typical_us for warm, _ in found} == {2000.0}
        assert set(found[0][1].step_us) == {2000.0}
        assert all(timed.step_us == [] for _, timed in found[1:]), "what is over all ranks is known to rank 0 alone"
        assert len(set(done)) == 1


class Ranks:
    """Collectives between threads, in place of torch's.

    Args:
        spoil: From collective, rank and result to what the rank gets instead.
    """

    def __init__(self, world: int, spoil: Callable[[str, int, torch.Tensor], None] = lambda *_: None) -> None:
        self.world = world
        self._spoil = spoil
        self._rank = threading.local()
        self._sent: list[torch.Tensor] = [torch.empty(0)] * world
        self._barrier = threading.Barrier(world, timeout=30)

    def take(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(distributed, "get_rank", lambda: self._rank.number)
        monkeypatch.setattr(distributed, "get_world_size", lambda: self.world)
        monkeypatch.setattr(distributed, "all_reduce", lambda data: self._share("all_reduce", data, data))
        monkeypatch.setattr(distributed, "broadcast", lambda data, src: self._share("broadcast", data, data, src))
        monkeypatch.setattr(checks, "all_gather", lambda output, data: self._share("all_gather", output, data))
        monkeypatch.setattr(checks, "reduce_scatter", lambda output, data: self._share("reduce_scatter", output, data))

    def run(self, act: Callable[[], Any]) -> list[Any]:
        def rank(number: int) -> Any:
            self._rank.number = number
            try:
                return act()
            except Exception:
                self._barrier.abort()
                raise

        return on_threads(self.world, rank)

    def _share(self, name: str, output: torch.Tensor, data: torch.Tensor, src: int = 0) -> None:
        rank = self._rank.number
        self._sent[rank] = data.clone()
        self._barrier.wait()
        if name == "broadcast":
            got = self._sent[src].clone()
        elif name == "all_gather":
            got = torch.cat(self._sent)
        else:
            got = self._sent[0].clone()
            for other in self._sent[1:]:
                got += other
        if name == "reduce_scatter":
            assert len(data) == self.world * len(output), "equal shares, as the real one asks for"
            got = got.chunk(self.world)[rank].clone()
        self._barrier.wait()
        self._spoil(name, rank, got)
        output.copy_(got)


class TestKnownAnswers:
    @WORLDS
    @pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
    def test_right_collectives_pass_on_any_number_of_ranks(self, world: int, dtype: str, monkeypatch) -> None:
        ranks = Ranks(world)
        ranks.take(monkeypatch)
        outcomes = ranks.run(lambda: checks.run((dtype,), 70_000, CPU))
        assert outcomes == [checks.Outcome(cases=2 * 4 * 4, failures=())] * world

    @SEVERAL
    @pytest.mark.parametrize("name", ["all_reduce", "all_gather", "reduce_scatter", "broadcast"])
    def test_one_wrong_element_on_one_rank_is_found_there_alone(self, world: int, name: str, monkeypatch) -> None:
        def spoil(collective_: str, rank: int, got: torch.Tensor) -> None:
            if (collective_, rank) == (name, world - 2) and len(got) > 5000:
                got[77] += 1

        ranks = Ranks(world, spoil)
        ranks.take(monkeypatch)
        outcomes = ranks.run(lambda: checks.run(("bf16",), 200_000, CPU))
        assert [rank for rank, outcome in enumerate(outcomes) if outcome.failures] == [world - 2]
        assert all(f"{name} bf16" in line and f"rank {world - 2}," in line for line in outcomes[world - 2].failures)
        assert "first at 77" in outcomes[world - 2].failures[0]

    @SEVERAL
    def test_a_rank_that_is_left_out_of_the_sum_is_found_by_all(self, world: int, monkeypatch) -> None:
        ranks = Ranks(world)
        ranks.take(monkeypatch)
        honest = distributed.all_reduce

        def without_the_last(data: torch.Tensor) -> None:
            if distributed.get_rank() == world - 1:
                data.zero_()
            honest(data)

        monkeypatch.setattr(distributed, "all_reduce", without_the_last)
        outcomes = ranks.run(lambda: checks.run(("fp32",), 4096, CPU))
        assert all("all_reduce" in outcome.failures[0] for outcome in outcomes)


class TestNumbers:
    @pytest.mark.parametrize(
        ("world", "reduce", "gather"),
        [(1, 0, 0), (2, 1, 1 / 2), (3, 4 / 3, 2 / 3), (8, 7 / 4, 7 / 8)],
        ids=["1-ranks", "2-ranks", "3-ranks", "8-ranks"],
    )
    def test_bus_factors(self, world: int, reduce: float, gather: float) -> None:
        assert bandwidth.bus_bandwidth("all_reduce", 1e9, 1e6, world) == pytest.approx(reduce)
        assert bandwidth.bus_bandwidth("all_gather", 1e9, 1e6, world) == pytest.approx(gather)
        assert bandwidth.bus_bandwidth("reduce_scatter", 1e9, 1e6, world) == pytest.approx(gather)

    @pytest.mark.parametrize(
        ("world", "sent"), [(1, 20), (2, 16), (3, 12), (5, 20)], ids=["1-ranks", "2-ranks", "3-ranks", "5-ranks"]
    )
    def test_bytes_that_no_share_holds_are_not_in_the_bandwidth(self, world: int, sent: int, monkeypatch) -> None:
        buffers: list[tuple[int, int]] = []
        monkeypatch.setattr(checks, "reduce_scatter", lambda output, data: buffers.append((output.nbytes, data.nbytes)))
        workload = reducescatter.build(Context(0, 0, world, "gloo", CPU, {"sizes": [[20, 1]], "dtype": "fp32"}, 0))
        workload.step()
        assert set(buffers) == {(sent // world, sent)}
        assert workload.metrics is not None
        found = workload.metrics(Numbers(step_us=1.0, call_us={"20": 1.0}, world_size=world))
        assert found["algorithm_bandwidth_gbytes_per_s"] == pytest.approx(sent / 1e3)

    def test_an_all_reduce_sends_all_of_it_whatever_the_number_of_ranks(self) -> None:
        context = Context(0, 0, 3, "gloo", CPU, {"sizes": [[20, 1]], "dtype": "fp32"}, 0)
        workload = collective.synthetic(context, "all_reduce", lambda *_: lambda: None)
        assert workload.metrics is not None
        found = workload.metrics(Numbers(step_us=1.0, call_us={"20": 1.0}, world_size=3))
        assert found["algorithm_bandwidth_gbytes_per_s"] == pytest.approx(0.02)

    def test_fewer_elements_than_ranks_are_refused(self) -> None:
        with pytest.raises(WorkloadError, match="28 bytes hold no fp32 element for each of 8 ranks"):
            reducescatter.build(Context(0, 0, 8, "gloo", CPU, {"sizes": [[28, 1]], "dtype": "fp32"}, 0))

    @pytest.mark.parametrize("world", [2, 8, 64], ids=lambda world: f"{world}-ranks")
    def test_a_result_is_no_bigger_than_the_space_that_is_asked_for(self, world: int) -> None:
        step = FirstStep(
            loss=(1.0,) * world, gradient=((0.123456789,) * 8,) * world, norm=(1.0,) * world, tolerance=0.1
        )
        wanted = request(
            placement=Placement(nproc_per_node=world),
            environment={f"NCCL_OF_THE_SITE_{number}": "x" * 30 for number in range(20)},
        )
        found = measurement(wanted, (1234.5678901234,) * 500, checks=Checks(cases=9, first_step=step))
        assert len(found.model_dump_json()) < runner._PROBE_BYTES


NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def trace_of(rank: int, late: int, world: int) -> timeline.RankTrace:
    """Four steps of three collectives; all ranks end together, the late one begins 30 us after the others."""
    events: list[dict[str, Any]] = []
    for number in range(4):
        began = 1000.0 * number
        events.append({"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{number}", "pid": 0, "tid": 1,
                       "ts": began, "dur": 900.0, "args": {}})  # fmt: skip
        for call in range(3):
            wait = 0.0 if rank == late else 30.0
            events.append({"ph": "X", "cat": "kernel", "name": NCCL, "pid": 0, "tid": 17,
                           "ts": began + 200 * call + 100 - wait, "dur": 50.0 + wait, "args": {}})  # fmt: skip
    return timeline.reduce({"traceEvents": events, "distributedInfo": {"rank": rank, "world_size": world}})


class TestTimelines:
    @SEVERAL
    def test_a_straggler_is_found_and_its_waiting_is_not_transfer(self, world: int) -> None:
        late = min(6, world - 1)
        ranks = [trace_of(rank, late, world) for rank in range(world)]
        matched = timeline.match(ranks)
        assert matched is not None
        assert matched.straggler == late
        assert matched.transfer_us == pytest.approx(150.0)
        assert {wait for each in matched.collectives for wait in each.wait_us} == {0.0, 30.0}
        found = timeline.communication(ranks)
        assert found is not None
        assert found["busy_us"] == pytest.approx(150.0 + 90.0 * (world - 1) / world)
        assert found["waiting_us"] == pytest.approx(90.0 * (world - 1) / world)
        assert timeline.answers(ranks)["straggler_rank"] == late

    @SEVERAL
    def test_nobody_is_a_straggler_where_all_begin_together(self, world: int) -> None:
        matched = timeline.match([trace_of(rank, rank, world) for rank in range(world)])
        assert matched is not None
        assert matched.straggler is None

    def test_one_rank_matches_nothing(self) -> None:
        assert timeline.match([trace_of(0, 0, 1)]) is None


class TestModelCheck:
    def steps(self, world: int, wrong: int | None = None) -> FirstStep:
        sums = [(1.0, 2.0) if rank != wrong else (1.0, 9.0) for rank in range(world)]
        return FirstStep(loss=(0.5,) * world, gradient=tuple(sums), norm=(3.0,) * world, tolerance=0.01)

    @SEVERAL
    def test_the_rank_whose_gradient_differs_is_named(self, world: int) -> None:
        assert model_check.differs(self.steps(world), self.steps(world)) is None
        told = model_check.differs(self.steps(world, wrong=world - 1), self.steps(world))
        assert f"on rank {world - 1}:" in (told or "")

    def test_another_number_of_ranks_is_said(self) -> None:
        assert model_check.differs(self.steps(4), self.steps(8)) == (
            "the model's first step ran on 4 ranks, under the default on 8"
        )


@pytest.fixture(autouse=True)
def _no_group_is_left() -> Iterator[None]:
    yield
    assert not distributed.is_initialized()
