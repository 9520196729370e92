"""A step whose every part has a known length: sleep kernels on two streams, a collective, and a pause of the host.

::

    main stream    sleep 15 ms | sleep 5 ms  |        sleep 5 ms | (host pauses 6 ms)
    other stream               | sleep 8 ms  |
    NCCL's stream                            | all-reduce of 4 GiB

CUDA events take the true length of each part in the timed steps; they come back as metrics ``true_*_us``, the mean over
ranks.
"""

from __future__ import annotations

import time
from typing import Any

from nccltune.workloads.harness import main
from nccltune.workloads.workload import Context, Numbers, Workload

MESSAGE_BYTES = 4 << 30
CYCLES_A_MS = 1_900_000  # about; the events tell


def build(context: Context) -> Workload:
    import torch
    from torch import distributed

    buffer = torch.zeros(MESSAGE_BYTES // 2, dtype=torch.bfloat16, device=context.device)
    other = torch.cuda.Stream()
    marks: list[list[Any]] = []

    def mark(into: list[Any]) -> None:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        into.append(event)

    def sleep(milliseconds: float) -> None:
        torch.cuda._sleep(int(milliseconds * CYCLES_A_MS))

    def step() -> None:
        found: list[Any] = []
        mark(found)
        sleep(15)
        mark(found)
        other.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(other):
            sleep(8)
        sleep(5)
        torch.cuda.current_stream().wait_stream(other)
        mark(found)
        work = distributed.all_reduce(buffer, async_op=True)
        sleep(5)
        mark(found)
        work.wait()
        mark(found)
        torch.cuda.synchronize()
        time.sleep(0.006)
        marks.append(found)

    def true_lengths(numbers: Numbers) -> dict[str, float]:
        steps = marks[-20:]
        begin, _alone, both, beside, end = range(5)

        def mean_us(first: int, last: int) -> float:
            return sum(step[first].elapsed_time(step[last]) for step in steps) / len(steps) * 1e3

        return {
            "true_compute_us": mean_us(begin, beside),
            "true_communication_us": mean_us(both, end),
            "true_overlapped_us": mean_us(both, beside),
            "true_idle_us": numbers.step_us - mean_us(begin, end),
        }

    return Workload(step=step, message_bytes=1 << 20, dtypes=("bf16",), metrics=true_lengths)


if __name__ == "__main__":
    main(build)
