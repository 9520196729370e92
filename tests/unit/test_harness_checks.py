from __future__ import annotations

import pytest
import torch

from nccltune.workloads import bandwidth, checks, collective
from nccltune.workloads.failure import WorkloadError
from nccltune.workloads.workload import Context, Numbers

CPU = torch.device("cpu")


def pattern(name: str, world_size: int, repeat: int = 0) -> checks._Pattern:
    return checks._Pattern(checks.torch_dtype(name), CPU, world_size, checks._EXACT[name], repeat)


@pytest.mark.parametrize("name", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("world_size", [1, 2, 3, 8, 127, 256, 1000])
def test_sums_are_exact_in_the_type_whatever_the_order(name: str, world_size: int) -> None:
    numbers, count = pattern(name, world_size), 9000
    ranks = list(range(world_size))
    forward, backward = torch.zeros(count, dtype=numbers.dtype), torch.zeros(count, dtype=numbers.dtype)
    exact = torch.zeros(count, dtype=torch.float64)
    for rank in ranks:
        forward += numbers.of(rank, count)
        backward += numbers.of(ranks[-1 - rank], count)
        exact += numbers.of(rank, count).double()

    assert torch.equal(forward, backward)
    assert torch.equal(forward.double(), exact)
    assert torch.equal(numbers.sum(count), forward)
    assert exact.max() > exact.min()


def test_swapped_chunks_a_lost_rank_and_an_old_result_show() -> None:
    numbers, count = pattern("bf16", 2), 1 << 16
    want = numbers.sum(count)
    for chunk in (1 << bits for bits in range(0, 16)):
        swapped = torch.cat([want[chunk : 2 * chunk], want[:chunk], want[2 * chunk :]])
        assert checks._compare(swapped, want), f"chunks of {chunk} elements swapped"
    assert checks._compare(numbers.of(0, count), want)
    assert checks._compare(numbers.of(1, count) * 2, want)
    assert checks._compare(pattern("bf16", 2, repeat=1).sum(count), want)


def test_a_wrong_element_is_said_with_its_place_and_values() -> None:
    want = torch.tensor([1.0, 2.0, 3.0])

    assert checks._compare(want.clone(), want) is None
    assert checks._compare(torch.tensor([1.0, 5.0, 3.0]), want) == "1 of 3 elements wrong, first at 1: 5 for 2"
    assert checks._compare(torch.tensor([float("nan"), 2.0, 3.0]), want) is not None


def test_sizes_go_up_to_the_largest_message() -> None:
    assert checks.sizes(4) == [4]
    assert checks.sizes(1 << 20) == [1024, 12_340, 65_536, 1 << 20]
    assert checks.sizes(100 << 20)[-1] == 100 << 20


def test_bandwidths_are_those_of_nccl_tests() -> None:
    # 32 MiB in 141 us on two ranks: 237.98 GB/s, and the bus factor of two ranks is one
    numbers = Numbers(step_us=0.0, call_us={"33554432": 141.0}, world_size=2)

    found = collective.bandwidths("all_reduce", numbers)

    assert found == {
        "algorithm_bandwidth_gbytes_per_s": pytest.approx(237.975, abs=1e-3),
        "bus_bandwidth_gbytes_per_s": pytest.approx(237.975, abs=1e-3),
    }
    assert bandwidth.all_reduce_factor(8) == 1.75
    assert bandwidth.gather_factor(8) == 0.875
    assert bandwidth.bus_bandwidth("all_gather", 8e9, 1e6, 4) == pytest.approx(6.0)


def test_each_size_of_a_mix_has_its_own_bandwidth() -> None:
    numbers = Numbers(step_us=0.0, call_us={"1000": 1.0, "4000": 2.0}, world_size=4)

    found = collective.bandwidths("all_reduce", numbers)

    assert found["algorithm_bandwidth_gbytes_per_s_1000"] == pytest.approx(1.0)
    assert found["bus_bandwidth_gbytes_per_s_4000"] == pytest.approx(3.0)


@pytest.mark.parametrize("sizes", [[], 5, [5], [[0, 1]], [[4, 1.5]], [[4, 1], [4, 2]], [[True, 1]], "32M"])
def test_sizes_that_cannot_be_used_are_refused(sizes: object) -> None:
    with pytest.raises(WorkloadError, match="option 'sizes'"):
        collective.mix({"sizes": sizes})


def context(**options: object) -> Context:
    return Context(0, 0, 2, "gloo", CPU, options, 0)


def test_a_step_calls_each_size_as_often_as_asked_and_marks_it() -> None:
    log: list[str] = []
    here = context(sizes=[[8, 2], [16, 1]], dtype="fp32")
    here._mark = log.append

    workload = collective.synthetic(here, "all_reduce", lambda elements, _: lambda: log.append(f"call {elements}"))
    workload.step()

    assert log == ["call 2", "call 2", "8", "call 4", "16"]
    assert (workload.message_bytes, workload.dtypes, dict(workload.calls)) == (16, ("fp32",), {"8": 2, "16": 1})


@pytest.mark.parametrize(
    ("options", "words"),
    [({"size": 3}, "'size' is unknown"), ({"dtype": "fp8"}, "'fp8' is unknown"), ({"sizes": [[6, 1]]}, "6 bytes")],
)
def test_wrong_options_are_named(options: dict[str, object], words: str) -> None:
    with pytest.raises(WorkloadError, match=words):
        collective.synthetic(context(**options), "all_reduce", lambda *_: lambda: None)
