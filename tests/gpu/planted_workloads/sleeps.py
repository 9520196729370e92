"""A step whose every part has a known length: sleep kernels on two streams, a collective, and a pause of the host.

::

    main stream    sleep 15 ms | sleep 5 ms  |        sleep 5 ms | (host pauses 6 ms)
    other stream               | sleep 8 ms  |
    NCCL's stream                            | all-reduce of 4 GiB

CUDA events take the true length of each part, on every rank and in the profiled steps too. They come back as metrics
``true_*_us``: the mean over ranks and over those profiled steps that count.
"""

from __future__ import annotations

import json
import time
from typing import Any

from nccltune.workloads.harness import main
from nccltune.workloads.workload import Context, Numbers, Workload

MESSAGE_BYTES = 4 << 30
PROFILED = 8  # steps that count, as the test asks for
CYCLES_A_MS = 1_900_000  # about; the events tell


def build(context: Context) -> Workload:
    import torch
    from torch import distributed

    buffer = torch.zeros(MESSAGE_BYTES // 2, dtype=torch.bfloat16, device=context.device)
    other = torch.cuda.Stream()
    steps: list[list[Any]] = []
    store = distributed.distributed_c10d._get_default_store()

    def mark(into: list[Any]) -> None:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        into.append(event)

    def sleep(milliseconds: float) -> None:
        torch.cuda._sleep(int(milliseconds * CYCLES_A_MS))

    def tell() -> None:
        """Let rank 0 know this rank's lengths so far: of the step before, whose end is this one's beginning."""
        before, (begin, both, beside, end), following = len(steps) - 2, steps[-2], steps[-1][0]
        times = {
            "compute": begin.elapsed_time(beside),
            "communication": both.elapsed_time(end),
            "overlapped": both.elapsed_time(beside),
            "step": begin.elapsed_time(following),
        }
        times["idle"] = times["step"] - begin.elapsed_time(end)
        store.set(f"true {context.rank} {before}", json.dumps(times))

    def step() -> None:
        found: list[Any] = []
        mark(found)
        sleep(15)
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
        steps.append(found)
        if len(steps) > 1:
            tell()
        time.sleep(0.006)

    def true_lengths(numbers: Numbers) -> dict[str, float]:
        counted = range(len(steps) - 1 - PROFILED, len(steps) - 1)  # one more was run, to close the last one
        told = [
            json.loads(store.get(f"true {rank} {number}")) for rank in range(numbers.world_size) for number in counted
        ]
        return {f"true_{name}_us": sum(each[name] for each in told) / len(told) * 1e3 for name in told[0]}

    return Workload(step=step, message_bytes=1 << 20, dtypes=("bf16",), metrics=true_lengths)


if __name__ == "__main__":
    main(build)
