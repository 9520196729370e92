"""How long ``nccltune --help`` and a gloo launch of an almost empty step take.

usage: python benchmarks/start_up.py [--help-runs 10] [--launches 5]

Wants a quiet machine: the figures of README and docs are the best of the runs on two quiet cores.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from nccltune.records import Measurement, Placement, Request, Steps
from nccltune.trial.runner import LaunchRunner

NOTHING = Steps(warmup_min=1, warmup_max=1, timed_min=1, timed_max=1, block=1, timed_s=0.1, profiled=0)


def time_help(runs: int) -> list[float]:
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        subprocess.run([str(Path(sys.executable).with_name("nccltune")), "--help"], check=True, capture_output=True)
        times.append(time.perf_counter() - start)
    return times


def time_launches(runs: int) -> list[float]:
    times = []
    with tempfile.TemporaryDirectory() as folder:
        runner = LaunchRunner(Path(folder), stop=lambda: False)
        for number in range(runs):
            request = Request(
                study="benchmark",
                launch_id=f"{number:04d}",
                token=f"benchmark{number}",
                workload="allreduce",
                options={"sizes": [[1024, 1]], "dtype": "fp32"},
                backend="gloo",
                placement=Placement(nproc_per_node=2),
                steps=NOTHING,
            )
            start = time.perf_counter()
            outcome = runner.run(request)
            times.append(time.perf_counter() - start)
            if not isinstance(outcome, Measurement):
                raise SystemExit(f"the launch failed: {outcome.message}")
            print("  parts:", {name: round(seconds, 2) for name, seconds in outcome.parts_s.items()})
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--help-runs", type=int, default=10)
    parser.add_argument("--launches", type=int, default=5)
    arguments = parser.parse_args()
    for name, times in (
        ("nccltune --help", time_help(arguments.help_runs)),
        ("gloo launch", time_launches(arguments.launches)),
    ):
        print(f"{name}: best {min(times):.3f} s, median {statistics.median(times):.3f} s of {len(times)}")


if __name__ == "__main__":
    main()
