"""A watch over a launch, the launches that a runner hands back with it, and how they are counted."""

from __future__ import annotations

import threading

import pytest
from fakes import FakeRunner, measurement, request

from nccltune.machine import disturbances
from nccltune.machine.disturbances import Watch
from nccltune.machine.gpu_use import GpuProcess, GpuState
from nccltune.records import Candidate, Disturbance, Disturbances, Disturbed, Launch, Placement
from nccltune.study import disturbed
from nccltune.trial import runner
from nccltune.trial.process import Ended


class FakeGpus:
    """One GPU with somebody on it; ``sampled`` is set once the launch has been sampled twice."""

    def __init__(self, error=None):
        self.error, self.count, self.sampled = error, 0, threading.Event()

    def states(self):
        self.count += 1
        if self.count >= 3:
            self.sampled.set()
        if self.error:
            raise self.error
        return {0: GpuState(reasons=0x40, used_bytes=0, is_exact=True, processes=(GpuProcess(7, "x", None, None),))}

    def busy(self, index, pid, since):
        return 0.5


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(disturbances, "_FIRST_S", 0.001)
    monkeypatch.setattr(disturbances, "EVERY_S", 0.001)


def watch(tmp_path, gpus):
    return Watch({}, tmp_path, find=lambda environ, count: gpus)


def test_gpus_are_sampled_while_the_launch_runs_and_no_longer(tmp_path):
    gpus = FakeGpus()
    with watch(tmp_path, gpus).over(gpus=1) as seen:
        assert gpus.sampled.wait(10)
        assert seen.result is None
    assert seen.result is not None
    assert [each.kind for each in seen.result.seen] == ["gpu-user", "gpu-clock"]
    assert seen.result.unknown == ("CPU time of others", "memory pressure")
    assert not [each for each in threading.enumerate() if each.name == "gpu samples"]


def test_a_launch_without_gpus_is_not_sampled(tmp_path):
    gpus = FakeGpus()
    with watch(tmp_path, gpus).over(gpus=0) as seen:
        pass
    assert gpus.count == 0
    assert seen.result is not None
    assert "GPUs" not in seen.result.unknown


@pytest.mark.parametrize("gpus", [None, FakeGpus(RuntimeError("lost"))], ids=["none", "broken"])
def test_gpus_that_cannot_be_watched_are_not_known_and_no_error(tmp_path, gpus):
    with watch(tmp_path, gpus).over(gpus=1) as seen:
        if gpus:
            assert gpus.sampled.wait(10)
    assert seen.result is not None
    assert seen.result.seen == ()
    assert "GPUs" in seen.result.unknown


def test_a_driver_that_never_answers_holds_no_launch_up_and_is_not_asked_again(tmp_path, monkeypatch):
    """As after a GPU fell off its bus, which is when launches hang and have to be ended."""
    monkeypatch.setattr(disturbances, "_HUNG_S", 0.05)
    answer, asked = threading.Event(), threading.Event()

    class Hung(FakeGpus):
        def states(self):
            if threading.current_thread() is not threading.main_thread():
                asked.set()
                answer.wait(30)
            return super().states()

    gpus = Hung()
    watching = watch(tmp_path, gpus)
    try:
        with watching.over(gpus=1) as seen:
            assert asked.wait(10)
        assert not answer.is_set()
        assert "GPUs" in seen.result.unknown
        count = gpus.count
        with watching.over(gpus=1) as seen:
            pass
        assert "GPUs" in seen.result.unknown
        assert gpus.count == count
    finally:
        answer.set()


def test_a_watch_ends_with_a_launch_that_raises(tmp_path):
    with pytest.raises(KeyboardInterrupt), watch(tmp_path, FakeGpus()).over(gpus=1):
        raise KeyboardInterrupt
    assert not [each for each in threading.enumerate() if each.name == "gpu samples"]


# ---- the runner


SEEN = Disturbances(seen=(Disturbance(kind="cpu", text="others", share=0.5),), cpu_others=0.5)


class FakeWatch:
    """Sees always the same, and remembers what it was asked to watch."""

    def over(self, **asked):
        self.asked = asked
        return self

    def __enter__(self):
        return disturbances.Seen(SEEN)

    def __exit__(self, *_):
        return None


@pytest.fixture
def launched(tmp_path, monkeypatch):
    """Runs a request whose processes end at once, and returns the outcome and what was watched."""
    ended = Ended(reason="exited", returncode=0, wall_s=1.0, survivors=(), phase=None)
    monkeypatch.setattr(runner, "run_guarded", lambda argv, **_: ended)

    def run(outcome=None, **fields):
        if outcome is not None:
            monkeypatch.setattr(runner.LaunchRunner, "_judge", lambda *_: outcome)
        fake = FakeWatch()
        return runner.LaunchRunner(tmp_path, watch=fake, environ={}).run(request(**fields)), fake.asked

    return run


def test_a_launch_comes_with_what_disturbed_it_also_when_it_failed(launched):
    outcome, asked = launched()
    assert outcome.outcome == "failure"
    assert outcome.disturbances == SEEN
    assert asked == {"gpus": 0, "ours_known": True}


def test_the_gpus_of_this_machines_ranks_are_watched(launched):
    _, asked = launched(measurement(request()), backend="nccl", placement=Placement(nproc_per_node=4))
    assert asked == {"gpus": 4, "ours_known": True}


@pytest.mark.parametrize(("host", "expected"), [("here", SEEN), ("elsewhere", None)])
def test_nothing_is_said_of_a_launch_whose_ranks_ran_elsewhere(launched, monkeypatch, host, expected):
    monkeypatch.setattr(runner.socket, "gethostname", lambda: host)
    measured = measurement(request())
    ranks = tuple(rank.model_copy(update={"host": "here"}) for rank in measured.ranks)
    outcome, asked = launched(
        measured.model_copy(update={"ranks": ranks}), placement=Placement(nnodes=2, launch_prefix=("srun",))
    )
    assert outcome.disturbances == expected
    assert asked["ours_known"] is False


# ---- counted


def launch(number, purpose, found):
    outcome = measurement(request()).model_copy(update={"disturbances": found})
    return Launch(
        launch_id=f"{number:04d}-{purpose}", purpose=purpose, candidate=Candidate(), started_at="", wall_s=1.0,
        outcome=outcome,
    )  # fmt: skip


def test_disturbed_launches_are_counted_and_the_worst_is_named():
    unsure = Disturbances(seen=(Disturbance(kind="gpu-user", text="somebody"), *SEEN.seen))
    launches = [
        launch(0, "noise-floor", SEEN),
        launch(1, "search", None),
        launch(2, "confirm", unsure),
        launch(3, "confirm", Disturbances()),
    ]
    found = disturbed.count(launches)
    assert (found.watched, found.disturbed, found.deciding, found.deciding_disturbed) == (3, 2, 2, 1)
    assert found.sentence == "2 of 3 launches, 1 of 2 in the fresh rounds; the worst: somebody (0002-confirm)"


def test_launches_that_nobody_watched_were_not_undisturbed():
    assert disturbed.count([launch(0, "search", None)]) == Disturbed()
    assert disturbed.count([launch(0, "search", Disturbances())]).sentence == ""


def test_a_runner_without_processes_watches_nothing():
    assert FakeRunner().run(request()).disturbances is None
