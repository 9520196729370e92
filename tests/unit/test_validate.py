"""A profile held against the default again, with a fake in the place of the hardware."""

import dataclasses
import json
import os
from datetime import UTC, datetime, timedelta

import pytest
from fakes import FakeRunner, failure, measurement

from nccltune import validate
from nccltune.errors import Interrupted, MachineError, ProfileError, StorageError, UsageError
from nccltune.machine import facts as machine
from nccltune.records import BatchChoice, BatchTry
from nccltune.study.campaign import Observers
from nccltune.study.ledger import Ledger
from nccltune.verdict import guard, validation
from nccltune.verdict import profile as profiles
from nccltune.verdict.reading import read_profile

SETTINGS = {"OMP_NUM_THREADS": "2"}
KEY = "OMP_NUM_THREADS=2"


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Profiles of this machine, which has many cores for the time being, and the jobs to validate them."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)

    class Make:
        folder = tmp_path / "profile"

        def profile(self, **changes):
            here = machine.fingerprint(machine.gather(dict(os.environ)))
            values = {
                "cluster": "cpu-16core",
                "study": "s",
                "created": "2026-01-01",
                "verdict": "ship",
                "sentence": "Ship it",
                "settings": SETTINGS,
                "workload": "resnet",
                "workload_options": {"batch_size": 3, "image_size": 40},
                "backend": "gloo",
                "min_gain": 0.02,
                "numbers": profiles.Numbers(),
                "conditions": {**here, "world size": "3", "nccltune": "0"},
            }
            profile = profiles.Profile(**{**values, **changes})
            profiles.write(profile, self.folder)
            return profile

        def job(self, environ=None, **words):
            options = validate.Options(**{"profile": self.folder, "out": tmp_path, **words})
            return validate.prepare(options, dict(os.environ) if environ is None else environ)

        def results(self):
            return json.loads((self.folder / "validation.json").read_text())["validations"]

    return Make()


def speed(us):
    return lambda candidate: us if candidate.key == KEY else 1000.0


def run(job, runner, stop=lambda: False):
    return validate.run(job, Observers(), stop, launcher=runner)


@pytest.mark.parametrize(
    ("us", "noise", "word", "status"),
    [
        (800.0, 0.001, "confirmed", 0),
        (1000.0, 0.001, "not confirmed", 3),
        (1200.0, 0.001, "not confirmed", 3),
        (1010.0, 0.2, "no verdict", 4),
    ],
)
def test_each_word_and_its_status(make, us, noise, word, status):
    make.profile()
    result = run(make.job(), FakeRunner(speed(us), noise=noise))
    assert (result.word, validation.STATUS[result.word]) == (word, status)
    assert result.sentence.startswith(f"{word.capitalize()}: ")
    assert "95 % interval" in result.sentence
    (kept,) = make.results()
    assert kept == result.model_dump(mode="json")


def test_the_launches_are_those_of_the_profile_in_fresh_mirrored_rounds(make):
    make.profile()
    runner = FakeRunner(speed(800))
    result = run(make.job(), runner)
    assert runner.requests[0].workload == "resnet"
    assert runner.requests[0].options == {"batch_size": 3, "image_size": 40}
    assert runner.requests[0].placement.world_size == 3
    sides = [candidate.key for candidate in runner.candidates]
    assert sides[:4] in (["default", KEY, KEY, "default"], [KEY, "default", "default", KEY])
    assert len({request.token for request in runner.requests}) == len(sides)
    assert result.min_gain == 0.02
    assert len(result.pairs) == len(sides) / 2


def test_a_batch_size_that_is_to_be_chosen_is_chosen_first_and_stands_in_the_result(make):
    class Machine(FakeRunner):
        def _outcome(self, request):
            if not request.ladder.first:
                return super()._outcome(request)
            tried = BatchTry(batch_size=64, step_us=1000.0, idle_share=0.02, memory_share=0.4)
            return measurement(request, batches=BatchChoice(batch_size=64, reason="busy", tries=(tried,)))

    make.profile()
    job, runner = make.job(), Machine(speed(800))
    result = run(dataclasses.replace(job, plan=dataclasses.replace(job.plan, asked={"batch_size": "auto"})), runner)
    assert result.word == "confirmed"
    assert [request.options["batch_size"] for request in runner.requests][:3] == ["auto", 64, 64]
    assert sum(request.ladder.first > 0 for request in runner.requests) == 1
    assert result.workload_options == {"batch_size": 64}


def test_an_environment_that_has_the_settings_already_does_not_taint_the_default(make):
    """An image with the exported settings is where a nightly job runs."""
    make.profile()
    runner = FakeRunner(speed(800))
    job = make.job({**os.environ, "OMP_NUM_THREADS": "2"})
    run(job, runner)
    assert job.plan.environ.get("OMP_NUM_THREADS") is None
    assert all(
        "OMP_NUM_THREADS" not in request.environment for request in runner.requests if request.candidate.is_default
    )


def test_the_next_validation_is_measured_anew_and_added(make):
    make.profile()
    first = run(make.job(), FakeRunner(speed(800)))
    again = FakeRunner(speed(1000))
    second = run(make.job(), again)
    assert again.requests
    assert first.runs != second.runs
    assert [entry["word"] for entry in make.results()] == ["confirmed", "not confirmed"]


@pytest.mark.parametrize("after", [0, 1, 2, 5])
def test_one_that_was_cut_off_goes_on(make, after):
    make.profile()
    whole = FakeRunner(speed(800))
    run(make.job(out=make.folder / "whole"), whole)

    def stop(_):
        if len(cut.requests) == after:
            raise Interrupted("stopped")

    cut = FakeRunner(speed(800), before=stop)
    with pytest.raises(Interrupted):
        run(make.job(), cut)
    rest = FakeRunner(speed(800))
    assert run(make.job(), rest).word == "confirmed"
    assert len(whole.requests) <= len(cut.requests) + len(rest.requests) <= len(whole.requests) + 1


def test_one_that_was_cut_off_long_ago_begins_anew(make):
    make.profile()

    def stop(_):
        if len(cut.requests) == 3:
            raise Interrupted("stopped")

    cut = FakeRunner(speed(800), before=stop)
    with pytest.raises(Interrupted):
        run(make.job(), cut)
    job = make.job()
    begun = validate.study_folder(job)
    assert Ledger.exists(begun)
    later = validate.study_folder(job, datetime.now(UTC) + timedelta(days=1))
    assert later != begun
    assert not Ledger.exists(later)


def test_settings_that_fail_by_their_own_fault_are_not_confirmed(make):
    make.profile()
    result = run(make.job(), FakeRunner(outcomes={KEY: failure("hang_timeout", "candidate")}))
    assert result.word == "not confirmed"
    assert "it hung" in result.sentence


def test_a_default_that_fails_gives_no_verdict(make):
    make.profile()
    result = run(make.job(), FakeRunner(outcomes={"default": failure("port_taken", "infrastructure")}))
    assert result.word == "no verdict"


def test_what_changed_is_named(make):
    profile = make.profile()
    conditions = {**profile.conditions, "torch": "1.0", "cpu": "Z80"}
    make.profile(conditions=conditions)
    changed = " ".join(make.job(workload="allreduce", nproc=2).changed)
    for said in ("torch: 1.0 before", "cpu: Z80 before", "workload: resnet before, allreduce now", "world size: 3"):
        assert said in changed
    make.profile()
    assert make.job().changed == ()


def test_a_script_of_ones_own_is_started_as_it_was_and_a_change_of_it_is_named(make, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print(1)")
    was = {"script": "train.py", "arguments": ["--lr", "1"], "sha256": "0" * 16}
    make.profile(workload="train.py", workload_options=was)
    job = make.job()
    assert job.plan.workload_options["arguments"] == ["--lr", "1"]
    assert [line for line in job.changed if "SHA-256" in line]
    runner = FakeRunner(speed(800))
    run(job, runner)
    assert runner.requests[0].options == {**job.plan.workload_options}
    assert make.job(arguments=("--lr", "2")).plan.workload_options["arguments"] == ["--lr", "2"]


# ---- what it makes of the profile


def test_a_model_confirms_what_was_measured_on_a_collective(make):
    make.profile(collective_only=True, workload="allreduce", workload_options={"sizes": [[65536, 1]], "dtype": "fp32"})
    assert guard.why_withheld(read_profile(make.folder)) is not None
    run(make.job(), FakeRunner(speed(800)))
    assert guard.why_withheld(read_profile(make.folder)) is not None  # again on the collective: it stays withheld
    run(make.job(workload="resnet", given={"batch_size": "4"}), FakeRunner(speed(800)))
    profile = read_profile(make.folder)
    assert guard.why_withheld(profile) is None
    assert profile.confirmed.workload == "resnet"
    assert profile.confirmed.workload_options["batch_size"] == 4
    assert "on resnet" in (make.folder / "nccl.env").read_text()
    assert f"{KEY}\n" in (make.folder / "nccl.env").read_text()
    run(make.job(workload="resnet"), FakeRunner(speed(1000)))
    assert guard.why_withheld(read_profile(make.folder)) is not None


@pytest.mark.parametrize(
    ("word", "alone", "before", "after"),
    [
        ("confirmed", False, None, "model"),
        ("confirmed", True, None, "collective"),
        ("confirmed", True, "model", "model"),
        ("confirmed", True, "collective", "collective"),
        ("not confirmed", False, "model", None),
        ("not confirmed", True, "model", "model"),
        ("no verdict", False, "model", "model"),
        ("no verdict", False, None, None),
    ],
)
def test_the_last_validation_counts_and_a_model_more_than_a_collective(make, word, alone, before, after):
    kinds = {
        "model": profiles.Confirmation(at="1", workload="resnet"),
        "collective": profiles.Confirmation(at="1", workload="allreduce", collective_only=True),
        None: None,
    }
    profile = make.profile(confirmed=kinds[before])
    result = validation.Result(
        at="2", word=word, sentence="", settings=SETTINGS, workload="w", workload_options={}, collective_only=alone,
        emulated=0, min_gain=0.01,
    )  # fmt: skip
    found = validation.confirmation(profile, result)
    assert (found and found.collective_only) == (kinds[after] and kinds[after].collective_only)
    assert (found is None) == (after is None)


def test_a_read_only_image_still_gets_its_answer(make, monkeypatch, caplog):
    make.profile()

    def refuse(*_):
        raise OSError(30, "Read-only file system")

    job = make.job()
    monkeypatch.setattr(profiles, "replace_file", refuse)
    assert run(job, FakeRunner(speed(800))).word == "confirmed"
    assert "Read-only file system" in caplog.text


# ---- refused before any launch


def test_a_profile_without_settings_or_of_the_other_backend_is_refused(make):
    make.profile(settings={}, verdict="keep-default")
    with pytest.raises(ProfileError, match="nothing to test"):
        make.job()
    make.profile(settings={"NCCL_BUFFSIZE": "1048576"}, backend="nccl")
    with pytest.raises(ProfileError, match="measured on nccl, and this machine runs gloo"):
        make.job()


def test_an_unknown_workload_is_refused(make):
    make.profile()
    with pytest.raises(UsageError, match="resnet"):
        make.job(workload="resnett")


def test_results_that_cannot_be_read_are_found_before_time_is_spent(make):
    make.profile()
    (make.folder / "validation.json").write_text("{")
    runner = FakeRunner(speed(800))
    with pytest.raises(StorageError, match=r"validation\.json"):
        run(make.job(), runner)
    assert runner.requests == []


def test_settings_that_cannot_be_launched_here_cost_no_launch(make):
    make.profile()
    job = dataclasses.replace(make.job(), refused="NCCL_X came with NCCL 9.9")
    runner = FakeRunner(speed(800))
    result = run(job, runner)
    assert result.word == "not confirmed"
    assert "NCCL 9.9" in result.sentence
    assert runner.requests == []


def test_settings_in_files_are_taken_out_of_the_default_or_refused(make):
    profile = make.profile(settings={"NCCL_BUFFSIZE": "1048576"}, backend="nccl")
    facts = make_facts("/home/u/.nccl.conf")
    cleaned = validate._without_files(facts, profile)
    assert cleaned.inherited.settings == {"NCCL_NVLS_ENABLE": "0"}
    with pytest.raises(MachineError, match=r"/etc/nccl\.conf sets NCCL_BUFFSIZE"):
        validate._without_files(make_facts("/etc/nccl.conf"), profile)


def make_facts(source):
    from nccltune.machine.inherited import Inherited

    settings = {"NCCL_BUFFSIZE": "1048576", "NCCL_NVLS_ENABLE": "0"}
    sources = {"NCCL_BUFFSIZE": source, "NCCL_NVLS_ENABLE": "environment"}
    return machine.Facts(inherited=Inherited(settings=settings, sources=sources))
