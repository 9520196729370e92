from __future__ import annotations

import gzip
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccltune.workloads import intervals, timeline

NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GEMM = "sm90_xmma_gemm_bf16"


def event(category: str, name: str, begin: float, duration: float, tid: int = 7, **arguments: Any) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 0,
        "tid": tid,
        "ts": begin,
        "dur": duration,
        "args": arguments,
    }


def step(number: int, begin: float, duration: float, category: str = "user_annotation") -> dict[str, Any]:
    return event(category, f"ProfilerStep#{number}", begin, duration, tid=1)


def trace(*events: dict[str, Any], **about: Any) -> dict[str, Any]:
    return {"traceEvents": list(events), "distributedInfo": about}


def answers(*documents: dict[str, Any]) -> dict[str, Any]:
    return timeline.answers([timeline.reduce(document) for document in documents])


spans = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)).map(lambda pair: (pair[0], pair[0] + pair[1])))


@given(spans)
def test_union_counts_each_moment_once(pairs: list[tuple[float, float]]) -> None:
    moments = {moment for begin, end in pairs for moment in range(int(begin), int(end))}

    merged = intervals.union(pairs)

    assert intervals.length(merged) == len(moments)
    assert all(first[1] < second[0] for first, second in itertools.pairwise(merged))


@given(spans, spans)
def test_shares_add_up_for_any_kernels(talk: list[tuple[float, float]], work: list[tuple[float, float]]) -> None:
    kernels = [event("kernel", NCCL, begin, end - begin, 17) for begin, end in talk]
    kernels += [event("kernel", GEMM, begin, end - begin) for begin, end in work]

    found = timeline.communication([timeline.reduce(trace(step(1, 0, 100), *kernels))])

    moments = {moment for begin, end in talk for moment in range(int(begin), int(end))}
    busy = {moment for begin, end in work for moment in range(int(begin), int(end))}
    if not moments:
        assert found is None
        return
    assert found is not None
    assert found["busy_us"] == len(moments)
    assert found["overlapped_us"] == len(moments & busy)
    assert found["exposed_us"] == len(moments - busy)
    assert found["idle_us"] == 100 - len(moments | busy)
    assert found["exposed_us"] + found["overlapped_us"] == found["busy_us"]


@pytest.mark.parametrize(
    ("name", "communicates"),
    [
        ("ncclKernel_AllReduce_TREE_LL_Sum_float(ncclWorkElem)", True),
        ("ncclDevKernel_Generic(ncclDevComm*)", True),
        ("ncclSymDevKernel_AllGather_ST(ncclSymDevArgs)", True),
        ("ncclSymkDevKernel_AllReduce_AGxLL_R_sum_f32(ncclSymkDevWorkArgs4K)", True),
        ("ncclGenkDevKernel_AllToAll()", True),
        ("ncclAllReduceRingLLKernel_sum_f32(ncclColl)", True),
        ("NCCLDevKernel_Other()", False),
        ("void my_ncclDevKernel_like<float>()", False),
        ("ncclx_helper()", False),
    ],
)
def test_kernels_of_every_generation_are_recognised(name: str, communicates: bool) -> None:
    found = answers(trace(step(1, 0, 100), event("kernel", name, 10, 20)))

    assert (found["comm_us"], found["compute_us"]) == ((20, 0) if communicates else (None, 20))
    assert found["comm_kernels"] == int(communicates)


def test_annotations_repeat_time_and_never_count() -> None:
    found = answers(
        trace(
            step(1, 0, 100),
            event("kernel", NCCL, 10, 20, 17),
            event("gpu_user_annotation", "nccl:all_reduce", 5, 60, 17),
            event("user_annotation", "nccl:all_reduce", 5, 80),
            event("cpu_op", "record_param_comms", 5, 80),
        )
    )

    assert (found["comm_us"], found["compute_us"], found["busy_us"]) == (20, 0, 20)
    assert found["backend"] == "nccl"


def test_a_plain_copy_is_neither_but_a_copy_engine_collective_communicates() -> None:
    annotated = event("gpu_user_annotation", "nccl:all_gather", 40, 30, 17)
    found = answers(
        trace(
            step(1, 0, 100),
            annotated,
            event("gpu_memcpy", "Memcpy DtoD (Device -> Device)", 45, 20, 17),
            event("gpu_memcpy", "Memcpy DtoD (Device -> Device)", 45, 20, 7),
            event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 0, 30, 9),
            event("kernel", GEMM, 90, 5),
        )
    )

    assert (found["comm_us"], found["comm_copies"], found["comm_kernels"]) == (20, 1, 0)
    assert (found["compute_us"], found["busy_us"]) == (5, 25)


def test_a_copy_is_recognised_by_its_launch_too() -> None:
    found = answers(
        trace(
            step(1, 0, 100),
            event("user_annotation", "nccl:all_gather", 10, 10, 3),
            event("cuda_runtime", "cudaMemcpyBatchAsync", 12, 2, 3, correlation=5),
            event("cuda_runtime", "cudaMemcpyAsync", 30, 2, 3, correlation=6),
            event("gpu_memcpy", "Memcpy DtoD", 45, 20, 17, correlation=5),
            event("gpu_memcpy", "Memcpy DtoD", 65, 20, 17, correlation=6),
        )
    )

    assert (found["comm_us"], found["comm_copies"]) == (20, 1)


def test_work_on_the_gpu_belongs_to_the_step_that_launched_it() -> None:
    """The GPU is late by a whole step; the windows follow its own annotations, up to the next one."""
    found = timeline.reduce(
        trace(
            step(1, 0, 50),
            step(2, 50, 50),
            step(1, 100, 60, "gpu_user_annotation"),
            step(2, 200, 70, "gpu_user_annotation"),
            event("kernel", NCCL, 110, 20, 17),
            event("kernel", GEMM, 150, 40),
            event("kernel", NCCL, 210, 30, 17),
        )
    )

    assert [(each.step_us, each.comm_us, each.compute_us) for each in found.steps] == [(100, 20, 40), (70, 30, 0)]


def launched(correlation: int, at: float, name: str, begin: float, duration: float, tid: int = 7) -> list[Any]:
    """A kernel and the launch that asked for it."""
    return [
        event("cuda_runtime", "cudaLaunchKernel", at, 1, 3, correlation=correlation),
        event("kernel", name, begin, duration, tid, correlation=correlation),
    ]


def test_launches_tell_where_a_step_lies_on_the_gpu_though_its_annotation_covers_little() -> None:
    """The annotation of a step ends long before its work, and a step of collectives alone has none."""
    document = trace(
        step(1, 0, 20),
        step(2, 20, 20),
        step(3, 40, 20),
        step(1, 100, 5, "gpu_user_annotation"),
        step(2, 200, 5, "gpu_user_annotation"),
        *launched(1, 1, GEMM, 100, 60),
        *launched(2, 15, NCCL, 150, 40, 17),
        *launched(3, 21, GEMM, 200, 70),
        *launched(4, 35, NCCL, 270, 20, 17),
        *launched(5, 41, GEMM, 310, 60),
        *launched(6, 55, NCCL, 350, 40, 17),
    )

    steps = timeline.reduce(document).steps
    closed = timeline.reduce(document, last_step=2).steps

    assert [(each.step_us, each.comm_us, each.compute_us, each.idle_us) for each in steps] == [
        (100, 40, 60, 10),
        (110, 20, 70, 20),
        (80, 40, 60, 0),  # nothing says what follows the last one
    ]
    assert closed == steps[:2], "a later step ends an earlier one also where it does not count"


def test_the_gpu_is_idle_where_it_waits_for_the_host_or_for_a_late_rank_but_not_where_it_transfers() -> None:
    def rank(begin: float, duration: float) -> timeline.RankTrace:
        document = trace(step(1, 0, 1), step(2, 5, 1), *launched(1, 0, GEMM, 100, 300))
        document["traceEvents"] += launched(2, 0.5, NCCL, begin, duration, 17) + launched(3, 5, GEMM, 1100, 300)
        return timeline.reduce(document, last_step=1)

    late, early = rank(850, 50), rank(500, 400)

    found = timeline.communication([early, late], untraced_step_us=700)

    assert found is not None
    assert found["idle_share"] == pytest.approx(1 - (300 + 50) / 700)
    alone = timeline.communication([early], untraced_step_us=700)
    assert alone is not None
    assert alone["idle_share"] == 0, "with one trace nobody knows that it waits"
    unknown = timeline.communication([early, late])
    assert unknown is not None
    assert unknown["idle_share"] is None


def test_the_short_gaps_of_a_full_queue_are_idle_but_no_starving() -> None:
    kernels = [launched(number, 0.1 * number, GEMM, 100 + 12 * number, 10) for number in range(9)]
    close = timeline.reduce(trace(step(1, 0, 1), *itertools.chain(*kernels[:5]), *kernels[8]))

    (only,) = close.steps

    assert (only.step_us, only.idle_us) == (106, 46)
    assert only.starved_us == 38, "the gap where three kernels are missing"


def recorded(name: str) -> list[timeline.RankTrace]:
    paths = sorted((Path(__file__).parents[1] / "recordings" / "traces").glob(f"{name}.rank*.json.gz"))
    documents = [json.loads(gzip.decompress(path.read_bytes())) for path in paths]
    return [timeline.reduce(document, first_step=2, last_step=4) for document in documents]


def test_a_real_all_reduce_takes_as_long_under_the_profiler_as_without_it() -> None:
    found = timeline.communication(recorded("2xh200-allreduce-256m"), untraced_step_us=893)

    assert found is not None
    assert found["steps"] == 3
    assert found["inflation"] == pytest.approx(1, abs=0.01)
    assert found["share"] > 0.99
    assert found["idle_share"] < 0.01
    assert found["transfer_us"] == pytest.approx(884, abs=1)


def test_a_real_step_that_waits_for_the_host_is_seen_as_such() -> None:
    """Rank 1 was late, so rank 0 waited inside NCCL for 40 of 57 ms; both GPUs computed 28 to 32 ms."""
    ranks = recorded("2xh200-resnet-128")

    found = timeline.communication(ranks, untraced_step_us=57_000)

    assert found is not None
    assert found["inflation"] == pytest.approx(1, abs=0.01)
    assert found["transfer_us"] < 1_000
    assert found["idle_share"] == pytest.approx(0.45, abs=0.02)


def test_earlier_steps_are_passed_over() -> None:
    document = trace(step(1, 0, 10), step(2, 10, 10), event("kernel", NCCL, 2, 2), event("kernel", NCCL, 12, 4))

    found = timeline.reduce(document, first_step=2)

    assert [(each.number, each.comm_us) for each in found.steps] == [(2, 4)]
    assert found.dropped == 0


def test_a_step_with_a_launch_without_a_kernel_is_dropped_and_counted() -> None:
    found = answers(
        trace(
            step(1, 0, 100),
            step(2, 100, 100),
            event("cuda_runtime", "cudaLaunchKernel", 1, 1, 3, correlation=1),
            event("cuda_runtime", "cudaLaunchKernelExC", 5, 1, 3, correlation=2),
            event("cuda_driver", "cuLaunchKernelEx", 101, 1, 3, correlation=3),
            event("kernel", NCCL, 10, 20, correlation=2),
            event("kernel", NCCL, 110, 30, correlation=3),
        )
    )

    assert (found["usable_steps"], found["dropped_steps"]) == (1, 1)
    assert (found["comm_us"], found["comm_kernels"]) == (30, 1)


def test_a_step_without_any_gpu_record_is_dropped() -> None:
    found = answers(trace(step(1, 0, 100), step(2, 100, 100), event("kernel", NCCL, 110, 30)))

    assert (found["usable_steps"], found["dropped_steps"], found["comm_us"]) == (1, 1, 30)


@pytest.mark.parametrize(("begin", "duration"), [(0, 0), (120, 0), (0, 130)])
def test_a_kernel_with_zero_stamps_is_left_out_and_counted(begin: float, duration: float) -> None:
    found = answers(
        trace(
            step(1, 100, 100),
            event("cuda_runtime", "cudaLaunchKernel", 101, 1, 3, correlation=1),
            event("kernel", GEMM, begin, duration, correlation=1),
            event("kernel", NCCL, 130, 20, correlation=2),
        )
    )

    assert (found["invalid_kernels"], found["compute_us"], found["comm_us"]) == (1, 0, 20)
    assert found["dropped_steps"] == 0


def test_waiting_is_not_transfer() -> None:
    early = trace(step(1, 0, 1000), event("kernel", NCCL, 100, 400, 17), event("kernel", NCCL, 600, 50, 17), rank=0)
    late = trace(step(1, 0, 1000), event("kernel", NCCL, 460, 40, 17), event("kernel", NCCL, 600, 50, 17), rank=1)
    third = trace(step(1, 0, 1000), event("kernel", NCCL, 300, 200, 17), event("kernel", NCCL, 601, 49, 17), rank=2)

    found = answers(early, late, third)

    assert found["collectives"] == [
        {"transfer_upper_bound_us": 40, "wait_us": {"0": 360, "1": 0, "2": 160}},
        {"transfer_upper_bound_us": 49, "wait_us": {"0": 1, "1": 1, "2": 0}},
    ]
    assert found["transfer_us"] == 89
    assert found["straggler_rank"] is None, "one of two collectives is no habit"


def test_the_rank_that_is_always_late_is_named_by_its_own_number() -> None:
    def rank(number: int, duration: float) -> dict[str, Any]:
        return trace(step(1, 0, 1000), event("kernel", NCCL, 900 - duration, duration, 17), rank=number)

    assert answers(rank(4, 500), rank(6, 50))["straggler_rank"] == 6
    assert answers(rank(4, 51), rank(6, 50))["straggler_rank"] is None


def test_collectives_beside_each_other_transfer_no_longer_than_the_time_that_they_take() -> None:
    both = trace(step(1, 0, 100), event("kernel", NCCL, 10, 50, 17), event("kernel", NCCL, 20, 50, 18))

    found = timeline.communication([timeline.reduce(both), timeline.reduce(both)])

    assert found is not None
    assert (found["busy_us"], found["transfer_us"], found["waiting_us"]) == (60, 60, 0)


def test_ranks_with_different_collectives_are_not_matched() -> None:
    one = trace(step(1, 0, 100), event("kernel", NCCL, 10, 50))
    two = trace(step(1, 0, 100), event("kernel", NCCL, 10, 50), event("kernel", NCCL, 70, 5))

    found = answers(one, two)

    assert (found["collectives"], found["transfer_us"], found["straggler_rank"]) == (None, None, None)
    assert found["comm_us"] == 52.5


def test_gloo_communicates_on_the_cpu() -> None:
    document = trace(
        step(1, 0, 100),
        event("cpu_op", "aten::mm", 0, 30, 1),
        event("cpu_op", "c10d::allreduce_", 30, 60, 1),
        event("user_annotation", "gloo:all_reduce", 20, 30, 2),
        event("user_annotation", "gloo:all_reduce", 40, 30, 3),
        backend="cpu:gloo",
    )

    found = timeline.communication([timeline.reduce(document)])
    said = answers(document)

    assert found is not None
    assert (found["source"], found["busy_us"], found["exposed_us"], found["idle_us"]) == ("gloo", 50, 40, 30)
    assert (said["backend"], said["cpu_comm_us"], said["comm_us"], said["comm_share"]) == ("gloo", 50, None, None)


def test_not_found_is_not_zero() -> None:
    quiet = trace(step(1, 0, 100), event("kernel", GEMM, 10, 50))

    assert timeline.communication([timeline.reduce(quiet)]) is None
    assert answers(quiet)["comm_us"] is None
    assert answers(quiet)["comm_share"] is None
    assert answers(trace())["usable_steps"] == 0


def test_a_trace_without_steps_is_one_window() -> None:
    found = answers(trace(event("kernel", NCCL, 10, 50), event("kernel", GEMM, 60, 40)))

    assert (found["step_us"], found["comm_us"]) == (90, 50)


@pytest.mark.parametrize("document", [{}, {"traceEvents": "none"}, 3, None])
def test_what_is_no_trace_is_refused(document: Any) -> None:
    with pytest.raises(ValueError, match="traceEvents"):
        timeline.reduce(document)


def test_events_of_any_shape_are_survived() -> None:
    odd = [None, 3, {"ph": "X"}, {"ph": "X", "cat": None, "name": 5, "ts": "x", "dur": None, "args": []}, {"ph": "M"}]

    assert timeline.reduce(odd).steps == ()
