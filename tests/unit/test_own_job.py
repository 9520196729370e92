"""The user's own model and script: how they are found, what is asked of them, and how a script's steps are taken."""

from __future__ import annotations

import itertools
import subprocess
import sys
import textwrap
import threading
import time
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fakes import MemoryStore
from torch import nn

from nccltune import cli
from nccltune import plan as plans
from nccltune.errors import UsageError
from nccltune.trial import workload as workloads
from nccltune.trial.symptoms import read_symptoms
from nccltune.workloads import factory, script
from nccltune.workloads.clock import Block, HostClock
from nccltune.workloads.control import Control
from nccltune.workloads.drive import OutOfSteps
from nccltune.workloads.failure import WorkloadError
from nccltune.workloads.group import Group
from nccltune.workloads.harness import Launch
from nccltune.workloads.heartbeat import Heartbeat
from nccltune.workloads.measure import Measure, Timed, WarmUp
from nccltune.workloads.request import Limits, Request, Steps
from nccltune.workloads.script_steps import Enough, ScriptSteps
from nccltune.workloads.workload import Context

CPU = torch.device("cpu")


def context(**options: object) -> Context:
    return Context(0, 0, 2, "gloo", CPU, options, 0)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(sys.modules[name].__file__):
            del sys.modules[name]


# ---- the words of the command line


def test_a_script_is_known_by_its_path_its_arguments_and_its_content(here):
    (here / "train.py").write_text("1")
    first = workloads.find("train.py", ["--lr", "1"])
    options = workloads.options(first, "gloo", {"sizes": None})

    assert (first.module, first.label, first.collective_only) == ("script", "train", False)
    assert options["script"] == "train.py"
    assert options["arguments"] == ["--lr", "1"]
    assert workloads.options(workloads.find("train.py"), "gloo", {}) != options
    (here / "train.py").write_text("2")
    changed = workloads.options(workloads.find("train.py", ["--lr", "1"]), "gloo", {})
    assert changed != options
    assert {**changed, "sha256": options["sha256"]} == options


def test_a_factory_is_found_without_being_imported(here):
    (here / "my_pkg").mkdir()
    (here / "my_pkg" / "__init__.py").write_text("raise SystemExit('imported')")
    (here / "my_pkg" / "train.py").write_text("raise SystemExit('imported')")
    found = workloads.find("my_pkg.train:build")

    assert (found.module, found.label) == ("factory", "my_pkg.train-build")
    assert found.defaults["nccl"]["factory"] == "my_pkg.train:build"
    assert len(found.defaults["nccl"]["sha256"]) == 16


def test_a_module_of_the_standard_library_is_not_shadowed_by_the_working_folder(here):
    (here / "queue.py").write_text("raise SystemExit('shadowed')")
    before = workloads.find("queue:Queue").defaults
    (here / "queue.py").write_text("changed")

    assert workloads.find("queue:Queue").defaults == before
    assert factory.load("queue:Queue").__module__ == "queue"


@pytest.mark.parametrize(
    ("word", "arguments", "message"),
    [
        ("trian.py", None, "no script 'trian.py'"),
        ("folder.py", None, "no script 'folder.py'"),
        ("nowhere.at.all:build", None, "no module 'nowhere.at.all'"),
        ("src/train.py:build", None, "'src/train.py:build' names no function"),
        ("my_pkg:", None, "names no function"),
        ("transfomer", None, "Did you mean 'transformer'"),
        ("zzz", None, "your own module:function or script.py"),
        ("resnet", [], "takes no arguments after '--'"),
        ("queue:Queue", ["--lr", "1"], "takes no arguments after '--'"),
    ],
)
def test_words_that_name_nothing_are_usage_errors(here, word, arguments, message):
    (here / "folder.py").mkdir()
    with pytest.raises(UsageError, match=message):
        workloads.find(word, arguments)


def test_an_own_job_takes_no_options_of_other_workloads(here):
    (here / "train.py").write_text("")
    with pytest.raises(UsageError, match="takes no --batch-size"):
        workloads.options(workloads.find("train.py"), "gloo", {"batch_size": "8"})


def test_the_command_that_goes_on_ends_with_the_scripts_own_words(here):
    (here / "train.py").write_text("")
    options = plans.Options(workload="train.py", arguments=("--name", "a b", "--", "x"), mlflow=False)
    plan = plans.prepare(options, {})

    assert plan.command().endswith("--no-mlflow -- --name 'a b' -- x")
    assert plan.study.startswith("train-")
    assert plan.request(plan.example(), "0", "t").workload == "script"
    assert plan.identity["workload"]["options"]["arguments"] == ["--name", "a b", "--", "x"]
    assert str(here) not in str(plan.identity)


# ---- a model of one's own

MODEL = nn.Linear(2, 2)


def good(model, batch):
    return model(batch).sum()


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (None, r"m:f returned NoneType; \(model, batch, step\) or"),
        (MODEL, "returned Linear; "),
        ((MODEL, good), r"returned a tuple of 2 \(Linear, function\)"),
        ((good, torch.ones(2), MODEL), "returned function as model; a torch.nn.Module is wanted"),
        ((MODEL, good, torch.ones(2)), r"returned Tensor of shape \(2,\) as step"),
        ((MODEL, None, good, "sgd"), "returned str as optimizer"),
        (SimpleNamespace(model=MODEL, step=good), "returned SimpleNamespace; "),
    ],
)
def test_what_a_factory_returned_instead_is_named(returned, words):
    with pytest.raises(WorkloadError, match=words):
        factory.job_of(returned, "m:f")


def test_a_tuple_a_longer_one_and_an_object_are_the_same():
    optimizer = torch.optim.SGD(MODEL.parameters())
    named = SimpleNamespace(model=MODEL, batch=1, step=good, optimizer=optimizer)

    assert factory.job_of((MODEL, 1, good, optimizer), "m:f") == factory.job_of(named, "m:f")
    assert factory.job_of([MODEL, 1, good], "m:f").optimizer is None


def test_a_step_trains_and_its_gradients_do_not_add_up():
    model, batch = nn.Linear(2, 1, bias=False), torch.ones(1, 2)
    plain = factory.training_step(factory.Job(model, batch, good), model, batch, "m:f")
    plain()
    plain()
    assert model.weight.grad is not None
    assert model.weight.grad.tolist() == [[1.0, 1.0]]

    before = model.weight.detach().clone()
    job = factory.Job(model, batch, good, torch.optim.SGD(model.parameters(), lr=0.5))
    factory.training_step(job, model, batch, "m:f")()
    assert torch.allclose(model.weight, before - 0.5)


def test_a_step_that_has_done_everything_itself_returns_nothing():
    model, batch = nn.Linear(2, 1, bias=False), torch.ones(1, 2)

    def whole(model, batch):
        good(model, batch).backward()

    factory.training_step(factory.Job(model, batch, whole), model, batch, "m:f")()
    assert model.weight.grad is not None


@pytest.mark.parametrize("loss", [1.5, torch.ones(3, requires_grad=True), torch.ones(())])
def test_a_loss_that_has_no_gradient_is_named(loss):
    step = factory.training_step(factory.Job(MODEL, None, lambda *_: loss), MODEL, None, "m:f")
    with pytest.raises(WorkloadError, match=r"step of m:f returned .*; a loss of one element"):
        step()


def test_tensors_of_a_batch_are_moved_wherever_they_are():
    pair = namedtuple("pair", "inputs labels")
    batch = {"a": torch.ones(1), "b": [torch.ones(1), "text"], "c": pair(torch.ones(1), 3)}
    moved = factory.moved(batch, torch.device("meta"))

    assert moved["a"].is_meta
    assert moved["b"][0].is_meta
    assert moved["b"][1] == "text"
    assert moved["c"].inputs.is_meta
    assert moved["c"].labels == 3


def test_a_model_that_speaks_to_the_others_is_not_wrapped_again():
    class DistributedDataParallel(nn.Module):
        pass

    model = DistributedDataParallel()
    assert factory.wrapped(model, context()) is model
    with pytest.raises(WorkloadError, match="no parameter that is trained"):
        factory.wrapped(nn.ReLU(), context())


def test_a_factory_that_is_none_or_not_the_one_of_the_study_is_refused(here):
    (here / "jobs_of_mine.py").write_text("value = 3\ndef build(context): return context\n")

    assert factory.load("jobs_of_mine:build")(5) == 5
    assert sys.path[-1] == str(here)
    with pytest.raises(WorkloadError, match="has no 'make'"):
        factory.load("jobs_of_mine:make")
    with pytest.raises(WorkloadError, match="no function but int"):
        factory.load("jobs_of_mine:value")
    with pytest.raises(WorkloadError, match="not the file with which the study began"):
        factory.load("jobs_of_mine:build", "0" * 16)


# ---- a script of one's own


def test_the_hook_is_nothing_outside_of_a_launch_and_needs_no_torch():
    code = (
        "import sys\n"
        "from nccltune.workloads import timed_step\n"
        "timed_step()\n"
        "with timed_step():\n"
        "    pass\n"
        "assert 'torch' not in sys.modules\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


def test_a_script_runs_as_python_would_run_it(here):
    (here / "sub").mkdir()
    (here / "sub" / "beside_me.py").write_text("word = 'found'")
    (here / "sub" / "train.py").write_text(
        textwrap.dedent("""\
        import sys, json, beside_me
        if __name__ == "__main__":
            main = sys.modules["__main__"]
            json.dump([sys.argv, beside_me.word, __file__, main.__file__], open("seen.json", "w"))
        """)
    )
    code = (
        "from nccltune.workloads import script\n"
        "script.asked({'script': 'sub/train.py', 'arguments': ['--lr', '1']}).run()\n"
    )
    subprocess.run([sys.executable, "-P", "-c", code], check=True)
    wanted = '[["sub/train.py", "--lr", "1"], "found", "sub/train.py", "sub/train.py"]'
    assert (here / "seen.json").read_text() == wanted


def test_a_script_that_is_gone_or_another_is_refused(here):
    with pytest.raises(WorkloadError, match=r"train\.py cannot be read"):
        script.asked({"script": "train.py"})
    (here / "train.py").write_text("")
    with pytest.raises(WorkloadError, match="not the file with which the study began"):
        script.asked({"script": "train.py", "sha256": "0" * 16})


def take(steps: ScriptSteps, count: int) -> int | None:
    """A script of ``count`` steps; at which call it was ended, if it was."""
    for number in range(1, count + 1):
        try:
            steps.hook()
        except Enough:
            return number
    steps.finish()
    return None


def measuring(action: Callable[[ScriptSteps], Any]) -> tuple[ScriptSteps, list[Any]]:
    found: list[Any] = []
    steps = ScriptSteps(lambda: found.append(action(steps)))
    return steps, found


def test_a_script_is_ended_when_its_steps_are_enough_and_each_is_timed():
    def action(steps: ScriptSteps) -> tuple[Block, Block]:
        clock = HostClock()
        return clock.run(steps, 3), clock.run(steps, 4, lead=1)

    steps, found = measuring(action)

    # The first call only begins; then 3 steps, and 1 + 4.
    assert take(steps, 100) == 9
    assert [len(block.step_us) for block in found[0]] == [3, 4]
    assert steps.error is None
    with pytest.raises(Enough):
        steps.hook()


def test_a_script_that_ends_early_leaves_the_steps_that_it_took():
    def action(steps: ScriptSteps) -> list[int]:
        clock = HostClock()
        return [len(clock.run(steps, 3, lead=1).step_us) for _ in range(3)]

    for count, lengths in ((4, [2, 0, 0]), (5, [3, 0, 0]), (6, [3, 0, 0]), (7, [3, 1, 0])):
        steps, found = measuring(action)
        assert take(steps, count) is None
        assert found == [lengths], count
        assert steps.over


def test_a_step_beyond_the_end_is_out_of_steps():
    def action(steps: ScriptSteps) -> str:
        steps()
        try:
            steps()
        except OutOfSteps:
            return "out"
        return "more"

    steps, found = measuring(action)
    assert take(steps, 2) is None
    assert found == ["out"]


def test_what_goes_wrong_in_measuring_ends_the_script_and_is_kept():
    def action(steps: ScriptSteps) -> None:
        steps()
        raise ValueError("no good")

    steps, _ = measuring(action)
    assert take(steps, 10) == 2
    assert isinstance(steps.error, ValueError)


def test_what_goes_wrong_between_two_steps_reaches_the_measuring_side():
    def broken():
        yield
        raise ZeroDivisionError

    steps, _ = measuring(lambda steps: steps.play(broken()))
    assert take(steps, 10) == 2
    assert isinstance(steps.error, ZeroDivisionError)


def test_a_script_without_steps_is_finished_at_once():
    steps, found = measuring(lambda _: None)
    steps.finish()
    assert found == []
    assert steps.reported == 0


def on_ranks(counts: list[int]) -> tuple[list[ScriptSteps], list[int | None]]:
    """Warm up and time scripts of so many steps, a thread each; at which call each was ended."""
    store, ended = MemoryStore(), [None] * len(counts)
    wanted = Steps(warmup_min=2, warmup_max=4, warmup_s=0.0, timed_min=8, timed_max=8, block=4)
    ranks: list[ScriptSteps] = []
    for rank in range(len(counts)):

        def measure(rank: int = rank) -> None:
            control = Control(store, rank, len(counts), 1.0)
            plan = Measure(ranks[rank], HostClock(), control, wanted, Limits(), lambda _: None)
            plan.timed(plan.warm_up().typical_us)

        ranks.append(ScriptSteps(measure))

    def run(rank: int) -> None:
        for number in range(1, counts[rank] + 1):
            time.sleep(0.03)
            try:
                ranks[rank].hook()
            except Enough:
                ended[rank] = number  # type: ignore[call-overload]
                return
        ranks[rank].finish()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(counts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return ranks, ended


def test_all_ranks_are_ended_at_the_same_step():
    ranks, ended = on_ranks([100, 100])
    assert [steps.error for steps in ranks] == [None, None]
    assert ended[0] == ended[1] == 1 + 6 + 2 * (1 + 4)


def test_ranks_that_disagree_on_the_number_of_steps_are_named():
    ranks, _ = on_ranks([11, 10])
    assert isinstance(ranks[0].error, WorkloadError)
    assert "the ranks disagree on the number of steps or marks: 3, 2" in str(ranks[0].error)


def test_too_few_steps_are_an_error_that_says_how_many_are_needed(tmp_path):
    heartbeat = Heartbeat(tmp_path / "heartbeat", 0)
    launch = Launch(Request("s", "l", "t", "script", "gloo"), tmp_path / "result.json", 0, {}, None, heartbeat, 0.0)
    group = Group(0, 0, 1, CPU, Control(MemoryStore(), 0, 1, 1.0), False)
    steps = ScriptSteps(lambda: None)
    steps.reported = 23
    run = script._ScriptRun(launch, group, context(), steps)

    def measure(count: int) -> Any:
        return SimpleNamespace(timed=lambda _: Timed(own_us=[1.0] * count))

    warm = WarmUp(20, flat=True, typical_us=1.0)
    assert len(run._timed(measure(5), warm).own_us) == 5
    with pytest.raises(WorkloadError, match="reported 23 steps and ended: 20 were needed to warm up, and 2 could be"):
        run._timed(measure(2), warm)


def test_a_long_block_still_gives_signs_of_life(monkeypatch):
    ticking = itertools.count()
    monkeypatch.setattr("nccltune.workloads.script_steps.time.monotonic", lambda: next(ticking) * 0.3)
    seen: list[int] = []
    steps = ScriptSteps(lambda: HostClock().run(steps, 20), seen.append)
    take(steps, 30)

    assert 4 <= len(seen) <= 6
    assert seen == sorted(seen)


def test_files_of_the_examples_are_found_by_their_words(monkeypatch):
    examples = Path(__file__).parents[2] / "examples"
    monkeypatch.chdir(examples)
    assert workloads.find("own_script.py", ["--width", "64"]).module == "script"
    assert workloads.find("own_model:build").module == "factory"


def test_what_will_be_run_is_said_before(monkeypatch, capsys):
    monkeypatch.chdir(Path(__file__).parents[2] / "examples")
    assert cli.run(["--workload", "own_script.py", "--dry-run", "--", "--width", "64"]) == 0
    shown = capsys.readouterr()

    assert "workload own_script.py (a script of your own; script=own_script.py arguments='--width 64'" in shown.err
    assert "nccltune.workloads.script" in shown.out


def test_the_rank_that_failed_first_is_the_cause_and_not_the_one_that_was_ended_for_it():
    log = """\
        W1130 16:11:24.0 1 torch/distributed/elastic/multiprocessing/api.py:1 Sending process 7 closing signal SIGTERM
        E1130 16:11:24.0 1 torch/distributed/elastic/multiprocessing/api.py:2 failed (exitcode: 1) local_rank: 1 (pid: 8) of binary: python
        Failures:
        [1]:
          rank      : 0 (local_rank: 0)
          exitcode  : -15 (pid: 7)  (SIGTERM)
          traceback : Signal 15 (SIGTERM) received by PID 7
        Root Cause (first observed failure):
        [0]:
          rank      : 1 (local_rank: 1)
          exitcode  : 1 (pid: 8)
          error_file: error.json
        """  # noqa: E501
    symptoms = read_symptoms(textwrap.dedent(log).splitlines())

    assert symptoms.exits[0] == (1, 1)
    assert 15 in symptoms.signals
    assert symptoms.signal is None
