"""A step of some 50 ms on a GPU that ends in an all-reduce; the variable ``PLANTED_SLOWDOWN`` makes it longer.

Its value is the share of the step that is added (``0.02`` is 2 %), as cycles in which the GPU waits. The work streams
through memory: large matrix products run into the GPU's power limit, where a pause is paid back by higher clocks,
so that what is planted would not be there.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nccltune.workloads.harness import main
from nccltune.workloads.workload import Context, Workload

if TYPE_CHECKING:
    import torch

STEP_MS = 50.0
ELEMENTS = 1 << 28  # 1 GiB of fp32, far beyond the caches
GRADIENTS = 1 << 24  # 32 MiB of bf16
CYCLES = 20_000_000  # of the calibration, some 10 ms


def build(context: Context) -> Workload:
    import torch
    from torch import distributed

    state = torch.ones(ELEMENTS, device=context.device)
    gradients = torch.ones(GRADIENTS, device=context.device, dtype=torch.bfloat16)
    wait: Any = torch.cuda._sleep

    def once() -> None:
        state.mul_(1.0)

    passes = max(1, round(STEP_MS / _fastest_ms(context.device, once)))
    slowdown = float(os.environ.get("PLANTED_SLOWDOWN", "0"))
    cycles = round(slowdown * STEP_MS / _fastest_ms(context.device, lambda: wait(CYCLES)) * CYCLES)

    def step() -> None:
        for _ in range(passes):
            once()
        if cycles:
            wait(cycles)
        distributed.all_reduce(gradients)

    return Workload(
        step=step,
        message_bytes=gradients.nbytes,
        dtypes=("bf16",),
        metrics=lambda _: {"passes": float(passes), "planted_cycles": float(cycles)},
    )


def _fastest_ms(device: torch.device, action: Callable[[], None], tries: int = 10) -> float:
    """Time on the GPU by events; the shortest of some tries, the first of which warm up."""
    import torch

    make: Any = torch.cuda.Event
    times = []
    for _ in range(tries):
        began, ended = make(enable_timing=True), make(enable_timing=True)
        began.record()
        action()
        ended.record()
        torch.cuda.synchronize(device)
        times.append(began.elapsed_time(ended))
    return float(min(times[2:]))


if __name__ == "__main__":
    main(build)
