"""The separate, short window under ``torch.profiler``; its trace is reduced here and thrown away."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import timeline
from .control import Control

if TYPE_CHECKING:
    import torch

# The profiler's own warm-up step, and one recorded step that is passed over: its launch is not hidden,
# since the queue was empty, and GPU records are lost at the beginning of a session if anywhere.
_WARMUP, _PASSED_OVER = 1, 1


def run(
    step: Callable[[], None],
    count: int,
    device: torch.device,
    control: Control,
    untraced_step_us: float,
    beat: Callable[[int], None],
) -> tuple[dict[str, Any] | None, list[str]]:
    """Profile a few steps on all ranks and sum up where their time goes.

    Args:
        step: One step.
        count: Steps that count.
        device: The GPU or the CPU.
        control: Brings the ranks' numbers to rank 0.
        untraced_step_us: Step time without the profiler; used on rank 0.
        beat: Told the number of steps done.

    Returns:
        On rank 0 the fields of ``records.Communication``, or ``None`` where nothing was found, and warnings.
        Elsewhere ``None`` and nothing.

    Raises:
        RankSilent: A rank did not answer.
    """
    with tempfile.TemporaryDirectory(prefix="nccltune-") as folder:
        path = Path(folder) / "trace.json"
        _record(step, count, device, path, beat)
        reduced, problem = _reduce(path)
    gathered = control.gather("profiled", {"trace": reduced and reduced.to_plain(), "problem": problem})
    if gathered is None:
        return None, []
    warnings = [
        f"profiled window, rank {rank}: {each['problem']}" for rank, each in enumerate(gathered) if each["problem"]
    ]
    if warnings:
        return None, warnings
    ranks = [timeline.RankTrace.from_plain(each["trace"]) for each in gathered]
    found = timeline.communication(ranks, untraced_step_us)
    return found, _warnings(ranks, found)


def _record(
    step: Callable[[], None], count: int, device: torch.device, path: Path, beat: Callable[[int], None]
) -> None:
    import torch
    from torch.profiler import ProfilerActivity, profile, schedule

    on_gpu = device.type == "cuda"
    recorded = count + _PASSED_OVER
    with profile(
        activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])],
        schedule=schedule(wait=0, warmup=_WARMUP, active=recorded, repeat=1),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(path)),
    ) as profiler:
        for index in range(_WARMUP + recorded):
            step()
            # Work of the warm-up must not run into the record, and the last step's must be in it.
            if on_gpu and index in (_WARMUP - 1, _WARMUP + recorded - 1):
                torch.cuda.synchronize(device)
            profiler.step()
            beat(index + 1)


def _reduce(path: Path) -> tuple[timeline.RankTrace | None, str]:
    try:
        # Kernel names of templates have held control characters and broken UTF-8.
        document = json.loads(path.read_text(encoding="utf-8", errors="replace"), strict=False)
        return timeline.reduce(document, first_step=_WARMUP + _PASSED_OVER), ""
    except (OSError, ValueError) as error:
        return None, f"the trace cannot be read: {error}"


def _warnings(ranks: list[timeline.RankTrace], found: dict[str, Any] | None) -> list[str]:
    warnings = []
    dropped, invalid = max(rank.dropped for rank in ranks), sum(rank.invalid for rank in ranks)
    if dropped:
        warnings.append(f"profiled window: {dropped} steps left out, the profiler lost records of the GPU")
    if invalid:
        warnings.append(f"profiled window: {invalid} kernels without time stamps left out")
    if found is None:
        warnings.append("profiled window: no communication was found, so its share is not measured")
    return warnings
