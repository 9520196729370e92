"""Eight ranks on two emulated nodes, as on one host with eight GPUs: measured, cut off twice, and gone on with.

Eight ranks that import torch share the cores of this machine, so every limit here is minutes and no time is asserted.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nccltune.records import Limits, Measurement, Placement
from nccltune.study.ledger import Ledger
from nccltune.trial import process
from nccltune.trial.environment import HOSTID

pytestmark = [pytest.mark.launch, pytest.mark.timeout(900)]

RANKS = 8
PATIENCE_S = 240
WORDS = "--workload allreduce --sizes 4K --nproc 8 --emulate-nodes 2 --trials 1 --no-mlflow --json"


ONE_LAUNCH = """
import sys
from pathlib import Path
from nccltune.records import Request
from nccltune.trial.runner import LaunchRunner
folder, python, request = sys.argv[1:]
LaunchRunner(Path(folder), package="scripted_workloads", python=python).run(Request.model_validate_json(request))
"""


def wait_for(condition, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


class Study:
    """One study below ``folder``; each ``start`` is the same command again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "nccltune", *WORDS.split(), "--out", str(self.folder)],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def tokens(self) -> list[str]:
        return [json.loads(path.read_text())["token"] for path in self.folder.glob("runs/*/launches/*/request.json")]

    def left(self) -> list[int]:
        return list(process.holders(self.tokens()))

    def all_are_up(self) -> bool:
        """Whether the agent and its eight ranks are there."""
        return len(self.left()) == RANKS + 1

    def results(self) -> int:
        return len(list(self.folder.glob("runs/*/launches/*/result.json")))

    def ledger(self) -> Ledger:
        (path,) = (self.folder / "runs").iterdir()
        return Ledger.open(path)


@pytest.fixture
def study(tmp_path: Path):
    made = Study(tmp_path)
    yield made
    process.sweep(made.tokens())


def ended(tuner: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = tuner.communicate(timeout=PATIENCE_S)
    return tuner.returncode, out, err


def test_a_study_of_eight_ranks_survives_both_kinds_of_end_and_comes_to_its_verdict(study: Study) -> None:
    interrupted = study.start()
    assert wait_for(study.all_are_up, PATIENCE_S)
    interrupted.send_signal(signal.SIGINT)
    status, _, err = ended(interrupted)
    assert (status, study.left()) == (130, []), err

    killed = study.start()
    assert wait_for(lambda: study.results() == 1 and study.all_are_up(), 2 * PATIENCE_S), "in its second launch"
    killed.kill()
    killed.communicate()
    assert wait_for(lambda: not study.left(), PATIENCE_S)

    status, out, err = ended(study.start())
    assert status == 0, err
    told = json.loads(out)
    assert told["verdict"]["word"] in ("keep-default", "no-verdict")
    assert told["launches_added"] == 2, "of three, the one that was complete is kept"
    assert study.left() == []

    outcomes = [launch.outcome for launch in study.ledger().launches]
    assert len(outcomes) == 3
    for outcome in outcomes:
        assert isinstance(outcome, Measurement), outcome
        assert [report.rank for report in outcome.ranks] == list(range(RANKS))
        assert [report.echo[HOSTID] for report in outcome.ranks] == ["emulated-0"] * 4 + ["emulated-1"] * 4
        assert outcome.checks.cases > 0
        assert outcome.checks.failures == ()
        factor = outcome.metrics["bus_bandwidth_gbytes_per_s"] / outcome.metrics["algorithm_bandwidth_gbytes_per_s"]
        assert factor == pytest.approx(2 * 7 / 8)
    assert told["numbers"]["gpu_s"] == pytest.approx(
        RANKS * sum(each.wall_s for each in study.ledger().launches), abs=1
    )


def test_kill_9_of_the_tuner_leaves_none_of_eight_stubborn_ranks_and_their_children(launches) -> None:
    limits = Limits(startup_s=PATIENCE_S, no_progress_s=PATIENCE_S)
    wanted = launches.request("stubborn", limits=limits, placement=Placement(nproc_per_node=RANKS))
    words = [str(launches.folder), launches.quick, wanted.model_dump_json()]
    tuner = subprocess.Popen(
        [sys.executable, "-c", ONE_LAUNCH, *words],
        env=launches.environ,
        start_new_session=True,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert wait_for(lambda: len(launches.left()) == 1 + 2 * RANKS, PATIENCE_S)
    finally:
        tuner.kill()
        tuner.wait()
    assert wait_for(lambda: not launches.left(), PATIENCE_S)
    assert process.sweep_study(launches.folder) == []


def test_a_rank_of_eight_that_fails_is_named_by_its_error(launches) -> None:
    outcome = launches.run("raise", placement=Placement(nproc_per_node=RANKS, emulated_nodes=2))
    assert (outcome.name, outcome.blame) == ("workload_error", "workload")
    assert "the labels are 7, not 5" in outcome.message


def test_a_segfault_of_one_of_eight_is_told_from_the_exits_of_the_others(launches) -> None:
    outcome = launches.run("segfault", placement=Placement(nproc_per_node=RANKS))
    assert outcome.name == "segfault"
    assert [path.name for path in launches.folder.iterdir()] == ["launches"]
