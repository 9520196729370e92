"""From mirrored rounds to a verdict. Pure: nothing is launched here."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import pairwise

from ..quantities import format_share
from ..records import DEFAULT, Candidate, Failure, Launch, Measurement, Pair, Verdict

ROUNDS = 3


def order(round_number: int, candidate: Candidate) -> tuple[Candidate, Candidate]:
    """Say who starts in a round: the default in odd rounds, the candidate in even ones.

    Slow drift of the machine (clocks, temperature, neighbours) then hits both alike.
    """
    return (DEFAULT, candidate) if round_number % 2 else (candidate, DEFAULT)


def pairs(launches: Sequence[Launch], candidate: Candidate) -> tuple[Pair, ...]:
    """Put the confirming launches of a candidate and of the default together, round by round.

    Args:
        launches: Of the whole study, in the order of the ledger.
        candidate: The finalist.

    Returns:
        One pair for each round in which both were measured, in the order of the rounds. Where a round was measured
        twice (a resumed study), the last measurement counts.
    """
    return tuple(_by_round(launches, candidate).values())


def measured_rounds(launches: Sequence[Launch], candidate: Candidate) -> frozenset[int]:
    """Say in which rounds both the default and the candidate were measured."""
    return frozenset(_by_round(launches, candidate))


def _by_round(launches: Sequence[Launch], candidate: Candidate) -> dict[int, Pair]:
    """Pair neighbours only: a default of another finalist's round, or of a run cut off in between, is no neighbour."""
    confirming = [
        launch
        for launch in launches
        if launch.purpose == "confirm" and launch.round is not None and isinstance(launch.outcome, Measurement)
    ]
    found: dict[int, Pair] = {}
    for first, second in pairwise(confirming):
        sides = {launch.candidate.key: launch.outcome for launch in (first, second)}
        default, other = sides.get(DEFAULT.key), sides.get(candidate.key)
        if first.round != second.round or not isinstance(default, Measurement) or not isinstance(other, Measurement):
            continue
        default_us, candidate_us = default.median_us, other.median_us
        found[first.round or 0] = Pair(
            default_us=default_us, candidate_us=candidate_us, gain=default_us / candidate_us - 1
        )
    return dict(sorted(found.items()))


def hopeless(found: Sequence[Pair], min_gain: float) -> bool:
    """Whether a round has already shown that not all rounds can be faster by more than ``min_gain``."""
    return any(pair.gain <= min_gain for pair in found)


def decide(candidate: Candidate, found: Sequence[Pair], min_gain: float, rounds: int = ROUNDS) -> Verdict:
    """Decide by the rule that all fresh mirrored rounds are faster by more than ``min_gain``.

    No confidence bound backs this rule, so its best answer is ``unconfirmed``.

    Args:
        candidate: The finalist.
        found: Its rounds against the default.
        min_gain: Smallest gain that is worth a change, as a share.
        rounds: How many rounds are asked for.

    Returns:
        ``unconfirmed`` with the candidate, or ``keep-default``; ``no-verdict`` while rounds are missing.
    """
    gain = statistics.median(pair.gain for pair in found) if found else None
    verdict = Verdict(word="no-verdict", sentence="", pairs=tuple(found), gain=gain, min_gain=min_gain)
    if hopeless(found, min_gain):
        slowest = min(pair.gain for pair in found)
        where = "a fresh round" if len(found) == 1 else f"one of {len(found)} fresh rounds"
        sentence = (
            f"Keep the defaults: the best candidate was {format_share(slowest)} against the default in {where}, "
            f"and more than {format_share(min_gain)} is asked for in each"
        )
        return verdict.model_copy(update={"word": "keep-default", "sentence": sentence})
    if len(found) < rounds:
        sentence = f"No verdict: {len(found)} of {rounds} fresh rounds against the default were measured"
        return verdict.model_copy(update={"sentence": sentence, "candidate": candidate})
    low, high = min(pair.gain for pair in found), max(pair.gain for pair in found)
    sentence = (
        f"Unconfirmed gain: faster than the default in each of {len(found)} fresh mirrored rounds, "
        f"by {format_share(low)} to {format_share(high)}"
    )
    return verdict.model_copy(update={"word": "unconfirmed", "sentence": sentence, "candidate": candidate})


def nothing_found(best_gain: float | None, min_gain: float) -> Verdict:
    """The verdict when the search met no candidate that is worth a fresh round.

    Args:
        best_gain: Of the best candidate in the search, or ``None`` when the default alone could be measured.
        min_gain: Smallest gain that is worth a change.
    """
    if best_gain is None:
        sentence = "Keep the defaults: no other candidate could be measured"
    else:
        sentence = (
            f"Keep the defaults: the best candidate of the search was {format_share(best_gain)} against the default, "
            f"and more than {format_share(min_gain)} is asked for"
        )
    return Verdict(word="keep-default", sentence=sentence, gain=best_gain, min_gain=min_gain)


def failed(candidate: Candidate, launch: Launch, min_gain: float) -> Verdict:
    """The verdict when the finalist did not run in a fresh launch, through no fault of its own.

    Args:
        candidate: The finalist.
        launch: The one that failed.
        min_gain: Smallest gain that is worth a change.
    """
    why = launch.outcome.message if isinstance(launch.outcome, Failure) else "it was not measured"
    sentence = f"No verdict: a fresh launch of the best candidate ({candidate}) failed: {why}"
    return Verdict(word="no-verdict", sentence=sentence, candidate=candidate, min_gain=min_gain)
