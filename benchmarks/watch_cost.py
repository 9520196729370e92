"""Measure what it costs to watch a launch for other users of the machine.

    python benchmarks/watch_cost.py

reads the host as before and after a launch, samples the GPUs as during it, and prints milliseconds of this process's
CPU time, and the share of a core for a launch of ten seconds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from nccltune.machine import gpu_use, host_use
from nccltune.machine.disturbances import EVERY_S

LAUNCH_S = 10.0
TIMES = 100


def cost_s(read: Callable[[], object]) -> float:
    """CPU time of one call, the mean of many."""
    read()
    started = time.process_time()
    for _ in range(TIMES):
        read()
    return (time.process_time() - started) / TIMES


def main() -> None:
    host = cost_s(host_use.read_host)
    processes = len(host_use.read_host().processes or ())
    print(f"host: {1e3 * host:.2f} ms a reading, {processes} processes")
    gpus = gpu_use.find(os.environ, 64)
    sample = cost_s(gpus.states) if gpus else 0.0
    print(f"GPUs: {f'{1e3 * sample:.2f} ms a sample of {len(gpus.states())}' if gpus else 'not measured, none here'}")
    print(f"a launch of {LAUNCH_S:.0f} s: {(2 * host + LAUNCH_S / EVERY_S * sample) / LAUNCH_S:.2%} of a core")


if __name__ == "__main__":
    main()
