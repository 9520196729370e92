"""Campaigns over a fake runner: what is launched, what is charged to whom, and that nothing is lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from nccltune.records import Candidate, Dimension, Measurement, Outcome, Purpose, Request, Space
from nccltune.study.campaign import Budget, Campaign, ranked
from nccltune.study.ledger import Ledger
from nccltune.study.search import Search

SPACE = Space(
    name="toy",
    dimensions=(
        Dimension(name="A", values=(None, "1", "2", "3")),
        Dimension(name="B", values=(None, "x", "y", "z")),
        Dimension(name="C", values=(None, "p", "q")),
    ),
    backend="gloo",
)


def measurement(value: float) -> Measurement:
    return Measurement(step_times_us=(value,), clock="host", warmup_steps=1)


def speed(candidate: Candidate) -> float:
    gains = {"A=2": 20.0, "B=y": 10.0, "C=q": 5.0}
    return 100.0 - sum(gains.get(f"{name}={value}", 0.0) for name, value in candidate.settings.items())


class Fake:
    def __init__(self, answer: Callable[[Candidate, int], Outcome] | None = None) -> None:
        self.answer = answer or (lambda candidate, _: measurement(speed(candidate)))
        self.requests: list[Request] = []

    def run(self, request: Request) -> Outcome:
        self.requests.append(request)
        earlier = sum(one.candidate == request.candidate for one in self.requests) - 1
        return self.answer(request.candidate, earlier)


def request_for(candidate: Candidate, launch_id: str, purpose: Purpose) -> Request:
    return Request(study="s", launch_id=launch_id, token="t", workload="allreduce", backend="gloo", candidate=candidate)


def legal(candidate: Candidate) -> str | None:
    return None


def new_search(ledger: Ledger, budget: int, space: Space = SPACE, illegal=legal) -> Search:
    return Search(space, illegal, budget, 0, None, "s", ledger.trials)


def test_search_finds_the_fastest_and_keeps_the_budget(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "s", {"workload": "toy"})
    fake = Fake()
    campaign = Campaign(ledger, fake, request_for)
    campaign.noise_floor(3)
    campaign.search(new_search(ledger, 30), Budget(30))
    assert ledger.trials[0].candidate.is_default
    assert sum(trial.launched for trial in ledger.trials) == 30
    assert ranked(ledger)[0].candidate == Candidate(settings={"A": "2", "B": "y", "C": "q"})
    again = Ledger.open(ledger.folder)
    assert again.entries == ledger.entries
