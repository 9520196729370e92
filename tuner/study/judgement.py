"""What a trial's launches come to. Pure: it looks at launches only, so a resumed study judges as the first one did."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ..records import Candidate, Failure, Launch, Measurement, Outcome
from .entries import MAY_RETURN, NEVER_AGAIN, TrialState
from .ranking import SAMPLING, invalid_reason, score

MAX_OWN_FAULTS = 2
"""A candidate that failed so often by its own fault is never launched again."""
UNFORGIVEN = frozenset({"wrong_data"})
"""Failures after which a candidate is not launched a second time: one wrong sum spoils a model without a word."""
INFRASTRUCTURE_TRIES = 3
"""Tries of one launch while the infrastructure fails (a port taken, a lost node): charged to nobody."""

Next: TypeAlias = Literal["launch", "ask the default"]


@dataclass(frozen=True)
class Judgement:
    """What a trial comes to; the fields are those of ``entries.TrialEntry``."""

    state: TrialState
    value_us: float | None = None
    constraint: float = 0.0
    reason: str = ""


def judge(launches: Sequence[Launch], candidate: Candidate, trial: int) -> Judgement | Next:
    """Judge a trial, or say what must be measured first.

    Args:
        launches: All of the study, in order.
        candidate: The trial's.
        trial: Its number.

    Returns:
        The judgement; ``launch`` when the candidate is to be launched (again); ``ask the default`` when only a launch
        of the default can tell whether the candidate or the machine is at fault.
    """
    mine = [launch for launch in launches if launch.trial == trial and launch.candidate == candidate]
    if not mine:
        return "launch"
    last = mine[-1]
    if isinstance(last.outcome, Measurement):
        return _measured(launches, last)
    return _failed(launches, last, last.outcome, mine)


def _measured(launches: Sequence[Launch], last: Launch) -> Judgement:
    reason = invalid_reason(last)
    if reason:
        return Judgement("invalid", constraint=NEVER_AGAIN, reason=reason)
    ranked = score(launches, last.candidate)
    earlier = any(
        launch.candidate == last.candidate and launch.trial != last.trial and isinstance(launch.outcome, Measurement)
        for launch in launches
        if launch.purpose in SAMPLING
    )
    return Judgement("repeat" if earlier else "measured", value_us=ranked.value_us if ranked else None)


def _failed(launches: Sequence[Launch], last: Launch, failure: Failure, tries: Sequence[Launch]) -> Judgement | Next:
    reason = f"{failure.name}: {failure.message}"
    if failure.blame == "infrastructure":
        lost = itertools.takewhile(_is_lost, reversed(tries))
        return (
            "launch"
            if len(list(lost)) < INFRASTRUCTURE_TRIES and not failure.stop
            else Judgement("lost", reason=reason)
        )
    if accuses_machine(failure):
        sick = _machine_was_sick(launches, last)
        if sick is None or (sick and not _default_works(launches)):
            return "ask the default"
        if sick:
            return "launch"
    faults = own_faults(launches, last.candidate)
    if faults >= MAX_OWN_FAULTS or failure.name in UNFORGIVEN:
        return Judgement("infeasible", constraint=NEVER_AGAIN, reason=reason)
    if (failure.blame == "unknown" or failure.retry) and len(tries) < MAX_OWN_FAULTS:
        return "launch"
    return Judgement("infeasible", constraint=MAY_RETURN, reason=reason)


def _is_lost(launch: Launch) -> bool:
    return isinstance(launch.outcome, Failure) and launch.outcome.blame == "infrastructure"


def accuses_machine(outcome: Outcome) -> bool:
    """Say whether a failure claims that every candidate would fail here."""
    return isinstance(outcome, Failure) and (outcome.stop or outcome.blame == "environment")


def own_faults(launches: Sequence[Launch], candidate: Candidate) -> int:
    """Count the candidate's failures, less those of the infrastructure and of a machine that failed the default too."""
    return sum(
        launch.candidate == candidate
        and isinstance(launch.outcome, Failure)
        and launch.outcome.blame != "infrastructure"
        and not (accuses_machine(launch.outcome) and _machine_was_sick(launches, launch))
        for launch in launches
    )


def _machine_was_sick(launches: Sequence[Launch], launch: Launch) -> bool | None:
    """Say whether the default failed by the machine's fault right after a launch; ``None`` when it was not asked."""
    position = next(index for index, other in enumerate(launches) if other is launch)
    for later in launches[position + 1 :]:
        if later.candidate.is_default and isinstance(later.outcome, Measurement):
            return False
        if later.candidate.is_default and accuses_machine(later.outcome):
            return True
    return None


def _default_works(launches: Sequence[Launch]) -> bool:
    """Say whether the last launch of the default was measured."""
    last = next((launch for launch in reversed(launches) if launch.candidate.is_default), None)
    return last is not None and isinstance(last.outcome, Measurement)
