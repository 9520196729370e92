"""What is known about a workload before it starts: its options and how it is measured by default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import UsageError, nearest
from ..quantities import parse_sizes
from ..records import Backend, Steps

DTYPES = {"bf16": 2, "fp16": 2, "fp32": 4}
"""Data types of the workloads, with the bytes of one element."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One workload of ``nccltune.workloads``.

    Attributes:
        name: Module below ``nccltune.workloads`` and value of ``--workload``.
        summary: One line for the user.
        collective_only: A collective alone: what helps it can cost a model step.
        accepts: The command-line options that it understands.
        defaults: Backend to the options where the user gives none.
        steps: Backend to how it is measured.
    """

    name: str
    summary: str
    collective_only: bool
    accepts: tuple[str, ...]
    defaults: Mapping[Backend, Mapping[str, Any]] = field(repr=False)
    steps: Mapping[Backend, Steps] = field(repr=False)


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload(
            name="allreduce",
            summary="all-reduce of one size or a mix of sizes",
            collective_only=True,
            accepts=("sizes", "dtype"),
            defaults={
                "nccl": {"sizes": [[32 << 20, 1]], "dtype": "bf16"},
                "gloo": {"sizes": [[1 << 20, 4]], "dtype": "fp32"},
            },
            steps={
                "nccl": Steps(warmup_min=20, warmup_max=200, timed_min=50, timed_max=200, block=50, timed_s=5.0),
                "gloo": Steps(warmup_min=10, warmup_max=60, timed_min=20, timed_max=200, block=20, timed_s=2.0),
            },
        ),
        Workload(
            name="resnet",
            summary="ResNet-50 with DistributedDataParallel, one training step",
            collective_only=False,
            accepts=("batch_size",),
            defaults={"nccl": {"batch_size": 256}, "gloo": {"batch_size": 1, "image_size": 40}},
            steps={
                "nccl": Steps(warmup_min=15, warmup_max=60, timed_min=20, timed_max=100, block=20, timed_s=10.0),
                "gloo": Steps(warmup_min=4, warmup_max=12, timed_min=12, timed_max=30, block=6, timed_s=3.0),
            },
        ),
    )
}


def find(name: str) -> Workload:
    """Look up a workload.

    Raises:
        UsageError: If there is none of that name; the message has the nearest names.
    """
    try:
        return WORKLOADS[name]
    except KeyError:
        raise UsageError(f"there is no workload '{name}'", nearest(name, WORKLOADS)) from None


def options(workload: Workload, backend: Backend, given: Mapping[str, str | None]) -> dict[str, Any]:
    """Put the user's options over the workload's defaults.

    Args:
        workload: The workload.
        backend: Of the process group, since the defaults differ.
        given: Option (``sizes``, ``dtype``, ``batch_size``) to the user's text, or ``None`` where not given.

    Returns:
        The options as the request carries them.

    Raises:
        UsageError: If an option is not the workload's, or its value cannot be used.
    """
    chosen = dict(workload.defaults[backend])
    for name, text in given.items():
        if text is None:
            continue
        if name not in workload.accepts:
            flag = "--" + name.replace("_", "-")
            takes = " and ".join("--" + other.replace("_", "-") for other in workload.accepts)
            raise UsageError(f"the workload {workload.name} takes no {flag}", f"it takes {takes}")
        chosen[name] = _READERS[name](text)
    for size, _ in chosen.get("sizes", ()):
        if size % DTYPES[chosen["dtype"]]:
            raise UsageError(
                f"{size} bytes in --sizes are no whole number of {chosen['dtype']} elements",
                f"give a multiple of {DTYPES[chosen['dtype']]}",
            )
    return chosen


def _read_sizes(text: str) -> list[list[int]]:
    return [list(entry) for entry in parse_sizes(text)]


def _read_dtype(text: str) -> str:
    if text not in DTYPES:
        raise UsageError(f"'{text}' is no data type of the workloads", nearest(text, DTYPES))
    return text


def _read_batch_size(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"'{text}' is no batch size", "give the samples of one rank in one step, for instance 64")
    return int(text)


_READERS = {"sizes": _read_sizes, "dtype": _read_dtype, "batch_size": _read_batch_size}
