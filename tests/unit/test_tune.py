"""The main job from plan to profile, with a fake in the place of the hardware."""

import json
import os
from dataclasses import replace

import pytest
import yaml
from fakes import FakeRunner, failure

from nccltune import plan as plans
from nccltune import terminal, tune
from nccltune.errors import EnvironmentFault, Interrupted, StorageError, StudyBusy, StudyMismatch, UsageError
from nccltune.records import Measurement
from nccltune.study import lock
from nccltune.study.ledger import Ledger
from nccltune.verdict import profile as profiles

SPACE = """
schema_version: 1
name: tiny
backend: gloo
knobs:
  OMP_NUM_THREADS: [null, 2, 3]
"""
FAST = "OMP_NUM_THREADS=2"


@pytest.fixture
def space(tmp_path):
    path = tmp_path / "tiny.yaml"
    path.write_text(SPACE)
    return path


@pytest.fixture
def make_plan(tmp_path, space, monkeypatch):
    """Plans for a machine with many cores, so that the space keeps its three candidates."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)

    def make(**changes):
        words = {
            "workload": "allreduce",
            "space": str(space),
            "trials": 4,
            "out": tmp_path,
            "mlflow": False,
            "nproc": 2,
        }
        return plans.prepare(plans.Options(**{**words, **changes}), dict(os.environ))

    return make


def speed(fast_us, noise_free_default_us=1000.0):
    return lambda candidate: fast_us if candidate.key == FAST else noise_free_default_us


def run(plan, runner, stop=lambda: False):
    return tune.run(plan, terminal.Screen(plan), stop, launcher=runner)


def test_a_faster_candidate_is_shipped_with_its_settings_in_the_profile(make_plan):
    conclusion = run(make_plan(workload="resnet"), FakeRunner(speed(800)))
    assert conclusion.verdict.word == "ship"
    assert "OMP_NUM_THREADS=2" in conclusion.env_file.read_text().splitlines()
    profile = yaml.safe_load(conclusion.profile_file.read_text())
    assert profile["settings"] == {"OMP_NUM_THREADS": "2"}
    assert profile["classes"] == {"OMP_NUM_THREADS": "system"}
    assert len(profile["numbers"]["pairs"]) == 6
    assert profile["numbers"]["gain"] == pytest.approx(0.25, abs=0.02)


def test_a_collective_alone_ships_at_best_as_that_and_its_settings_are_held_back(make_plan):
    conclusion = run(make_plan(), FakeRunner(speed(800)))
    assert (conclusion.verdict.word, conclusion.verdict.label) == ("ship", "ship (collective only)")
    assert conclusion.verdict.sentence.startswith("Ship (collective only)")
    env = conclusion.env_file.read_text()
    assert all(line.startswith("#") for line in env.splitlines())
    assert "--collective-only" in env
    assert "nccltune validate" in env
    assert yaml.safe_load(conclusion.profile_file.read_text())["settings"] == {"OMP_NUM_THREADS": "2"}


def test_with_collective_only_the_same_study_writes_them_without_a_launch(make_plan):
    run(make_plan(), FakeRunner(speed(800)))
    again = FakeRunner(speed(800))
    conclusion = run(make_plan(collective_only=True), again)
    assert again.requests == []
    lines = conclusion.env_file.read_text().splitlines()
    assert "OMP_NUM_THREADS=2" in lines
    assert any("COLLECTIVE ONLY" in line for line in lines)


def test_the_verdict_says_what_it_cost_and_when_it_has_paid(make_plan):
    conclusion = run(make_plan(workload="resnet"), FakeRunner(speed(800)))
    verdict = conclusion.verdict
    assert verdict.launches == conclusion.added
    assert verdict.round_launches == 12
    assert verdict.interval[0] < 0.25 < verdict.interval[1]
    assert verdict.bounds[0] < verdict.interval[0]
    assert verdict.gpu_s >= 0
    assert verdict.pays_after_steps >= 1


@pytest.mark.parametrize(
    ("each_s", "launched", "word"), [(1.0, 12, "ship"), (17.0, 8, "ship"), (40.0, 0, "no-verdict")]
)
def test_on_a_cpu_machine_slow_launches_leave_time_for_few_rounds(make_plan, monkeypatch, each_s, launched, word):
    ticks, real = iter(range(10**6)), tune.campaigns.Campaign

    def slow(*given, **more):
        return real(*given, **more, clock=lambda: next(ticks) * each_s)

    monkeypatch.setattr(tune.campaigns, "Campaign", slow)
    verdict = run(make_plan(workload="resnet", trials=None, budget_s=10_000.0), FakeRunner(speed(500))).verdict
    assert (verdict.round_launches, verdict.word) == (launched, word)


def test_a_named_space_without_a_candidate_is_refused_before_a_launch(make_plan, space):
    space.write_text(SPACE.replace("[null, 2, 3]", "[null]"))
    runner = FakeRunner()
    with pytest.raises(UsageError, match="leaves nothing but the default"):
        run(make_plan(), runner)
    assert runner.requests == []


def test_where_nothing_can_be_tuned_the_default_is_kept(make_plan, space):
    space.write_text(SPACE.replace("[null, 2, 3]", "[null]"))
    plan = make_plan()
    verdict = run(replace(plan, options=replace(plan.options, space="auto")), FakeRunner()).verdict
    assert verdict.word == "keep-default"


def test_a_limit_that_nobody_asked_for_lets_one_candidate_through(make_plan):
    plan = replace(make_plan(), budget_s=1e-9)
    assert plan.options.budget_s is None
    runner = FakeRunner()
    run(plan, runner)
    searched = [asked for asked in runner.requests if asked.launch_id.endswith("search")]
    assert len(searched) == 1


def test_a_budget_that_ends_before_the_first_candidate_gives_no_verdict(make_plan):
    verdict = run(make_plan(budget_s=1e-9), FakeRunner()).verdict
    assert verdict.word == "no-verdict"
    assert "--budget" in verdict.needed


def test_equal_candidates_keep_the_default_and_no_setting(make_plan):
    conclusion = run(make_plan(), FakeRunner(1000.0))
    assert conclusion.verdict.word == "keep-default"
    assert all(line.startswith("#") for line in conclusion.env_file.read_text().splitlines())


def test_a_lucky_search_is_found_out_in_the_fresh_rounds(make_plan):
    """The candidate looks fast in the search alone."""

    def lucky(candidate):
        confirming = any(r.launch_id.endswith("confirm") for r in runner.requests[-1:])
        return 900.0 if candidate.key == FAST and not confirming else 1000.0

    runner = FakeRunner(lucky)
    conclusion = run(make_plan(), runner)
    assert conclusion.verdict.word == "keep-default"
    assert len(conclusion.verdict.pairs) == 4  # the first look decides: the others are not paid for


def test_the_rounds_are_mirrored_and_fresh(make_plan):
    runner = FakeRunner(speed(800))
    run(make_plan(), runner)
    confirming = [r.candidate.key for r in runner.requests if r.launch_id.endswith("confirm")]
    assert confirming == ["default", FAST, FAST, "default"] * 3
    assert len({r.launch_id for r in runner.requests}) == len(runner.requests)
    assert len({r.token for r in runner.requests}) == len(runner.requests)


def test_the_same_command_again_adds_nothing(make_plan):
    first = run(make_plan(), FakeRunner(speed(800)))
    again = FakeRunner(speed(800))
    second = run(make_plan(), again)
    assert again.requests == []
    assert second.added == 0
    assert second.verdict == first.verdict


@pytest.mark.parametrize("after", [0, 1, 3, 5, 7, 9, 11, 14, 17])
def test_a_run_that_is_stopped_anywhere_goes_on_with_everything_kept(make_plan, after):
    whole = FakeRunner(speed(800))
    expected = run(make_plan(study="whole"), whole)

    def stop_then(request):
        if len(stopped.requests) == after:
            raise Interrupted("stopped")

    stopped = FakeRunner(speed(800), before=stop_then)
    with pytest.raises(Interrupted):
        run(make_plan(study="cut"), stopped)
    rest = FakeRunner(speed(800))
    conclusion = run(make_plan(study="cut"), rest)
    assert conclusion.verdict.word == expected.verdict.word
    assert conclusion.verdict.candidate == expected.verdict.candidate
    # A round that was cut in two is measured again as a whole, so that its launches stay neighbours.
    assert len(whole.requests) <= len(stopped.requests) + len(rest.requests) <= len(whole.requests) + 1


def both_fast(candidate):
    return {"default": 1000.0, FAST: 800.0}.get(candidate.key, 802.0)


def confirming(runner):
    return [r.candidate.key for r in runner.requests if r.launch_id.endswith("confirm")]


@pytest.mark.parametrize("after", [7, 8, 11, 15, 20])
def test_finals_of_several_go_on_in_the_round_in_which_they_were_cut(make_plan, after):
    whole = FakeRunner(both_fast)
    expected = run(make_plan(study="whole", finalists=3, rounds=8), whole).verdict
    round_of_three = confirming(whole)[:3]
    assert round_of_three[1] == "default"
    assert confirming(whole) == (round_of_three + round_of_three[::-1]) * 3

    def stop_then(request):
        if len(stopped.requests) == after:
            raise Interrupted("stopped")

    stopped = FakeRunner(both_fast, before=stop_then)
    with pytest.raises(Interrupted):
        run(make_plan(study="cut", finalists=3, rounds=8), stopped)
    rest = FakeRunner(both_fast)
    verdict = run(make_plan(study="cut", finalists=3, rounds=8), rest).verdict
    assert (verdict.word, verdict.candidate) == (expected.word, expected.candidate)
    assert len(verdict.finalists) == 2
    assert len(stopped.requests) + len(rest.requests) <= len(whole.requests) + 2


def test_a_finalist_that_is_far_behind_does_not_enter(make_plan):
    runner = FakeRunner(lambda candidate: {"default": 1000.0, FAST: 800.0}.get(candidate.key, 900.0))
    verdict = run(make_plan(finalists=3), runner).verdict
    assert [finalist.candidate.key for finalist in verdict.finalists] == [FAST]


def test_a_launch_that_fails_once_for_no_fault_of_the_candidate_is_tried_again(make_plan):
    def stumbles(candidate):
        if len(confirming(runner)) == 3:
            return failure("no_result", "unknown")
        return 800.0 if candidate.key == FAST else 1000.0

    runner = FakeRunner(stumbles)
    verdict = run(make_plan(), runner).verdict
    assert (verdict.word, verdict.rounds, verdict.round_launches) == ("ship", 6, 13)


def test_more_trials_go_on_from_the_study(make_plan):
    run(make_plan(), FakeRunner(1000.0))
    more = FakeRunner(1000.0)
    conclusion = run(make_plan(trials=6), more)
    assert len(more.requests) == 2
    assert conclusion.profile.numbers.trials == 6


def test_a_budget_in_time_that_is_spent_ends_the_search(make_plan, monkeypatch):
    clock = iter(range(0, 10**6, 10))
    monkeypatch.setattr(tune.campaigns.time, "monotonic", lambda: float(next(clock)))
    runner = FakeRunner(1000.0)
    real = tune.campaigns.Campaign

    def timed(*arguments, **words):
        return real(*arguments, **{**words, "clock": lambda: float(next(clock))})

    monkeypatch.setattr(tune.campaigns, "Campaign", timed)
    run(make_plan(budget_s=45.0), runner)
    assert len(runner.requests) == 5


def test_an_explicit_study_of_something_else_is_refused_with_the_fields(make_plan):
    run(make_plan(study="mine"), FakeRunner())
    with pytest.raises(StudyMismatch, match=r"workload.*sizes"):
        run(make_plan(study="mine", given={"sizes": "8K"}), FakeRunner())


def test_a_default_name_differs_whenever_the_plan_does(make_plan):
    names = {make_plan().study, make_plan(seed=1).study, make_plan(given={"sizes": "8K"}).study}
    assert len(names) == 3
    assert make_plan(trials=9).study == make_plan().study


def test_two_runs_in_one_folder_the_second_is_refused(make_plan):
    plan = make_plan()
    with lock.hold(plan.folder), pytest.raises(StudyBusy):
        run(plan, FakeRunner())


def test_an_environment_fault_of_the_default_stops_the_study_with_advice(make_plan):
    bad = failure("shm_too_small", "environment", stop=True, advice="enlarge /dev/shm")
    with pytest.raises(EnvironmentFault, match="enlarge /dev/shm"):
        run(make_plan(), FakeRunner(outcomes={"default": bad}))


def test_a_finalist_that_fails_in_a_fresh_launch_is_out(make_plan):
    def fails(candidate):
        if candidate.key == FAST and runner.requests[-1].launch_id.endswith("confirm"):
            return failure("hang_timeout", "candidate")
        return 800.0 if candidate.key == FAST else 1000.0

    runner = FakeRunner(fails)
    conclusion = run(make_plan(), runner)
    assert conclusion.verdict.word == "keep-default"
    assert conclusion.profile.settings == {}


def test_every_launch_is_in_the_ledger_and_the_tables(make_plan):
    plan = make_plan()
    runner = FakeRunner(speed(800))
    conclusion = run(plan, runner)
    with Ledger.open(plan.folder) as ledger:
        assert len(ledger.launches) == len(runner.requests)
        assert all(isinstance(launch.outcome, Measurement) for launch in ledger.launches)
    assert conclusion.table.read_text().count("\n") == 1 + len(ledger.trials)
    assert json.loads(conclusion.as_json())["launches_added"] == len(runner.requests)


def test_the_communication_share_of_a_model_is_profiled_once_a_candidate_outside_the_rounds(make_plan):
    runner = FakeRunner(speed(800))
    run(make_plan(workload="resnet"), runner)
    profiled = [r.launch_id for r in runner.requests if r.steps.profiled]
    assert profiled
    assert not any(launch_id.endswith("confirm") for launch_id in profiled)


def test_an_unknown_space_or_a_class_that_is_none_is_refused(make_plan):
    with pytest.raises(UsageError, match="'tcp'"):
        make_plan(space="tpc")
    with pytest.raises(UsageError, match="system"):
        plans.read_allow("sistem")


@pytest.mark.parametrize("error", [Interrupted("stopped"), EnvironmentFault("the machine is at fault")])
def test_tables_that_cannot_be_written_do_not_hide_why_the_run_ended(make_plan, monkeypatch, error):
    def full(_):
        raise StorageError("cannot write trials.csv")

    def ends(*_):
        raise error

    monkeypatch.setattr(tune.table, "write_tables", full)
    monkeypatch.setattr(tune, "_stages", ends)
    with pytest.raises(type(error)):
        run(make_plan(), FakeRunner(speed(900.0)))


def test_another_study_of_the_cluster_says_that_it_replaces_the_answer(make_plan, caplog):
    first = run(make_plan(), FakeRunner(1000.0))
    run(make_plan(), FakeRunner(1000.0))
    assert "is replaced" not in caplog.text
    run(make_plan(seed=1), FakeRunner(1000.0))
    assert f"the answer of the study {first.study.name}, which is replaced" in caplog.text


def test_a_rerun_keeps_what_a_validation_found_out(make_plan):
    plan = make_plan()
    profile = run(plan, FakeRunner(1000.0)).profile
    confirmed = profiles.Confirmation(
        at="2026-01-01T00:00:00+00:00", workload="resnet", gain=0.05, rounds=8, collective_only=False
    )
    profiles.write(profile.model_copy(update={"confirmed": confirmed}), plan.profile_folder)
    assert run(make_plan(), FakeRunner(1000.0)).profile.confirmed == confirmed
