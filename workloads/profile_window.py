"""The separate, short window under ``torch.profiler``; its trace is reduced here and thrown away."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import timeline
from .control import Control
from .drive import drive

if TYPE_CHECKING:
    import torch

# Recorded steps that do not count: the profiler starts up in them, their launch is not hidden behind earlier
# work, and GPU records are lost at the beginning of a session if anywhere.
_PASSED_OVER = 2
# On a GPU one step more than counts is recorded: where it begins the last one ends, idle time and all.
_CLOSING = 1
# Some rank is always the last. On two quiet GPUs the other waits 0.4 % of a step of ResNet-50 for it.
_LATE_SHARE = 0.05


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
        reduced, problem = _reduce(path, count)
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
    """Record steps as ``torch.profiler`` does, through the part of it that does the work.

    ``torch.profiler.profile`` touches ``torch._inductor`` when it starts (torch 2.13), which imports the
    compiler: 1.5 s of processor time in every rank, more than a whole profiled window of a collective.
    """
    drive(_recording(count, device, path, beat), step)


def _recording(
    count: int, device: torch.device, path: Path, beat: Callable[[int], None]
) -> Generator[None, None, None]:
    from torch.autograd import profiler

    on_gpu = device.type == "cuda"
    with profiler.profile(use_device="cuda" if on_gpu else None, use_kineto=True) as recorded:
        for index in range(_PASSED_OVER + count + (_CLOSING if on_gpu else 0)):
            with profiler.record_function(f"ProfilerStep#{index}"):
                yield
            beat(index + 1)
    # The end of the block waits for the GPU, so the last step's kernels are in the record.
    recorded.export_chrome_trace(str(path))


def _reduce(path: Path, count: int) -> tuple[timeline.RankTrace | None, str]:
    try:
        # Kernel names of templates have held control characters and broken UTF-8.
        document = json.loads(path.read_text(encoding="utf-8", errors="replace"), strict=False)
        return timeline.reduce(document, first_step=_PASSED_OVER, last_step=_PASSED_OVER + count - 1), ""
    except (OSError, ValueError) as error:
        return None, f"the trace cannot be read: {error}"


def _warnings(ranks: list[timeline.RankTrace], found: dict[str, Any] | None) -> list[str]:
    warnings = []
    dropped, invalid = max(rank.dropped for rank in ranks), sum(rank.invalid for rank in ranks)
    if dropped:
        warnings.append(f"profiled window: {dropped} steps left out, the profiler lost records of the GPU")
    if invalid:
        warnings.append(f"profiled window: {invalid} kernels without time stamps left out")
    matched = timeline.match(ranks)
    if found is not None and matched is not None and matched.straggler is not None:
        share = matched.waited_us / found["step_us"]
        if share >= _LATE_SHARE:
            warnings.append(
                f"profiled window: rank {matched.straggler} arrived last in most collectives, others waited"
                f" {float(f'{matched.waited_us / 1e3:.3g}'):g} ms a step for it ({100 * share:.0f} %);"
                " no NCCL setting removes that"
            )
    if found is None:
        warnings.append("profiled window: no communication was found, so its share is not measured")
    return warnings
