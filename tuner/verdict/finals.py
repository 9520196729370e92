"""The finals: the best candidates of the search meet the default in fresh rounds, until something is shown.

Who is in, what is launched next and what was shown is read from the ledger each time, so that a run which was cut off
goes on in the round in which it was.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..records import Backend, Candidate, Evidence, Failure, Launch, Measurement, Verdict
from ..space.catalogue import Knob
from ..study.campaign import Campaign, ranked_by_search
from ..study.ledger import Ledger
from ..study.ranking import Ranked, faulty
from . import decision, proof, rounds
from .bounds import LEAST_ROUNDS
from .sequence import Ask, Entry, Rule, judge

_PLAUSIBLE = 2.0
"""Standard errors within which a candidate of the search may still be the best, or be worth it."""
_TRIES = 2
"""Launches given to one place in a round when the first fails through no fault of the candidate."""


@dataclass(frozen=True, kw_only=True)
class Terms:
    """Under what terms the finals are held.

    Attributes:
        min_gain: Smallest gain that is worth a change.
        rounds: Most rounds.
        seconds: Wall time that the rounds may take; fewer rounds where launches are slow. ``None`` for no limit.
        alone: Whether the space holds the default and nothing else.
        finalists: Most candidates that enter.
        backend: Of the process group.
        ranks: Processes of a launch.
        collective_only: The workload is a collective alone.
        knobs: The catalogue.
    """

    min_gain: float
    rounds: int
    finalists: int
    backend: Backend
    ranks: int
    collective_only: bool
    knobs: Mapping[str, Knob]
    seconds: float | None = None
    alone: bool = False


def run(
    ledger: Ledger,
    campaign: Campaign,
    terms: Terms,
    ask_nccl: Callable[[Candidate], object],
    on_rounds: Callable[[int], object],
) -> Verdict:
    """Hold the finals and return the verdict.

    Args:
        ledger: Of a study whose search is done.
        campaign: Launches.
        terms: What is asked for.
        ask_nccl: Makes sure that NCCL has said what it chooses under a candidate; does nothing where there is no NCCL.
        on_rounds: Told the most launches that the rounds may take, before the first.

    Raises:
        Interrupted: Asked to stop; what was measured is kept.
    """
    ranking = ranked_by_search(ledger)
    skip: set[Candidate] = set()
    while True:
        finalists = _finalists(ledger, [entry for entry in ranking if entry.candidate not in skip], terms, ask_nccl)
        if isinstance(finalists, Verdict):
            return finalists
        affordable = affordable_rounds(ledger, terms, len(finalists))
        if affordable < min(LEAST_ROUNDS, terms.rounds):
            return decision.too_slow(finalists[0], terms.min_gain, account(ledger, terms))
        on_rounds(affordable * (1 + len(finalists)))
        verdict = hold(ledger, campaign, replace(terms, rounds=affordable), finalists)
        if verdict is not None:
            return verdict
        skip |= set(finalists)


def affordable_rounds(ledger: Ledger, terms: Terms, finalists: int) -> int:
    """Return the most rounds that fit the time; launches of the noise floor say how long one takes."""
    usual = [launch.wall_s for launch in ledger.launches if launch.purpose == "noise-floor"]
    if terms.seconds is None or not usual or not (each := statistics.median(usual)):
        return terms.rounds
    return min(terms.rounds, int(terms.seconds / (each * (1 + finalists))))


def account(ledger: Ledger, terms: Terms) -> decision.Account:
    """Add up what the study has spent."""
    return decision.Account(
        launches=len(ledger.launches),
        round_launches=len(_confirming(ledger)),
        wall_s=sum(launch.wall_s for launch in ledger.launches),
        ranks=terms.ranks,
        noise_floor=ledger.noise.relative if ledger.noise else None,
        collective_only=terms.collective_only,
    )


def _finalists(
    ledger: Ledger, ranking: Sequence[Ranked], terms: Terms, ask_nccl: Callable[[Candidate], object]
) -> list[Candidate] | Verdict:
    """Return those that may be the best and worth it, as far as the noise lets the search say; or the verdict."""
    default = next((entry for entry in ranking if entry.candidate.is_default), None)
    others = [entry for entry in ranking if not entry.candidate.is_default]
    if default is None or not others:
        tried = terms.alone or _tried(ledger)
        return decision.nothing_found(None, terms.min_gain, account(ledger, terms), tried=tried)
    noise = ledger.noise.relative if ledger.noise else 0.0
    hopeful = [entry for entry in others if _gain(default, entry) + _doubt(noise, entry, default) > terms.min_gain]
    if not hopeful:
        return decision.nothing_found(_gain(default, others[0]), terms.min_gain, account(ledger, terms))
    fastest = min(hopeful, key=lambda entry: entry.value_us)
    plausible = [entry for entry in hopeful if _gain(entry, fastest) <= max(0.01, _doubt(noise, entry, fastest))]
    chosen: list[tuple[Candidate, tuple[object, ...]]] = []
    for entry in plausible:
        ask_nccl(entry.candidate)
        if entry.candidate in faulty(launch for launch in ledger.launches if launch.purpose == "evidence"):
            continue
        alike = proof.likeness(entry.candidate, _evidence(ledger, entry.candidate), terms.knobs)
        chosen.append((entry.candidate, alike))
        if len(proof.distinct(chosen)) == terms.finalists:
            break
    if chosen:
        return proof.distinct(chosen)
    left = [entry for entry in ranking if entry not in plausible]
    return _finalists(ledger, left, terms, ask_nccl)


def _tried(ledger: Ledger) -> bool:
    """Whether anything but the default was launched; not when the budget ended before."""
    return any(trial.launched and not trial.candidate.is_default for trial in ledger.trials)


def _gain(slower: Ranked, faster: Ranked) -> float:
    return slower.value_us / faster.value_us - 1


def _doubt(noise: float, one: Ranked, other: Ranked) -> float:
    """How much two values of the search may differ by noise."""
    return _PLAUSIBLE * noise * math.sqrt(1 / one.samples + 1 / other.samples)


def _evidence(ledger: Ledger, candidate: Candidate) -> Evidence | None:
    """What NCCL said in the candidate's launch for evidence."""
    return next(
        (
            launch.outcome.evidence
            for launch in ledger.launches
            if launch.purpose == "evidence" and launch.candidate == candidate
        ),
        None,
    )


def hold(ledger: Ledger, campaign: Campaign, terms: Terms, finalists: Sequence[Candidate]) -> Verdict | None:
    """Hold the rounds of these finalists; what the ledger has of them counts.

    Args:
        ledger: Where the rounds are kept.
        campaign: Launches.
        terms: What is asked for.
        finalists: In the order of their promise.

    Returns:
        The verdict; ``None`` when every finalist is out by a fault of its own.

    Raises:
        Interrupted: Asked to stop; what was measured is kept.
    """
    rule = Rule(min_gain=terms.min_gain, rounds=terms.rounds, finalists=len(finalists))
    while True:
        entries = _entries(ledger, finalists, terms)
        if all(entry.fault for entry in entries):
            return None
        step = judge(entries, rule)
        if not isinstance(step, Ask):
            return decision.conclude(step, rule, account(ledger, terms))
        broken = _round(campaign, step)
        if broken is not None:
            return decision.failed(broken.candidate, broken, terms.min_gain, account(ledger, terms))


def _round(campaign: Campaign, asked: Ask) -> Launch | None:
    """Launch one round; return a launch that failed again without being the candidate's fault."""
    for candidate in rounds.order(asked.round, asked.candidates):
        for attempt in range(1, _TRIES + 1):
            launch = campaign.launch(candidate, "confirm", round=asked.round)
            if isinstance(launch.outcome, Measurement):
                break
            if candidate in faulty([launch]):
                campaign.note(f"{candidate} is out: it failed in a fresh launch")
                break
            if attempt == _TRIES or _stops(launch):
                return launch
    return None


def _stops(launch: Launch) -> bool:
    return isinstance(launch.outcome, Failure) and launch.outcome.stop


def _entries(ledger: Ledger, finalists: Sequence[Candidate], terms: Terms) -> list[Entry]:
    launches = _confirming(ledger)
    return [
        Entry(
            candidate=candidate,
            rounds=rounds.pairs(launches, candidate),
            fault=proof.fault(launches, candidate),
            unproven=proof.unproven(launches, candidate, terms.backend),
        )
        for candidate in finalists
    ]


def _confirming(ledger: Ledger) -> list[Launch]:
    return [launch for launch in ledger.launches if launch.purpose == "confirm"]
