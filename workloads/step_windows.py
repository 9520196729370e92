"""Where each profiled step lies: on the CPU by its annotation, on the GPU by what it launched."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping

from . import intervals
from .intervals import Interval
from .trace_events import Trace


def usable(trace: Trace, first_step: int | None, last_step: int | None) -> tuple[dict[int, Interval], int]:
    """Choose the steps that count, and draw their windows where their work ran.

    The profiler loses GPU records at the beginning of a session without a word (pytorch/pytorch issue 192021);
    a step with a launch whose kernel is missing is left out.

    Args:
        trace: One rank's.
        first_step: Number of the first step that counts, or ``None``.
        last_step: Number of the last one that counts, or ``None``; a later one only marks its end.

    Returns:
        Step to its window, in microseconds of the trace; and how many steps were left out. The whole trace is one
        step where none is marked.
    """
    on_cpu, on_gpu = trace.steps("user_annotation"), trace.steps("gpu_user_annotation")
    every = _worked(trace, on_cpu) or _in_a_row(on_gpu) or on_cpu
    numbers = [
        number
        for number in on_cpu or on_gpu
        if (first_step is None or number >= first_step) and (last_step is None or number <= last_step)
    ]
    if not numbers:
        extent = trace.extent()
        return ({0: extent} if extent and not on_cpu else {}), 0
    windows = {number: every[number] for number in numbers if number in every}
    bad = _lossy(trace, on_cpu) | (set(numbers) - windows.keys())
    kernels = [kernel.interval for kernel in trace.kernels]
    if kernels:
        bad |= {number for number, window in windows.items() if not intervals.clip(kernels, window)}
    return {number: window for number, window in windows.items() if number not in bad}, len(bad & set(numbers))


def _worked(trace: Trace, on_cpu: Mapping[int, Interval]) -> dict[int, Interval]:
    """Windows of the steps on the GPU: from the first kernel that a step launched to the next step's first.

    The GPU runs behind the host, by more than a step where steps are short, so the ranges on the CPU say
    nothing about it. The profiler's own range on the GPU covers only kernels that no other annotation
    claims: none at all in a step of collectives alone, the first few in a step of a model (torch 2.11).

    Empty where the trace does not say which launch a kernel belongs to.
    """
    launched = {event.correlation: event.begin for event in trace.cpu("cuda_runtime", "cuda_driver")}
    works: dict[int, Interval] = {}
    numbers = sorted(on_cpu, key=lambda number: on_cpu[number])
    starts = [on_cpu[number][0] for number in numbers]
    for kernel in trace.kernels:
        time = None if kernel.correlation is None else launched.get(kernel.correlation)
        position = bisect_right(starts, time) - 1 if time is not None else -1
        if position < 0 or time is None or time >= on_cpu[numbers[position]][1]:
            continue
        begin, end = works.get(numbers[position], kernel.interval)
        works[numbers[position]] = (min(begin, kernel.begin), max(end, kernel.end))
    return _in_a_row(works)


def _in_a_row(works: Mapping[int, Interval]) -> dict[int, Interval]:
    """Let each step last until the next one begins; the last one until its work ends."""
    begins = sorted(begin for begin, _ in works.values())
    return {
        number: (begin, min((other for other in begins if other > begin), default=end))
        for number, (begin, end) in works.items()
    }


def _lossy(trace: Trace, on_cpu: Mapping[int, Interval]) -> set[int]:
    """Find the steps with a launch of a kernel that has no record, not even one with zero stamps."""
    if not trace.recorded:
        return set()  # the trace holds no kernels at all: nothing on the GPU was recorded, and nothing is measured
    lost = [event.begin for event in trace.launches if event.correlation not in trace.recorded]
    return {number for number, (begin, end) in on_cpu.items() if any(begin <= time < end for time in lost)}
