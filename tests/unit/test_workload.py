"""What is known about a workload before it starts."""

import importlib.util

import pytest

from nccltune.errors import UsageError
from nccltune.trial import workload


@pytest.mark.parametrize("name", workload.WORKLOADS)
def test_every_workload_has_its_module_and_defaults_for_both_backends(name):
    assert importlib.util.find_spec(f"nccltune.workloads.{name}")
    for backend in ("nccl", "gloo"):
        assert workload.options(workload.WORKLOADS[name], backend, {})
        assert workload.WORKLOADS[name].steps[backend].timed_min > 0


def test_an_unknown_workload_names_the_nearest():
    with pytest.raises(UsageError, match="'resnet'"):
        workload.find("resnett")


def test_sizes_reach_the_request_as_bytes_and_calls():
    options = workload.options(workload.find("allreduce"), "nccl", {"sizes": "1M:20,32M:4", "dtype": None})
    assert options["sizes"] == [[1 << 20, 20], [32 << 20, 4]]


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("resnet", {"sizes": "32M"}, "takes no --sizes"),
        ("allreduce", {"batch_size": "8"}, "takes no --batch-size"),
        ("allreduce", {"dtype": "fp8"}, "no data type"),
        ("allreduce", {"sizes": "64K,1", "dtype": "bf16"}, "1 bytes in --sizes are no whole number of bf16"),
        ("resnet", {"batch_size": "0"}, "no batch size"),
        ("resnet", {"batch_size": "-3"}, "no batch size"),
    ],
)
def test_what_a_workload_cannot_use_is_refused(name, given, message):
    with pytest.raises(UsageError, match=message):
        workload.options(workload.find(name), "gloo", given)
