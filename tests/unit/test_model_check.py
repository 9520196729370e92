"""The first step of a model, taken and held against the default's."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fakes import measurement, request
from torch import nn

from nccltune import tune
from nccltune.records import DEFAULT, Candidate, Checks, Failure, FirstStep, Launch, Outcome, Request, ResultFile
from nccltune.study.campaign import Campaign
from nccltune.study.entries import Intent
from nccltune.study.ledger import Ledger
from nccltune.trial import diagnose, model_check
from nccltune.workloads import first_step
from nccltune.workloads.failure import WrongData


def model_and_loss() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(300, 50), nn.Tanh(), nn.Linear(50, 1)), torch.randn(4, 300)


def taken(spoil=lambda _: None) -> dict[str, Any]:
    """The numbers of a model whose gradients are spoilt on their way."""
    model, batch = model_and_loss()
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda each: (spoil(each.grad), None)[1])
    found = first_step.take(model, lambda: model(batch).square().mean())
    assert all(each.grad is None for each in model.parameters())
    return found


def record(found: dict[str, Any], tolerance: float = 1e-3) -> FirstStep:
    return FirstStep(**{name: (value,) for name, value in found.items()}, tolerance=tolerance)


def test_the_same_model_and_seed_give_the_same_numbers() -> None:
    assert taken() == taken()


def test_rounding_is_within_the_tolerance() -> None:
    def rounded(gradient: torch.Tensor) -> None:
        gradient.copy_(gradient.bfloat16())

    found, wanted = taken(rounded), taken()
    assert found != wanted
    assert model_check.differs(record(found, 0.05), record(wanted, 0.05)) is None


def halves_swapped(gradient: torch.Tensor) -> None:
    flat = gradient.flatten()
    half = len(flat) // 2
    gradient.copy_(torch.cat([flat[half : 2 * half], flat[:half], flat[2 * half :]]).view_as(gradient))


@pytest.mark.parametrize(
    "spoil",
    [
        halves_swapped,
        lambda gradient: gradient.mul_(2),
        lambda gradient: gradient.flatten()[: gradient.numel() // 8].zero_(),
        lambda gradient: gradient.neg_(),
    ],
    ids=["swapped", "added twice", "lost", "negative"],
)
@pytest.mark.parametrize("tolerance", [1e-3, 0.05])
def test_wrong_gradients_show(spoil, tolerance) -> None:
    told = model_check.differs(record(taken(spoil), tolerance), record(taken(), tolerance))

    assert told is not None
    assert told.startswith("the model's first gradients are not those under the default on rank 0")


def test_the_distance_of_the_sums_is_that_of_the_gradients() -> None:
    gradients = torch.randn(2, 100_003, generator=torch.Generator().manual_seed(0))
    apart = [math.dist(*(first_step._sums(each, number) for each in gradients)) for number in range(50)]

    assert sum(each**2 for each in apart) / 50 == pytest.approx(
        float((gradients[0] - gradients[1]).square().sum()), rel=0.3
    )


def test_numbers_that_are_none_are_wrong_data() -> None:
    with pytest.raises(WrongData, match=r"first step is nan"):
        taken(lambda gradient: gradient.fill_(float("nan")))


def step(loss: float = 2.0, gradient: float = 0.5, norm: float = 1.0, ranks: int = 2) -> FirstStep:
    return FirstStep(loss=(loss,) * ranks, gradient=((gradient, 0.0),) * ranks, norm=(norm,) * ranks, tolerance=0.01)


def outcome(first: FirstStep | None):
    return measurement(request(), checks=Checks(cases=8, first_step=first))


def test_a_launch_that_differs_from_the_default_is_wrong_data() -> None:
    defaults = [outcome(step()), outcome(step(loss=2.001)), diagnose.failure("hang_timeout")]

    assert model_check.judged(outcome(step(gradient=0.505)), defaults) == outcome(step(gradient=0.505))
    found = model_check.judged(outcome(step(gradient=0.6)), defaults)
    assert isinstance(found, Failure)
    assert found.name == "wrong_data"
    assert found.message.endswith("on rank 0: 0.1 apart, which is more than 0.01 of their norm 1")
    other = model_check.judged(outcome(step(loss=2.1)), defaults)
    assert isinstance(other, Failure)
    assert other.message.endswith("on rank 0: 2.1 for 2")
    assert isinstance(model_check.judged(outcome(step(ranks=1)), defaults), Failure)


def test_a_job_that_differs_from_launch_to_launch_accuses_nobody() -> None:
    other = outcome(step(loss=5.0))

    assert model_check.judged(other, [outcome(step()), outcome(step(loss=3.0))]) is other
    assert model_check.judged(other, []) is other
    assert model_check.judged(outcome(None), [outcome(step())]) == outcome(None)


@pytest.mark.parametrize(("backend", "is_wrong"), [("nccl", True), ("gloo", False)])
def test_a_campaign_charges_a_wrong_first_step_to_the_candidate(tmp_path, backend, is_wrong) -> None:
    """Settings of a CPU change how the model itself computes, so that there it accuses nobody."""
    other = Candidate(settings={"A": "1"})

    class Runner:
        def run(self, asked: Request) -> Outcome:
            return outcome(step(gradient=0.5 if asked.candidate != other else 0.7))

    def asked(candidate: Candidate, launch_id: str, _: str) -> Request:
        return request(launch_id, dict(candidate.settings), backend=backend)

    ledger = Ledger.create(tmp_path, {})
    campaign = Campaign(ledger, Runner(), asked)
    assert campaign.launch(DEFAULT, "noise-floor").outcome == outcome(step())
    assert campaign.launch(Candidate(settings={"A": "2"}), "search").outcome == outcome(step())
    found = campaign.launch(other, "search").outcome

    assert isinstance(found, Failure) == is_wrong
    assert ledger.launches[-1].outcome == found
    if isinstance(found, Failure):
        assert (found.name, found.blame) == ("wrong_data", "candidate")


@pytest.mark.parametrize("gradient", [0.5, 0.7])
def test_a_result_that_a_killed_run_left_is_held_against_the_default_too(tmp_path, gradient) -> None:
    asked = request("0001-search", {"A": "1"}, backend="nccl", checks=True, environment={"A": "1"})
    left = measurement(asked, checks=Checks(cases=8, first_step=step(gradient=gradient)))
    with Ledger.create(tmp_path, {}) as ledger:
        about = {"purpose": "noise-floor", "started_at": "2026-01-01T00:00:00+00:00"}
        ledger.append(
            Launch(launch_id="0000-noise-floor", candidate=DEFAULT, wall_s=1.0, outcome=outcome(step()), **about)
        )
        folder = tmp_path / "launches" / "0001-search"
        about = {"purpose": "search", "started_at": "2026-01-01T00:00:10+00:00", "folder": "launches/0001-search"}
        ledger.append(
            Intent(launch_id="0001-search", candidate=asked.candidate, trial=1, round=None, attempt=1, **about)
        )
        folder.mkdir(parents=True)
        (folder / "request.json").write_text(asked.model_dump_json())
        result = ResultFile(token=asked.token, status="ok", measurement=left)
        (folder / "result.json").write_text(result.model_dump_json())

        tune._clean_up(SimpleNamespace(folder=tmp_path), ledger)

        found = ledger.launches[-1]
    assert found.launch_id == "0001-search"
    assert isinstance(found.outcome, Failure) is (gradient != 0.5)
    assert not isinstance(found.outcome, Failure) or found.outcome.name == "wrong_data"


@pytest.mark.parametrize("seen", ["3", None])
def test_a_result_that_a_killed_run_left_is_refused_where_a_rank_saw_another_environment(tmp_path, seen) -> None:
    """As it is where nobody was killed: such a launch says nothing of the settings whose name it bears."""
    asked = request("0000-noise-floor", environment={"KNOB": "2"})
    left = measurement(asked)
    echo = {"KNOB": seen} if seen else {"KNOB": "2"}
    left = left.model_copy(update={"ranks": tuple(rank.model_copy(update={"echo": echo}) for rank in left.ranks)})
    with Ledger.create(tmp_path, {}) as ledger:
        at = "2026-01-01T00:00:10+00:00"
        ledger.append(Intent(launch_id=asked.launch_id, candidate=DEFAULT, purpose="noise-floor", started_at=at))
        folder = tmp_path / "launches" / asked.launch_id
        folder.mkdir(parents=True)
        (folder / "request.json").write_text(asked.model_dump_json())
        result = ResultFile(token=asked.token, status="ok", measurement=left)
        (folder / "result.json").write_text(result.model_dump_json())

        tune._clean_up(SimpleNamespace(folder=tmp_path), ledger)

        assert len(ledger.launches) == (0 if seen else 1)
