"""All-gather and reduce-scatter in a group of one, and what is said of a backend that lacks them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import distributed

from nccltune.workloads import allgather, bandwidth, checks, collective, fsdp, reducescatter
from nccltune.workloads.failure import Unsupported, UnsupportedDtype, WorkloadError
from nccltune.workloads.workload import Context, Numbers

CPU = torch.device("cpu")


def context(world_size: int = 1, **options: object) -> Context:
    return Context(0, 0, world_size, "gloo", CPU, options, 0)


@pytest.fixture
def alone() -> Iterator[None]:
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.parametrize(("module", "name"), [(allgather, "all_gather"), (reducescatter, "reduce_scatter")])
def test_a_step_calls_the_collective_with_the_whole_size(module, name, alone, monkeypatch) -> None:
    workload = module.build(context(sizes=[[64, 2], [12, 1]], dtype="fp32"))
    called: list[list[int]] = []
    monkeypatch.setattr(checks, name, lambda output, data: called.append(sorted([output.nbytes, data.nbytes])))
    workload.step()

    assert called == [[64, 64], [64, 64], [12, 12]]
    assert workload.message_bytes == 64
    assert workload.dtypes == ("fp32",)


@pytest.mark.parametrize("name", ["all_gather", "reduce_scatter"])
def test_the_bus_factor_of_a_total_size(name: str) -> None:
    # 1 GB in all, 1 ms, 8 ranks: each rank receives (or sends) 7/8 of it
    assert bandwidth.bus_bandwidth(name, 1e9, 1e3, 8) == pytest.approx(875.0)
    found = collective.bandwidths(name, Numbers(step_us=0, call_us={"1000000000": 1e3}, world_size=8))
    assert found["algorithm_bandwidth_gbytes_per_s"] == pytest.approx(1000.0)
    assert found["bus_bandwidth_gbytes_per_s"] == pytest.approx(875.0)


def test_a_size_below_one_element_a_rank_is_refused() -> None:
    with pytest.raises(WorkloadError, match="8 bytes hold no fp32 element for each of 3 ranks"):
        collective.synthetic(context(3, sizes=[[8, 1]], dtype="fp32"), "all_gather", lambda *_: lambda: None, shares=3)


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (RuntimeError("Invalid scalar type"), UnsupportedDtype, "gloo cannot reduce fp16 here"),
        (ValueError("data type is not supported for NCCL process group"), UnsupportedDtype, "cannot reduce fp16"),
        (RuntimeError("ProcessGroupGloo does not support reduce_scatter"), Unsupported, "has no reduce_scatter"),
        (NotImplementedError("nothing here"), Unsupported, "has no reduce_scatter"),
    ],
)
def test_what_a_backend_lacks_is_named(error, kind, words, alone) -> None:
    with pytest.raises(kind, match=words), checks.naming_what_is_missing("reduce_scatter", "fp16"):
        raise error


def test_any_other_error_passes_unchanged(alone) -> None:
    error = RuntimeError("Connection closed by peer")
    with pytest.raises(RuntimeError) as raised, checks.naming_what_is_missing("reduce_scatter", "fp16"):
        raise error
    assert raised.value is error


def test_fsdp_names_a_missing_collective_before_it_builds_anything(alone, monkeypatch) -> None:
    def lacking(*_):
        raise RuntimeError("Backend gloo does not support reduce_scatter")

    monkeypatch.setattr(checks, "reduce_scatter", lacking)
    with pytest.raises(Unsupported, match=r"gloo of torch .* has no reduce_scatter"):
        fsdp.build(context())
