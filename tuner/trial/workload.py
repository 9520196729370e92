"""What is known about a workload before it starts: its options and how it is measured by default."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import UsageError, nearest
from ..quantities import parse_sizes
from ..records import Backend, Limits, Steps
from . import own_job

DTYPES = {"bf16": 2, "fp16": 2, "fp32": 4}
"""Data types of the workloads, with the bytes of one element."""

AUTO = "auto"
"""Batch size that the study's first launch chooses: so large that the GPU does not wait for the host."""

_LIMITS = Limits()
_OWN_LIMITS = Limits(startup_s=300.0, no_progress_s=120.0, total_s=1200.0)
"""A job of the user's own may load data and compile before its first step, and its steps may be slow."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One workload of ``nccltune.workloads``.

    Attributes:
        name: Value of ``--workload``.
        summary: One line for the user.
        collective_only: A collective alone: what helps it can cost a model step.
        accepts: The command-line options that it understands.
        defaults: Backend to the options where the user gives none.
        steps: Backend to how it is measured.
        own_module: Module below ``nccltune.workloads`` where that is not its name.
        arguments: What follows ``--`` on the command line; ``None`` where nothing may.
        limits: How long a launch on one node may take.
        first_batch: Where a search for a batch size begins; 0 where the workload has none.
    """

    name: str
    summary: str
    collective_only: bool
    accepts: tuple[str, ...]
    defaults: Mapping[Backend, Mapping[str, Any]] = field(repr=False)
    steps: Mapping[Backend, Steps] = field(repr=False)
    own_module: str = ""
    arguments: tuple[str, ...] | None = None
    limits: Limits = _LIMITS
    first_batch: int = 0

    @property
    def module(self) -> str:
        """Module below ``nccltune.workloads``."""
        return self.own_module or self.name

    @property
    def label(self) -> str:
        """The name as a part of a file's name."""
        bare = re.sub(r".*/|\.py\Z", "", self.name)
        return re.sub(r"[^\w.-]+", "-", bare).lstrip(".-")[:60] or self.module


_COLLECTIVE: dict[Backend, Steps] = {
    "nccl": Steps(warmup_min=20, warmup_max=200, timed_min=50, timed_max=200, block=50, timed_s=5.0),
    "gloo": Steps(warmup_min=10, warmup_max=60, timed_min=20, timed_max=200, block=20, timed_s=2.0),
}
_SIZES: dict[Backend, Mapping[str, Any]] = {
    "nccl": {"sizes": [[32 << 20, 1]], "dtype": "bf16"},
    "gloo": {"sizes": [[1 << 20, 4]], "dtype": "fp32"},
}
_MODEL: dict[Backend, Steps] = {
    "nccl": Steps(warmup_min=15, warmup_max=60, timed_min=20, timed_max=100, block=20, timed_s=10.0),
    "gloo": Steps(warmup_min=4, warmup_max=12, timed_min=12, timed_max=30, block=6, timed_s=3.0),
}
_GPT: dict[Backend, Mapping[str, Any]] = {
    "nccl": {"batch_size": AUTO, "sequence": 1024},
    "gloo": {"batch_size": 2, "sequence": 32},
}

WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload(
            name="allreduce",
            summary="all-reduce of one size or a mix of sizes",
            collective_only=True,
            accepts=("sizes", "dtype"),
            defaults=_SIZES,
            steps=_COLLECTIVE,
        ),
        Workload(
            name="allgather",
            summary="all-gather of one size or a mix of sizes",
            collective_only=True,
            accepts=("sizes", "dtype"),
            defaults=_SIZES,
            steps=_COLLECTIVE,
        ),
        Workload(
            name="reducescatter",
            summary="reduce-scatter of one size or a mix of sizes",
            collective_only=True,
            accepts=("sizes", "dtype"),
            defaults=_SIZES,
            steps=_COLLECTIVE,
        ),
        Workload(
            name="resnet",
            summary="ResNet-50 with DistributedDataParallel, one training step",
            collective_only=False,
            accepts=("batch_size",),
            defaults={"nccl": {"batch_size": AUTO}, "gloo": {"batch_size": 1, "image_size": 40}},
            steps=_MODEL,
            first_batch=32,
        ),
        Workload(
            name="transformer",
            summary="GPT with DistributedDataParallel, one training step",
            collective_only=False,
            accepts=("batch_size", "sequence"),
            defaults=_GPT,
            steps=_MODEL,
            first_batch=2,
        ),
        Workload(
            name="fsdp",
            summary="the same GPT sharded by FSDP2, one training step",
            collective_only=False,
            accepts=("batch_size", "sequence"),
            defaults=_GPT,
            steps=_MODEL,
            first_batch=2,
        ),
    )
}


def find(word: str, arguments: Sequence[str] | None = None) -> Workload:
    """Look up a workload: by its name, else a function ``module:factory``, else the path of a script.

    Args:
        word: Value of ``--workload``.
        arguments: What follows ``--``, or ``None``.

    Raises:
        UsageError: If there is none; the message has the nearest names. If arguments are given and it takes none.
    """
    if arguments is not None and (word in WORKLOADS or not own_job.is_script(word)):
        raise UsageError(
            f"the workload {word} takes no arguments after '--', only a script does",
            "leave out '--' and what follows it",
        )
    if word in WORKLOADS:
        return WORKLOADS[word]
    if own_job.is_script(word) and not own_job.is_factory(word):
        return _own(word, "script", own_job.script_options(word, arguments or ()), tuple(arguments or ()))
    if own_job.is_factory(word):
        return _own(word, "factory", own_job.factory_options(word))
    names = nearest(word, WORKLOADS)
    raise UsageError(
        f"there is no workload '{word}'",
        f"{names}; or name your own module:function or script.py" if names.startswith("Known") else names,
    )


def _own(word: str, module: str, options: Mapping[str, Any], arguments: tuple[str, ...] | None = None) -> Workload:
    return Workload(
        name=word,
        summary={"script": "a script of your own", "factory": "a model of your own"}[module],
        collective_only=False,
        accepts=(),
        defaults={"nccl": options, "gloo": options},
        steps=_MODEL,
        own_module=module,
        arguments=arguments,
        limits=_OWN_LIMITS,
    )


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
            raise UsageError(f"the workload {workload.name} takes no {flag}", f"it takes {takes or 'none of these'}")
        if text != AUTO or name != "batch_size":  # the default on a GPU is auto; on the CPU it is small and fixed
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
        raise UsageError(f"'{text}' is no batch size", "give the samples of one rank in a step, such as 64, or auto")
    return int(text)


def _read_sequence(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"'{text}' is no length of a sequence", "give a number of tokens, for instance 1024")
    return int(text)


_READERS = {
    "sizes": _read_sizes,
    "dtype": _read_dtype,
    "batch_size": _read_batch_size,
    "sequence": _read_sequence,
}
