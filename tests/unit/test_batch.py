"""The first launches of a study: a batch size is chosen, a host-bound step refused, one that does not fit explained."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import yaml
from fakes import FakeRunner, failure, measurement

from nccltune import plan as plans
from nccltune import terminal, tune
from nccltune.errors import HostBound, Interrupted, StudyError
from nccltune.records import BatchChoice, BatchTry, Communication, Measurement
from nccltune.study import host_bound
from nccltune.study.ledger import Ledger
from nccltune.trial import workload
from nccltune.verdict import guard

SPACE = """
schema_version: 1
name: tiny
backend: gloo
knobs:
  OMP_NUM_THREADS: [null, 2, 3]
"""
CHOICE = BatchChoice(
    batch_size=64,
    reason="busy",
    tries=(
        BatchTry(batch_size=32, step_us=900.0, idle_share=0.4, memory_bytes=1 << 30, memory_share=0.25),
        BatchTry(batch_size=64, step_us=1000.0, idle_share=0.021, memory_bytes=1 << 31, memory_share=0.41),
    ),
)
FULL = CHOICE.model_copy(update={"reason": "memory"})


def window(idle):
    return Communication(
        source="cuda", steps=3, step_us=1000.0, busy_us=300.0, exposed_us=100.0, overlapped_us=200.0, compute_us=600.0,
        idle_us=300.0, share=0.3, exposed_share=0.1, idle_share=idle,
    )  # fmt: skip


class Machine(FakeRunner):
    """A GPU that idles so much of the step, and whose ladder comes to so much; ``fits`` is the largest batch."""

    def __init__(self, idle=0.01, choice=CHOICE, fits=1 << 20, **fields):
        super().__init__(**fields)
        self.idle, self.choice, self.fits = idle, choice, fits

    def _outcome(self, request):
        if request.ladder.first:
            if isinstance(self.choice, BatchChoice):
                return measurement(request, batches=self.choice)
            return self.choice
        if request.options["batch_size"] > self.fits:
            return failure("cuda_oom", message="CUDA out of memory")
        outcome = super()._outcome(request)
        if request.steps.profiled and isinstance(outcome, Measurement):
            return outcome.model_copy(update={"communication": window(self.idle)})
        return outcome

    @property
    def purposes(self):
        return [request.launch_id.partition("-")[2] for request in self.requests]


@pytest.fixture
def make_plan(tmp_path, monkeypatch):
    """Plans as on a GPU, but for the space: ``batch_size`` is what the option says."""
    (tmp_path / "tiny.yaml").write_text(SPACE)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)

    def make(batch_size="auto", **changes):
        words = {
            "workload": "resnet", "space": str(tmp_path / "tiny.yaml"), "trials": 2, "rounds": 4, "out": tmp_path,
            "mlflow": False, "nproc": 2,
        }  # fmt: skip
        plan = plans.prepare(plans.Options(**{**words, **changes}), dict(os.environ))
        return replace(plan, asked={"batch_size": batch_size})

    return make


def run(plan, runner):
    return tune.run(plan, terminal.Screen(plan), lambda: False, launcher=runner)


# ---- auto


def test_one_launch_chooses_and_all_others_carry_the_number(make_plan):
    machine = Machine()
    run(make_plan(), machine)

    assert machine.purposes[:4] == ["batch", "noise-floor", "noise-floor", "noise-floor"]
    assert machine.purposes.count("batch") == 1
    first = machine.requests[0]
    assert (first.ladder.first, first.ladder.last, first.ladder.idle_share) == (32, 0, host_bound.BUSY_SHARE)
    assert first.candidate.is_default
    assert {request.options["batch_size"] for request in machine.requests[1:]} == {64}
    assert not any(request.ladder.first for request in machine.requests[1:])


def test_a_study_that_goes_on_launches_no_second_search_and_keeps_the_number(make_plan, capsys):
    def stop_then(_):
        if len(stopped.requests) == 2:
            raise Interrupted("stopped")

    stopped = Machine(before=stop_then)
    with pytest.raises(Interrupted):
        run(make_plan(), stopped)
    rest = Machine(choice=CHOICE.model_copy(update={"batch_size": 32}))
    run(make_plan(), rest)

    assert "batch" not in rest.purposes
    assert {request.options["batch_size"] for request in rest.requests} == {64}
    assert capsys.readouterr().err.count("batch size 64 a rank, chosen") == 2, "each run says it"


def test_a_search_that_was_measured_but_not_written_down_counts(make_plan):
    """The tuner died between the launch's line and the choice's."""
    plan = make_plan()
    run(plan, Machine())
    lines = (plan.folder / "ledger.jsonl").read_text().splitlines(keepends=True)
    assert '"record":"batch"' in lines[3]
    (plan.folder / "ledger.jsonl").write_text("".join(lines[:3]))
    again = Machine()
    run(plan, again)
    assert "batch" not in again.purposes


def test_the_number_is_on_the_screen_in_the_profile_and_not_in_the_studys_name(make_plan, capsys):
    plan = make_plan()
    conclusion = run(plan, Machine())

    said = "batch size 64 a rank, chosen: the GPU was idle in 2.1 % of the step, with 41 % of its memory"
    assert said in capsys.readouterr().err
    profile = yaml.safe_load(conclusion.profile_file.read_text())
    assert profile["workload_options"] == {"batch_size": 64}
    assert profile["conditions"]["batch size"] == said.removeprefix("batch size ")
    assert profile["conditions"]["GPU idle"] == "1 % of the default's step"
    with Ledger.open(plan.folder) as ledger:
        assert ledger.plan["workload"]["options"] == {"batch_size": "auto"}
        assert ledger.batch == CHOICE
    assert "--batch-size" not in plan.command()
    assert "--batch-size auto" in make_plan(given={"batch_size": "auto"}).command()


def test_what_no_machine_can_show_is_not_compared_with_it():
    found = host_bound.conditions(0.01, CHOICE)
    assert len(found) == 2
    assert set(found) <= set(guard._NOT_OF_A_MACHINE)


def test_no_batch_that_fits_ends_the_study(make_plan):
    machine = Machine(choice=failure("cuda_oom"))
    with pytest.raises(StudyError, match=r"the default settings fail here \(cuda_oom\)"):
        run(make_plan(), machine)
    assert set(machine.purposes) == {"batch"}


@pytest.mark.parametrize("name", ["resnet", "transformer", "fsdp"])
def test_auto_is_the_default_on_gpus_and_a_small_number_on_a_cpu(name):
    found = workload.find(name)
    for given in ({}, {"batch_size": "auto"}):
        assert workload.options(found, "nccl", given)["batch_size"] == "auto"
        assert workload.options(found, "gloo", given)["batch_size"] in (1, 2)
    assert found.first_batch > 0
    assert workload.options(found, "nccl", {"batch_size": "7"})["batch_size"] == 7


def test_a_dry_run_says_that_the_first_launch_chooses(make_plan, capsys):
    plan = make_plan()
    terminal.Screen(plan).dry_run(with_launch=False)
    said = capsys.readouterr().err
    assert "batch size: auto, chosen by the first launch" in said
    assert "1 for the batch size, 3 for the noise floor" in said
    terminal.Screen(make_plan(8)).dry_run(with_launch=False)
    assert "batch size" not in capsys.readouterr().err


# ---- host-bound


def test_a_host_bound_step_is_refused_after_one_launch_with_what_to_do(make_plan):
    machine = Machine(idle=0.23)
    with pytest.raises(HostBound, match=r"host-bound.*23 %.*raise --batch-size.*CUDA graphs.*--force") as refused:
        run(make_plan(8), machine)
    assert machine.purposes == ["noise-floor"]
    assert refused.value.exit_status == 2


def test_the_same_command_refuses_again_from_the_ledger_alone(make_plan):
    with pytest.raises(HostBound):
        run(make_plan(8), Machine(idle=0.23))
    again = Machine(idle=0.0)
    with pytest.raises(HostBound, match="23 %"):
        run(make_plan(8), again)
    assert again.requests == []


def test_with_force_the_same_study_goes_on_and_its_profile_says_so(make_plan, capsys):
    with pytest.raises(HostBound):
        run(make_plan(8), Machine(idle=0.23))
    forced = make_plan(8, force=True)
    conclusion = run(forced, Machine(idle=0.23))

    assert "even the busiest GPU was idle in 23 % of it" in capsys.readouterr().err
    assert conclusion.profile.conditions["GPU idle"] == "23 % of the default's step, host-bound: tuned by --force"
    assert "--force" in forced.command()
    with Ledger.open(forced.folder) as ledger:
        assert sum("host-bound" in note.text for note in ledger.notes) == 1


@pytest.mark.parametrize(("idle", "word"), [(0.05, "close to host-bound"), (0.031, "close to host-bound"), (0.03, "")])
def test_near_the_limit_it_is_a_warning(make_plan, capsys, idle, word):
    conclusion = run(make_plan(8), Machine(idle=idle))
    said = capsys.readouterr().err
    assert conclusion.added > 3
    assert (word in said) if word else ("host-bound" not in said)


def test_where_nothing_was_measured_nothing_is_refused(make_plan):
    conclusion = run(make_plan(8), Machine(idle=None))
    assert "GPU idle" not in conclusion.profile.conditions


def test_a_profile_that_was_lost_in_the_first_launch_is_made_up_for_in_the_next(make_plan):
    machine = Machine(idle=0.4)
    real = machine._outcome
    lost = iter([True])
    machine._outcome = lambda request: (
        real(request).model_copy(update={"communication": None}) if next(lost, False) else real(request)
    )
    with pytest.raises(HostBound):
        run(make_plan(8), machine)
    assert machine.purposes == ["noise-floor"] * 3


def test_a_ladder_that_ends_host_bound_is_refused_at_once_with_both_facts(make_plan):
    choice = FULL.model_copy(update={"tries": (FULL.tries[0], FULL.tries[1].model_copy(update={"idle_share": 0.12}))})
    machine = Machine(idle=0.12, choice=choice)
    with pytest.raises(HostBound, match=r"12 %.*batch size 64 a rank \(41 % of the memory\).*larger one does not fit"):
        run(make_plan(), machine)
    assert machine.purposes == ["batch"]
    run(make_plan(force=True), Machine(idle=0.12, choice=choice))


def test_a_job_of_ones_own_is_told_to_raise_its_own_batch():
    assert "raise the batch size" in host_bound.advice(has_batch=False)


# ---- a batch that does not fit


def test_a_batch_that_does_not_fit_is_told_which_does(make_plan):
    machine = Machine(fits=100, choice=FULL)
    with pytest.raises(StudyError, match=r"batch size 4096 .*does not fit.*; 64 did, with 41 % of the memory"):
        run(make_plan(4096), machine)
    request = machine.requests[-1]
    assert machine.purposes[-1] == "batch"
    assert (request.ladder.first, request.ladder.last, request.ladder.idle_share) == (32, 4095, -1.0)
    assert request.steps.profiled == 0
    with Ledger.open(make_plan(4096).folder) as ledger:
        assert ledger.batch is None, "it is an answer, not this study's choice"


def test_the_answer_is_not_looked_for_twice(make_plan):
    for launches in (1, 0):
        machine = Machine(fits=100, choice=FULL)
        with pytest.raises(StudyError, match="64 did"):
            run(make_plan(4096), machine)
        assert machine.purposes.count("batch") == launches


def test_where_no_smaller_one_fits_either_that_is_said(make_plan):
    with pytest.raises(StudyError, match="does not fit into the GPU's memory; give a smaller"):
        run(make_plan(4096), Machine(fits=100, choice=failure("cuda_oom")))


def test_a_small_batch_has_a_smaller_ladder(make_plan):
    ladder = make_plan(8).batch_request("0000-batch", "t").ladder
    assert (ladder.first, ladder.last) == (4, 7)


def test_another_failure_of_the_default_starts_no_search(make_plan):
    machine = Machine(outcomes={"default": failure("hang_timeout")})
    with pytest.raises(StudyError, match="hang_timeout"):
        run(make_plan(8), machine)
    assert "batch" not in machine.purposes
