"""What a trial's launches come to. Pure: it looks at launches only, so a resumed study judges as the first one did."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ..records import Candidate, Failure, Launch, Measurement
from .entries import MAY_RETURN, NEVER_AGAIN, TrialState
from .ranking import SAMPLING, invalid_reason, score

MAX_OWN_FAULTS = 2
"""A candidate that failed so often by its own fault is never launched again."""
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
    if accuses_machine(failure) and not _default_worked_after(launches, last):
        return "ask the default"
    faults = own_faults(launches, last.candidate)
    if faults >= MAX_OWN_FAULTS:
        return Judgement("infeasible", constraint=NEVER_AGAIN, reason=reason)
    if (failure.blame == "unknown" or failure.retry) and len(tries) < MAX_OWN_FAULTS:
        return "launch"
    return Judgement("infeasible", constraint=MAY_RETURN, reason=reason)


def _is_lost(launch: Launch) -> bool:
    return isinstance(launch.outcome, Failure) and launch.outcome.blame == "infrastructure"


def accuses_machine(failure: Failure) -> bool:
    """Say whether the failure claims that every candidate would fail here."""
    return failure.stop or failure.blame == "environment"


def own_faults(launches: Sequence[Launch], candidate: Candidate) -> int:
    """Count the candidate's failures, those of the infrastructure excepted."""
    return sum(
        launch.candidate == candidate
        and isinstance(launch.outcome, Failure)
        and launch.outcome.blame != "infrastructure"
        for launch in launches
    )


def _default_worked_after(launches: Sequence[Launch], launch: Launch) -> bool:
    position = next(index for index, other in enumerate(launches) if other is launch)
    return any(
        later.candidate.is_default and isinstance(later.outcome, Measurement) for later in launches[position + 1 :]
    )
