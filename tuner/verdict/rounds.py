"""The fresh rounds: who is launched when, and which launches belong together. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from datetime import datetime

from ..records import DEFAULT, Candidate, Launch, Measurement, Pair, Purpose

_TAIL_LEAST_STEPS = 10
"""A 95th percentile of fewer steps is their maximum, or nearly so."""


def order(number: int, finalists: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Say in which order a round is launched: one order in odd rounds, its mirror image in even ones.

    Slow drift of the machine (clocks, temperature, neighbours) then hits all alike. The default serves every finalist
    of the round and stands in their middle, since launches far apart in time have less noise in common.

    Args:
        number: Of the round, from 1.
        finalists: Those that are still in.
    """
    middle = len(finalists) // 2
    forward = (*finalists[:middle], DEFAULT, *finalists[middle:])
    return forward if number % 2 else forward[::-1]


def pairs(
    launches: Sequence[Launch], candidate: Candidate, purpose: Purpose = "confirm", default: Candidate = DEFAULT
) -> dict[int, Pair]:
    """Put the launches of a candidate and of the default together, round by round.

    Only launches of one go through a round belong together: after a run that was cut off in between, the round is
    launched again as a whole and the last go counts.

    Args:
        launches: In the order of the ledger.
        candidate: The finalist.
        purpose: Of the launches that count.
        default: What it is held against.

    Returns:
        Round number to pair, sorted; only rounds in which both were measured.
    """
    found: dict[int, Pair] = {}
    for number, together in _goes(launches, purpose):
        if default.key in together and candidate.key in together:
            found[number] = _pair(number, together[default.key], together[candidate.key])
    return dict(sorted(found.items()))


def _goes(launches: Sequence[Launch], purpose: Purpose) -> list[tuple[int, dict[str, Measurement]]]:
    """Part the measured launches into goes through a round: one ends where the round does, or a candidate returns."""
    goes: list[list[Launch]] = []
    for launch in launches:
        if launch.purpose != purpose or launch.round is None or not isinstance(launch.outcome, Measurement):
            continue
        if not goes or goes[-1][0].round != launch.round:
            goes.append([launch])
            continue
        together = [*goes.pop(), launch]
        begins = _return(together)
        goes += [together[:begins], together[begins:]] if begins else [together]
    return [
        (go[0].round or 0, {each.candidate.key: each.outcome for each in go if isinstance(each.outcome, Measurement)})
        for go in goes
    ]


def _return(together: Sequence[Launch]) -> int:
    """Say where the go begins in which the last launch's candidate is launched again; 0 where it was not before.

    A go that was taken up again may have begun with candidates that the first one did not get to. What parts the two
    is the longest pause: the run was cut off there.
    """
    *before, last = together
    again = next((at for at, each in enumerate(before) if each.candidate == last.candidate), None)
    if again is None:
        return 0
    return max(range(again + 1, len(together)), key=lambda at: (_pause_s(together[at - 1], together[at]), at))


def _pause_s(before: Launch, after: Launch) -> float:
    """Time between two launches; 0 where the ledger's times do not say."""
    try:
        was, now = (datetime.fromisoformat(each.started_at).timestamp() for each in (before, after))
    except (ValueError, OverflowError, OSError):
        return 0.0
    return now - was - before.wall_s


def _pair(number: int, default: Measurement, candidate: Measurement) -> Pair:
    tails = _tail(default), _tail(candidate)
    sizes = default.size_times_us.keys() & candidate.size_times_us.keys()
    return Pair(
        round=number,
        default_us=default.median_us,
        candidate_us=candidate.median_us,
        gain=default.median_us / candidate.median_us - 1,
        tail_gain=tails[0] / tails[1] - 1 if tails[0] and tails[1] else None,
        size_gains={
            size: default.size_times_us[size] / candidate.size_times_us[size] - 1 for size in sorted(sizes, key=int)
        }
        if len(sizes) > 1
        else {},
    )


def _tail(measured: Measurement) -> float | None:
    """95th percentile of the step times of a launch."""
    times = measured.step_times_us
    return statistics.quantiles(times, n=20, method="inclusive")[-1] if len(times) >= _TAIL_LEAST_STEPS else None
