"""The tuner's own work a trial: everything but the launch. The bound is 150 ms.

Runs a search over a fake runner, with ledger, Optuna's SQLite mirror and, on request, MLflow, and
compares the wall time of the campaign with the number of trials::

    python benchmarks/tuner_overhead.py --trials 50
    python benchmarks/tuner_overhead.py --trials 50 --launch-s 0.5 --mlflow
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from pathlib import Path

from nccltune.records import Candidate, Dimension, Measurement, Outcome, Purpose, RankReport, Request, Space
from nccltune.study.campaign import Budget, Campaign, Observers
from nccltune.study.ledger import Ledger
from nccltune.study.search import Search
from nccltune.study.table import write_tables
from nccltune.study.tracking import Tracker

BOUND_MS = 150
SPACE = Space(
    name="benchmark",
    dimensions=tuple(Dimension(name=f"KNOB_{letter}", values=(None, "1", "2", "4", "8", "16")) for letter in "ABCDEFG"),
    backend="gloo",
)


class Fake:
    """A runner that answers with as much as a real launch of two ranks has to say."""

    def __init__(self, launch_s: float) -> None:
        self.launch_s = launch_s
        self.draw = random.Random(0)
        self.spent_s = 0.0

    def run(self, request: Request) -> Outcome:
        start = time.perf_counter()
        middle = 100.0 + sum(len(value) for value in request.candidate.settings.values())
        ranks = tuple(
            RankReport(rank=rank, local_rank=rank, host="h", pid=1, device="cpu", torch_version="2", echo={})
            for rank in range(2)
        )
        times = tuple(self.draw.gauss(middle, 1) for _ in range(200))
        outcome = Measurement(step_times_us=times, clock="host", warmup_steps=5, ranks=ranks)
        time.sleep(self.launch_s)
        self.spent_s += time.perf_counter() - start
        return outcome


def request_for(candidate: Candidate, launch_id: str, purpose: Purpose) -> Request:  # noqa: ARG001
    return Request(study="b", launch_id=launch_id, token="t", workload="empty", backend="gloo", candidate=candidate)


def measure(folder: Path, trials: int, launch_s: float, mlflow: bool) -> None:
    runner = Fake(launch_s)
    ledger = Ledger.create(folder, {"benchmark": True})
    tracker = Tracker(ledger, "benchmark") if mlflow else None
    start = time.perf_counter()
    search = Search(SPACE, lambda _: None, trials, 0, f"sqlite:///{folder}/optuna.db", "benchmark")
    began = time.perf_counter()
    if tracker:
        tracker.start()
    campaign = Campaign(ledger, runner, request_for, Observers(tracker) if tracker else None)
    campaign.noise_floor(3)
    campaign.search(search, Budget(trials))
    ended = time.perf_counter()
    write_tables(ledger)
    tables = time.perf_counter()
    if tracker:
        tracker.close()
    closed = time.perf_counter()
    own_ms = 1000 * (ended - began - runner.spent_s) / trials
    print(f"own work a trial       {own_ms:8.1f} ms   over {trials} trials, MLflow {'beside' if mlflow else 'off'}")
    print(f"Optuna's import        {began - start:8.2f} s    once")
    print(f"tables                 {tables - ended:8.2f} s    once")
    print(f"end of MLflow          {closed - tables:8.2f} s    once")
    if own_ms > BOUND_MS:
        raise SystemExit(f"over the bound of {BOUND_MS} ms")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--trials", type=int, default=50)
    arguments.add_argument("--launch-s", type=float, default=0.0, help="pretended seconds of a launch, not counted")
    arguments.add_argument("--mlflow", action="store_true", help="with the MLflow mirror beside")
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder) / "study", options.trials, options.launch_s, options.mlflow)


if __name__ == "__main__":
    main()
