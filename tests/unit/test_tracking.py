"""The MLflow mirror: what it holds, that it catches up, and that its death costs one warning."""

from __future__ import annotations

import json
import logging
import os
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from nccltune.records import (
    Candidate,
    Communication,
    Disturbance,
    Disturbances,
    Failure,
    Launch,
    Measurement,
    Purpose,
    Reach,
    Verdict,
)
from nccltune.study import disturbed, tracking
from nccltune.study.entries import NEVER_AGAIN, NoiseFloor, TrialEntry
from nccltune.study.ledger import Ledger
from nccltune.study.mlflow_store import clean_name
from nccltune.study.ranking import Ranked
from nccltune.study.tracking import Tracker
from nccltune.trial.paths import launch_paths

AT = "2026-01-02T03:04:05+00:00"
FAST = Candidate(settings={"A": "1"})
NOISE = NoiseFloor(
    relative=0.01, medians=(1.0, 1.01), n=2,
    reach=Reach(
        min_gain=0.01, rounds=20, finalists=3, power=0.8, wanted=0.02, smallest=0.03, rounds_needed=40,
        sentences=("shows 3 %", "takes 40 rounds"),
    ),
)  # fmt: skip


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    for name, value in tracking._SETTINGS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    plan = {"workload": "allreduce", "options": {"sizes(bytes)": [1, 2]}, "seed": 0}
    return Ledger.create(tmp_path / "runs" / "study", plan)


@pytest.fixture(scope="module")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An SQLite store with all its tables, which cost seconds to make."""
    from mlflow import MlflowClient

    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    MlflowClient(tracking_uri=f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def with_store(ledger: Ledger, empty_store: Path) -> None:
    shutil.copy(empty_store, ledger.folder / "mlflow.db")


def measured(ledger: Ledger, number: int, trial: int | None, candidate: Candidate, value: float) -> Launch:
    share = Communication(
        source="gloo", steps=1, step_us=1, busy_us=1, exposed_us=1, overlapped_us=0, compute_us=0, idle_us=0,
        share=0.25, exposed_share=0.125,
    )  # fmt: skip
    outcome = Measurement(
        step_times_us=(value,), clock="host", warmup_steps=1, metrics={"rate [GB/s], 1:2@x": 3.0}, communication=share
    )
    purpose: Purpose = "drift" if trial is None else "search"
    launch = Launch(
        launch_id=f"{number:04d}-{purpose}", purpose=purpose, candidate=candidate, trial=trial, started_at=AT,
        wall_s=2.0, outcome=outcome,
    )  # fmt: skip
    paths = launch_paths(ledger.folder, launch.launch_id)
    paths.folder.mkdir(parents=True)
    paths.result.write_text("{}")
    paths.log.write_text("hello")
    return launch


def judged(number: int, candidate: Candidate, value: float | None) -> TrialEntry:
    if value is None:
        return TrialEntry(number=number, candidate=candidate, state="infeasible", constraint=NEVER_AGAIN, reason="hang")
    return TrialEntry(number=number, candidate=candidate, state="measured", value_us=value)


def fill(ledger: Ledger, tracker: Tracker | None = None) -> None:
    """Write three trials and a drift launch, and show them to the tracker as a campaign would."""
    busy = Disturbances(seen=(Disturbance(kind="cpu", text="others used 1.0 of 2 cores", share=0.5),), cpu_others=0.5)
    hang = Failure(name="hang", blame="candidate", message="nobody moved", disturbances=busy)
    slow = Candidate(settings={"B": "x"})
    launches = [
        measured(ledger, 0, 0, Candidate(), 10.0),
        measured(ledger, 1, 1, FAST, 8.0),
        Launch(
            launch_id="0002-search", purpose="search", candidate=slow, trial=2, started_at=AT, wall_s=1, outcome=hang
        ),
        measured(ledger, 3, None, Candidate(), 10.5),
    ]  # fmt: skip
    trials = [judged(0, Candidate(), 10.0), judged(1, FAST, 8.0), judged(2, slow, None)]
    for launch, trial in zip(launches, [*trials, None], strict=True):
        ledger.append(launch)
        if tracker:
            tracker.on_launch_end(launch)
        if trial is not None:
            ledger.append(trial)
            if tracker:
                tracker.on_trial(trial, Ranked(FAST, 8.0, (8.0,)))


def runs(uri: str) -> tuple[Any, dict[str, Any], Any]:
    """Return the only parent run, its children by group, and the client."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    found = client.search_runs(experiments)
    (parent,) = [run for run in found if "nccltune.study_id" in run.data.tags]
    children = [run for run in found if "nccltune.group" in run.data.tags]
    assert all(run.data.tags["mlflow.parentRunId"] == parent.info.run_id for run in children)
    by_group = {run.data.tags["nccltune.group"]: run for run in children}
    assert len(by_group) == len(children)
    return parent, by_group, client


def one_warning(caplog: pytest.LogCaptureFixture) -> str:
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "\n" not in record.getMessage()
    return record.getMessage()


def test_study_stands_in_mlflow_with_names_made_clean(ledger: Ledger, capfd: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    tracker = Tracker(ledger, "study")
    tracker.start()
    tracker.noise_floor(NOISE)
    fill(ledger, tracker)
    tracker.verdict(
        Verdict(word="ship", sentence="Ship it.", candidate=FAST, gain=0.25), disturbed.count(ledger.launches)
    )
    tracker.close(wait_s=100)
    assert (root.handlers, root.level) == (handlers, level)
    assert capfd.readouterr().err == ""

    parent, children, client = runs(tracker.uri)
    assert tracker.uri == f"sqlite:///{ledger.folder}/mlflow.db"
    assert parent.info.status == "FINISHED"
    assert parent.info.run_name == "study"
    assert parent.data.params == {"workload": "allreduce", "options.sizes_bytes_": "[1, 2]", "seed": "0"}
    assert parent.data.tags["nccltune.name.options.sizes_bytes_"] == "options.sizes(bytes)"
    assert parent.data.tags["nccltune.verdict"] == "ship"
    assert parent.data.metrics["best_us"] == 8.0
    assert parent.data.metrics["gain"] == 0.25
    assert parent.data.metrics["noise_floor"] == 0.01
    assert (parent.data.metrics["smallest_gain_shown"], parent.data.metrics["rounds_needed"]) == (0.03, 40)
    assert parent.data.tags["nccltune.reach"] == "shows 3 %; takes 40 rounds"
    assert (parent.data.metrics["launches_disturbed"], parent.data.metrics["deciding_launches_disturbed"]) == (1, 0)
    assert parent.data.tags["nccltune.disturbed"].startswith("1 of 1 launches")
    assert children["trial-0002"].data.tags["nccltune.disturbed.0002-search"] == "others used 1.0 of 2 cores"
    assert children["trial-0002"].data.metrics["cpu_others_share"] == 0.5

    assert sorted(group for group in children if group.startswith("trial")) == [
        "trial-0000",
        "trial-0001",
        "trial-0002",
    ]
    fast = children["trial-0001"]
    assert fast.info.status == "FINISHED"
    assert fast.data.params == {"A": "1"}
    assert fast.data.metrics["median_step_us"] == 8.0
    assert fast.data.metrics["communication_share"] == 0.25
    assert fast.data.metrics["launches"] == 1
    assert fast.data.metrics["score_us"] == 8.0
    assert fast.data.metrics["rate _GB/s__ 1_2_x"] == 3.0
    assert [file.path for file in client.list_artifacts(fast.info.run_id, "0001-search")] == [
        "0001-search/launch.log",
        "0001-search/result.json",
    ]
    assert str(ledger.folder) in fast.info.artifact_uri
    assert children["trial-0002"].info.status == "FAILED"
    assert children["trial-0002"].data.tags["nccltune.reason"] == "hang"
    (drift,) = [run for group, run in children.items() if group.startswith("drift")]
    assert drift.info.status == "FINISHED"
    assert not Path("mlruns").exists(), "nothing is left in the working folder"


def content(uri: str) -> dict[str, Any]:
    """Everything that a reader sees, less what differs from run to run."""
    parent, children, _ = runs(uri)
    tags = {
        group: {name: value for name, value in run.data.tags.items() if name.startswith("nccltune")}
        for group, run in children.items()
    }
    return {
        "parent": parent.data.params,
        "metrics": {group: run.data.metrics for group, run in children.items()},
        "params": {group: run.data.params for group, run in children.items()},
        "status": {group: run.info.status for group, run in children.items()},
        "tags": tags,
    }


@pytest.mark.usefixtures("with_store")
def test_next_run_adds_what_is_missing_and_nothing_twice(ledger: Ledger) -> None:
    first = Tracker(ledger, "study")
    first.start()
    first.close("KILLED", wait_s=60)
    parent, children, _ = runs(first.uri)
    assert parent.info.status == "KILLED"
    assert children == {}

    fill(ledger)
    second = Tracker(ledger, "study")
    second.start()
    second.close(wait_s=60)
    seen = content(second.uri)
    assert seen["metrics"]["trial-0001"]["median_step_us"] == 8.0

    third = Tracker(ledger, "study")
    third.start()
    third.close(wait_s=60)
    assert content(third.uri) == seen
    again, _, client = runs(third.uri)
    assert again.info.run_id == parent.info.run_id
    assert again.info.status == "FINISHED"
    fast = runs(third.uri)[1]["trial-0001"]
    assert len(client.get_metric_history(fast.info.run_id, "median_step_us")) == 1


@pytest.mark.usefixtures("with_store")
def test_runs_that_a_killed_run_left_running_are_ended_and_used_again(ledger: Ledger) -> None:
    from mlflow import MlflowClient

    tracker = Tracker(ledger, "study")
    tracker.start()
    tracker.on_launch_end(measured(ledger, 0, 0, Candidate(), 10.0))
    tracker._jobs.put(None)  # the process is gone: nobody ended the runs
    tracker._thread.join()
    parent, children, _ = runs(tracker.uri)
    assert parent.info.status == children["trial-0000"].info.status == "RUNNING"

    second = Tracker(ledger, "study")
    second.start()
    second.close("KILLED", wait_s=60)
    again, ended, _ = runs(second.uri)
    assert again.info.run_id == parent.info.run_id
    assert again.info.status == ended["trial-0000"].info.status == "KILLED"
    assert MlflowClient(tracking_uri=second.uri).get_run(parent.info.run_id).info.end_time is not None


@pytest.mark.usefixtures("with_store")
def test_study_folder_that_was_carried_elsewhere_keeps_its_artifacts_together(ledger: Ledger, tmp_path: Path) -> None:
    tracker = Tracker(ledger, "study")
    tracker.start()
    tracker.close(wait_s=100)
    fill(ledger)
    moved = tmp_path / "elsewhere"
    ledger.close()
    ledger.folder.rename(moved)
    second = Tracker(Ledger.open(moved), "study")
    second.start()
    second.close(wait_s=60)
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=second.uri)
    experiment = client.get_experiment_by_name("nccltune")
    assert experiment is not None
    found = client.search_runs([experiment.experiment_id])
    assert {run.data.tags.get("nccltune.group") for run in found} >= {None, "trial-0000", "trial-0001"}
    assert all(str(moved) in run.info.artifact_uri for run in found)
    assert not ledger.folder.exists()


# ---- death


def closed_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


def timed_close(tracker: Tracker) -> float:
    start = time.monotonic()
    tracker.close()
    return time.monotonic() - start


def test_dead_server_costs_one_warning_and_delays_nothing(ledger: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    tracker = Tracker(ledger, "study", f"http://someone:secret@127.0.0.1:{closed_port()}")
    start = time.monotonic()
    tracker.start()
    fill(ledger, tracker)
    assert time.monotonic() - start < 1
    assert timed_close(tracker) < 15
    warning = one_warning(caplog)
    assert "is not used any further" in warning
    assert "secret" not in warning.partition(": ")[0]
    assert not tracker.alive


class Silent(BaseHTTPRequestHandler):
    """A server that takes a request and never answers, once its life is over; before, it answers with JSON."""

    answers = 0
    served = 0
    free = threading.Event()

    def respond(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        self.rfile.read(length)
        if type(self).served >= type(self).answers:
            self.free.wait(30)
            self.close_connection = True
            return
        type(self).served += 1
        body = json.dumps(self.answer()).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = respond

    def answer(self) -> dict[str, Any]:
        run = {"info": {"run_id": "r", "experiment_id": "1", "status": "RUNNING"}, "data": {}}
        if "experiments/get-by-name" in self.path:
            return {
                "experiment": {"experiment_id": "1", "name": "nccltune", "artifact_location": "mlflow-artifacts:/1"}
            }
        return {"run": run} if "runs/create" in self.path or "runs/update" in self.path else {}

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    Silent.answers, Silent.served = 0, 0
    Silent.free.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Silent)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield server
    Silent.free.set()
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("answers", [0, 4, 7])
def test_server_that_stops_answering_costs_one_warning(
    ledger: Ledger, server: ThreadingHTTPServer, caplog: pytest.LogCaptureFixture, answers: int
) -> None:
    Silent.answers = answers
    tracker = Tracker(ledger, "study", f"http://127.0.0.1:{server.server_address[1]}")
    tracker.start()
    fill(ledger, tracker)
    tracker._thread.join(0.5)
    assert timed_close(tracker) < 15
    assert Silent.served == answers
    assert "is not used any further" in one_warning(caplog)


def test_missing_mlflow_costs_one_warning(
    ledger: Ledger, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "mlflow", None)
    tracker = Tracker(ledger, "study")
    tracker.start()
    fill(ledger, tracker)
    assert timed_close(tracker) < 2
    assert "mlflow" in one_warning(caplog)


def test_database_that_is_none_costs_one_warning_and_a_bounded_end(
    ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    (ledger.folder / "mlflow.db").write_text("precious notes, no database at all" * 100)
    tracker = Tracker(ledger, "study")
    tracker.start()
    fill(ledger, tracker)
    start = time.monotonic()
    tracker.close(wait_s=4)
    assert time.monotonic() - start < 6
    one_warning(caplog)
    assert (ledger.folder / "mlflow.db").read_text().startswith("precious notes")


def test_slow_mlflow_is_not_waited_for(
    ledger: Ledger, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = threading.Event()
    monkeypatch.setattr("nccltune.study.mlflow_store.Store.connect", lambda self: free.wait(20))
    tracker = Tracker(ledger, "study")
    tracker.start()
    start = time.monotonic()
    tracker.close(wait_s=0.2)
    assert time.monotonic() - start < 2
    assert "the next run of this study adds the rest" in one_warning(caplog)
    free.set()
    tracker._thread.join()


# ---- places and names


def test_given_address_comes_before_the_variable_and_that_before_the_file(ledger: Ledger) -> None:
    environ = {"MLFLOW_TRACKING_URI": "http://b"}
    assert Tracker(ledger, "s", "http://a", environ).uri == "http://a"
    assert Tracker(ledger, "s", None, environ).uri == "http://b"
    assert Tracker(ledger, "s", None, {}).uri.startswith("sqlite:////")


def test_users_own_limits_are_kept(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nccltune.study.mlflow_store.Store.connect", lambda self: None)
    monkeypatch.setattr("nccltune.study.mlflow_store.Store.catch_up", lambda self, *_: None)
    monkeypatch.setattr("nccltune.study.mlflow_store.Store.end", lambda self, _: None)
    environ = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "60"}
    tracker = Tracker(ledger, "s", "http://a", environ)
    tracker.start()
    tracker.close()
    assert environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "60"
    assert environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "0"
    assert "MLFLOW_TRACKING_URI" not in os.environ


@pytest.mark.parametrize(
    ("name", "clean"),
    [
        ("timing(s)/gen", "timing_s_/gen"),
        ("OMP_NUM_THREADS", "OMP_NUM_THREADS"),
        ("a:b,c@d[e]", "a_b_c_d_e_"),
        ("../up", "up"),
        ("a//b/./c", "a/b/c"),
        ("/", "_"),
        ("é", "_"),
        ("x" * 300, "x" * 200),
    ],
)
def test_names_are_made_clean(name: str, clean: str) -> None:
    assert clean_name(name) == clean
