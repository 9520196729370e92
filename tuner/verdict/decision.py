"""From what the rounds have shown to the verdict in words. Pure: nothing is launched here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..quantities import format_percent, format_share
from ..records import DEFAULT, Candidate, Failure, Finalist, Launch, Verdict
from .bounds import student
from .sequence import Ended, Rule, of_gain

_MOST_ROUNDS = 500
"""More rounds than this are no advice."""


@dataclass(frozen=True, kw_only=True)
class Account:
    """What the study has spent, and what limits its answer.

    Attributes:
        launches: Of the whole study.
        round_launches: Those of the fresh rounds.
        wall_s: Wall time of all launches.
        ranks: Processes of a launch.
        noise_floor: Relative spread of launches of the default.
        collective_only: The workload is a collective alone.
    """

    launches: int = 0
    round_launches: int = 0
    wall_s: float = 0.0
    ranks: int = 1
    noise_floor: float | None = None
    collective_only: bool = False

    @property
    def gpu_s(self) -> float:
        """Wall time times ranks."""
        return round(self.wall_s * self.ranks, 1)


def conclude(ended: Ended, rule: Rule, account: Account) -> Verdict:
    """Put into words what the rounds came to.

    Args:
        ended: From ``sequence.judge``.
        rule: What was asked for.
        account: What was spent.
    """
    finalists = ended.finalists
    if finalists and finalists[0].fate == "ship":
        return _ship(ended, finalists[0], rule, account)
    if finalists and all(finalist.fate == "out" for finalist in finalists):
        return _keep(ended, rule, account)
    return _none(ended, rule, account)


def nothing_found(
    best_gain: float | None, min_gain: float, account: Account | None = None, *, tried: bool = True
) -> Verdict:
    """The verdict when the search met no candidate that is worth a fresh round.

    Args:
        best_gain: Of the best candidate in the search, or ``None`` when the default alone could be measured.
        min_gain: Smallest gain that is worth a change.
        account: What was spent.
        tried: Whether any other candidate was launched, or there is none.
    """
    if best_gain is None and not tried:
        sentence = "No verdict: no candidate but the default was launched"
        needed = "more time or trials: a larger --budget or --trials"
        return _verdict("no-verdict", sentence, None, (), min_gain, account or Account(), needed=needed)
    if best_gain is None:
        sentence = "Keep the defaults: no other candidate could be measured"
    else:
        sentence = (
            f"Keep the defaults: the best candidate of the search was {format_share(best_gain)} against the default, "
            f"and more than {format_share(min_gain)} is asked for"
        )
    return _verdict("keep-default", sentence, None, (), min_gain, account or Account(), gain=best_gain)


def too_slow(candidate: Candidate, min_gain: float, account: Account) -> Verdict:
    """The verdict when launches are so slow that the time has no place for rounds.

    Args:
        candidate: The best of the search.
        min_gain: Smallest gain that is worth a change.
        account: What was spent.
    """
    sentence = (
        f"No verdict: {candidate} is worth a second look, but launches are too slow here for fresh rounds in time"
    )
    return _verdict(
        "no-verdict", sentence, None, (), min_gain, account, needed="rounds at any time they take: --rounds 6"
    )


def failed(candidate: Candidate, launch: Launch, min_gain: float, account: Account | None = None) -> Verdict:
    """The verdict when a fresh launch failed again through no fault of the candidate.

    Args:
        candidate: The one that was launched.
        launch: The one that failed.
        min_gain: Smallest gain that is worth a change.
        account: What was spent.
    """
    why = launch.outcome.message if isinstance(launch.outcome, Failure) else "it was not measured"
    sentence = f"No verdict: a fresh launch of {candidate} failed: {why}"
    advice = launch.outcome.advice if isinstance(launch.outcome, Failure) else ""
    needed = advice or "mend what made the launch fail, then run the same command again"
    return _verdict("no-verdict", sentence, None, (), min_gain, account or Account(), needed=needed)


def _ship(ended: Ended, winner: Finalist, rule: Rule, account: Account) -> Verdict:
    alone = " (collective only)" if account.collective_only else ""
    sentence = f"Ship{alone}: {_measured(winner)}"
    needed = "a model step: what helps a collective alone can cost a model" if account.collective_only else ""
    return _verdict(
        "ship", sentence, winner, ended.finalists, rule.min_gain, account,
        needed=needed, rounds=ended.looked, pays_after_steps=_pays_after(winner, account),
    )  # fmt: skip


def _keep(ended: Ended, rule: Rule, account: Account) -> Verdict:
    best = _best(ended.finalists)
    if best.bounds is None:
        sentence = f"Keep the defaults: {best.candidate} is out, {best.reason}"
    elif best.bounds[1] < rule.min_gain:
        sentence = (
            f"Keep the defaults: no finalist is worth it; the best is {_measured(best)}, "
            f"and more than {format_share(rule.min_gain)} is asked for"
        )
    else:
        sentence = f"Keep the defaults: the best finalist is {_measured(best)}, but {best.reason}"
    return _verdict("keep-default", sentence, best, ended.finalists, rule.min_gain, account, rounds=ended.looked)


def _none(ended: Ended, rule: Rule, account: Account) -> Verdict:
    still = [finalist for finalist in ended.finalists if finalist.fate == "open"]
    best = _best(still) if still else None
    if best is None or best.gain is None:
        rounds = "one fresh round is" if rule.rounds == 1 else f"{rule.rounds} fresh rounds are"
        sentence = f"No verdict: {rounds} too few for a bound"
        return _verdict(
            "no-verdict", sentence, best, ended.finalists, rule.min_gain, account, needed="--rounds 6 or more",
            rounds=ended.looked,
        )  # fmt: skip
    if best.bounds is not None and best.bounds[0] > rule.min_gain:
        sentence = f"No verdict: {best.candidate} is {_measured(best)}, {best.reason}"
        needed = "NCCL's own log and checked sums in every launch"
    else:
        early = ", and more of them cannot be expected to decide" if ended.early else ""
        sentence = (
            f"No verdict: the best finalist is {_measured(best)}; whether it gains more than "
            f"{format_share(rule.min_gain)} is not shown{early}"
        )
        needed = _needed(best, rule)
    return _verdict(
        "no-verdict", sentence, best, ended.finalists, rule.min_gain, account, needed=needed, rounds=ended.looked
    )


def _verdict(
    word: str,
    sentence: str,
    about: Finalist | None,
    finalists: Sequence[Finalist],
    min_gain: float,
    account: Account,
    **more: object,
) -> Verdict:
    shown: dict[str, object] = {}
    if about is not None:
        shown = {"pairs": about.pairs, "gain": about.gain, "interval": about.interval, "bounds": about.bounds}
    values = {
        "word": word,
        "sentence": sentence,
        "candidate": DEFAULT if about is None or word == "keep-default" else about.candidate,
        "min_gain": min_gain,
        "finalists": tuple(finalists),
        "collective_only": account.collective_only,
        "launches": account.launches,
        "round_launches": account.round_launches,
        "noise_floor": account.noise_floor,
        "gpu_s": account.gpu_s,
        **shown,
        **more,
    }
    return Verdict.model_validate(values)


def _measured(finalist: Finalist) -> str:
    """``+10.2 % faster …`` with interval and rounds."""
    if finalist.gain is None or finalist.interval is None:
        return f"not measured often enough ({len(finalist.pairs)} rounds)"
    low, high = (format_share(bound) for bound in finalist.interval)
    rounds = len(finalist.pairs)
    return (
        f"{format_share(finalist.gain)} against the default "
        f"(95 % interval {low} to {high}, {rounds} fresh mirrored rounds)"
    )


def _best(finalists: Sequence[Finalist]) -> Finalist:
    """The one that looks fastest; the first to enter where none was measured."""
    return max(finalists, key=lambda finalist: -math.inf if finalist.gain is None else finalist.gain)


def _pays_after(winner: Finalist, account: Account) -> int | None:
    """Steps until the time saved equals the wall time of all launches of the study."""
    if not winner.pairs or winner.gain is None:
        return None
    default_us = math.exp(sum(math.log(pair.default_us) for pair in winner.pairs) / len(winner.pairs))
    saved_us = default_us * (1 - 1 / (1 + winner.gain))
    return math.ceil(account.wall_s * 1e6 / saved_us) if saved_us > 0 else None


def _needed(best: Finalist, rule: Rule) -> str:
    """Say how many rounds, or how little noise, could show on which side of the wish the gain lies."""
    found = of_gain(best.pairs)
    if found is None:
        return "more rounds"
    apart = abs(found.mean - rule.threshold)
    error = rule.ship_error if found.mean > rule.threshold else rule.keep_error
    quantile = student(max(2, rule.rounds - 2), error)
    rounds = math.inf if apart == 0 else (quantile * found.spread / apart) ** 2
    quieter = apart * math.sqrt(rule.rounds) / quantile / math.sqrt(2)
    noise = found.spread / math.sqrt(2)
    advice = (
        f"launches that differ by {format_percent(quieter)} instead of {format_percent(noise)}, "
        "or a --min-gain that is farther away"
    )
    if rounds > _MOST_ROUNDS:
        return advice
    wanted = 2 * math.ceil(max(rounds, rule.rounds + 1) / 2)
    return f"about {wanted} rounds at this noise (--rounds {wanted}), or {advice}"
