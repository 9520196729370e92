"""Search for a batch size inside one launch: build, time and profile growing batches, each on an emptied GPU.

A start of the processes costs more than all sizes together, so there is one for all of them. Rank 0 decides
over the control channel whether to go on (``ladder.py``). Before each further size every rank knows the result
that the launch has if that size runs out of memory: the rank to which it happens leaves it and fails, and
torchrun ends the others, which may wait for that rank in a collective for good.
"""

from __future__ import annotations

import dataclasses
import gc
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import harness, ladder, rank_facts
from .failure import OutOfMemory
from .ladder import Try
from .request import Ladder
from .workload import Build, Context

if TYPE_CHECKING:
    import torch

    from .group import Group

# Libraries that allocate beside torch's allocator say it in their own words; torch passes them on in a RuntimeError.
_NO_MEMORY = re.compile(r"out of memory|_ALLOC_FAILED")


@dataclass(frozen=True)
class Rung:
    """One size that fitted, as rank 0 knows it.

    Attributes:
        fields: Of ``records.Measurement``, without the choice.
    """

    tried: Try
    fields: dict[str, Any]


def climb(launch: harness.Launch, group: Group, context: Context, build: Build) -> dict[str, Any] | None:
    """Try batch sizes until one is enough or the next would not fit.

    Args:
        launch: This launch; ``request.ladder`` says where to begin and when to stop.
        group: This rank's place.
        context: What ``build`` is given, but for ``batch_size``.
        build: Makes the workload.

    Returns:
        The fields of ``records.Measurement`` on rank 0, ``None`` elsewhere.

    Raises:
        OutOfMemory: A size did not fit. Where a smaller one did, the result says so and is written already.
    """
    rule, rungs = launch.request.ladder, list[Rung]()
    size, result = rule.first, dict[str, Any]()
    while size:
        try:
            sample = _sample(launch, group, context, build, size)
        except Exception as error:
            if result and (isinstance(error, OutOfMemory) or _NO_MEMORY.search(str(error))):
                harness.leave_result(launch, _ended_by(result, size))
            raise
        gathered = group.control.gather("batch size", _of_rank(launch, group))
        decided = None
        if gathered is not None:
            rungs.append(_rung(size, sample, gathered))
            decided = _decided(rungs, rule)
        decided = group.control.announce("batch size", decided)
        size, result = decided["next"], decided["result"]
        _empty(group.device)
    return result if group.rank == 0 else None


def _sample(launch: harness.Launch, group: Group, context: Context, build: Build, size: int) -> harness.Sample:
    """Measure one size. Nothing of its workload outlives the call, but for what Python's collector has to find."""
    launch.heartbeat.enter("warmup")
    options = {**context.options, "batch_size": size}
    return harness.Run(launch, group, dataclasses.replace(context, options=options)).sample(build)


def _of_rank(launch: harness.Launch, group: Group) -> dict[str, Any]:
    used_total = None
    if group.device.type == "cuda":
        import torch

        # Of the whole GPU: NCCL's buffers and the context are beside torch's allocator, which in turn still holds
        # everything that it needed for this size.
        free, total = torch.cuda.mem_get_info(group.device)
        used_total = [total - free, total]
    return {"memory": used_total, "report": rank_facts.report(group, launch.echo, None)}


def _rung(size: int, sample: harness.Sample, ranks: list[dict[str, Any]]) -> Rung:
    memory = [each["memory"] for each in ranks]
    known = None not in memory
    communication = sample.communication or {}
    tried = Try(
        batch_size=size,
        step_us=sample.step_us,
        idle_share=communication.get("idle_share"),
        memory_bytes=max(used for used, _ in memory) if known else None,
        memory_share=max(used / total for used, total in memory) if known else None,
    )
    fields = {
        "outcome": "measurement",
        "step_times_us": sample.timed.step_us,
        "clock": sample.clock,
        "warmup_steps": sample.warm.steps,
        "flat": sample.warm.flat,
        "metrics": {"host_us": sample.timed.host_us},
        "ranks": [each["report"] for each in ranks],
        "parts_s": {},
        "warnings": list(sample.warnings),
    }
    return Rung(tried, fields)


def _decided(rungs: list[Rung], rule: Ladder) -> dict[str, Any]:
    """Decide what comes next, and what the result is if that is nothing, or does not fit."""
    tries = [rung.tried for rung in rungs]
    decision = ladder.decide(tries, rule)
    choice = ladder.choice(tries, rule, decision.reason or "out of memory")
    fields = next(rung.fields for rung in rungs if rung.tried.batch_size == choice["batch_size"])
    return {"next": decision.next, "result": {**fields, "batches": choice}}


def _ended_by(result: dict[str, Any], size: int) -> dict[str, Any]:
    batches = result["batches"]
    tries = [*batches["tries"], dataclasses.asdict(Try(size))]
    return {**result, "batches": {**batches, "tries": tries}}


def _empty(device: torch.device) -> None:
    """Give the memory of a size back: models and their hooks hold each other, so the collector has to go first."""
    gc.collect()
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
