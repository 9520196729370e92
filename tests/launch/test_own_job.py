"""Models of a workload's own, and jobs of the user's own, each through the real runner on gloo."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fakes import request

from nccltune.records import Failure, Limits, Measurement, Outcome, Steps
from nccltune.trial import environment
from nccltune.trial import workload as workloads
from nccltune.trial.runner import LaunchRunner

pytestmark = pytest.mark.launch

EXAMPLES = Path(__file__).parents[2] / "examples"
SHORT = Steps(
    warmup_min=2, warmup_max=8, warmup_s=0.0, timed_min=6, timed_max=8, block=4, relative_error=1.0, profiled=1
)


def launch(folder: Path, word: str, arguments: list[str] | None = None, **fields: object) -> Outcome:
    """Run one launch from the working folder, as the tuner would."""
    workload = workloads.find(word, arguments)
    asked = request(
        workload=workload.module,
        options=workloads.options(workload, "gloo", {}),
        limits=Limits(startup_s=60, no_progress_s=60),
        **{"steps": SHORT, **fields},
    )
    environ = dict(os.environ)
    return LaunchRunner(folder, environ=environ).run(environment.complete(asked, _Nothing(), environ))


class _Nothing:
    """Nothing is inherited."""

    settings: dict[str, str] = {}


def measured(outcome: Outcome) -> Measurement:
    assert isinstance(outcome, Measurement), outcome
    assert 6 <= len(outcome.step_times_us) <= 8
    assert outcome.checks.cases > 0
    assert outcome.communication is not None
    assert outcome.communication.source == "gloo"
    assert outcome.communication.busy_us > 0
    assert len(outcome.ranks) == 2
    return outcome


def failed(outcome: Outcome) -> Failure:
    assert isinstance(outcome, Failure), outcome
    assert outcome.name == "workload_error"
    assert outcome.blame == "workload"
    return outcome


def test_the_transformer_trains(tmp_path: Path) -> None:
    found = measured(launch(tmp_path, "transformer"))
    first = found.checks.first_step

    assert first is not None
    assert first.norm[0] == pytest.approx(first.norm[1])
    assert first.gradient[0] == pytest.approx(first.gradient[1]), "after the all-reduce all ranks have the same"
    assert first.loss[0] != first.loss[1], "each rank has its own data"

    assert found.metrics["tokens_per_s"] == pytest.approx(2 * 2 * 32 / found.median_us * 1e6)


def test_fsdp_gathers_parameters_and_scatters_gradients(tmp_path: Path) -> None:
    found = measured(launch(tmp_path, "fsdp"))

    assert found.checks.first_step is not None
    assert found.checks.first_step.norm[0] != found.checks.first_step.norm[1], "each rank has its own share"
    assert "tokens_per_s" in found.metrics


def test_the_example_of_a_model_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES)

    measured(launch(tmp_path, "own_model:build"))


def test_the_example_of_a_script_is_measured_and_ended_by_us(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES)
    # So many steps take hours.
    found = measured(launch(tmp_path, "own_script.py", ["--width", "64", "--steps", "100000000"]))

    assert found.checks.failures == ()
    assert {"start", "import", "group", "warmup", "timed", "profiled", "check"} <= set(found.parts_s)


def test_a_script_that_ends_early_is_measured_with_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # 1 call to begin, 2 windows of 3 steps to warm up, a block of 1 + 4 and what is left of the next: 1 + 2.
    (tmp_path / "train.py").write_text(
        "import time\nfrom nccltune.workloads import timed_step\n"
        "for _ in range(15):\n    with timed_step():\n        time.sleep(0.03)\n"
    )
    steps = SHORT.model_copy(update={"warmup_max": 4, "timed_min": 8, "timed_max": 20})
    found = launch(tmp_path, "train.py", steps=steps)

    assert isinstance(found, Measurement), found
    assert len(found.step_times_us) == 6
    assert all(time_us >= 30_000 for time_us in found.step_times_us)
    assert found.checks.cases == 0
    assert found.communication is None
    assert "the script ended after 6 timed steps" in found.warnings
    assert any("share of communication is not measured" in warning for warning in found.warnings)
    assert any("sums are not checked" in warning for warning in found.warnings)


def test_a_script_without_the_hook_is_told_the_two_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import sys\nprint('trained with', sys.argv[1:])\n")
    found = failed(launch(tmp_path, "train.py", ["--lr", "1"]))

    assert "train.py reported no steps" in found.message
    assert "'from nccltune.workloads import timed_step', and 'timed_step()'" in found.message
    assert "trained with ['--lr', '1']" in (tmp_path / "launches" / "0000-search" / "launch.log").read_text()


def test_a_factory_that_returns_something_else_is_told_what_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("def build(context):\n    return {'model': context}\n")
    found = failed(launch(tmp_path, "mine:build"))

    assert "mine:build returned dict; (model, batch, step) or" in found.message
