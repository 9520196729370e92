"""From launches to scores: which are samples of which candidate, and who is best. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..records import Candidate, Evidence, Launch, Measurement, Purpose

SAMPLING: frozenset[Purpose] = frozenset({"noise-floor", "search", "repeat", "drift"})
"""Purposes whose launches are samples of a candidate; confirming rounds are kept apart, so that they stay fresh."""


@dataclass(frozen=True)
class Ranked:
    """A candidate and its samples.

    Attributes:
        candidate: Without the settings that NCCL never consulted.
        value_us: Median over the launches of their median step times.
        medians_us: The launch medians, in the order of the launches.
    """

    candidate: Candidate
    value_us: float
    medians_us: tuple[float, ...]

    @property
    def samples(self) -> int:
        """Launches behind the value."""
        return len(self.medians_us)


def invalid_reason(launch: Launch) -> str:
    """Say why a measured launch did not run under its candidate; empty when it did.

    NCCL's log decides (a value that it refused or printed otherwise), and what each rank saw in its environment.
    """
    if not isinstance(launch.outcome, Measurement):
        return ""
    settings = launch.candidate.settings
    evidence = launch.outcome.evidence or Evidence()
    for name, why in evidence.refused.items():
        if name in settings:
            return f"{name}={settings[name]} was refused: {why}"
    for name, said in evidence.echoed.items():
        if name in settings and not _same(settings[name], said):
            return f"{name}={settings[name]} was read as {said}"
    for rank in launch.outcome.ranks:
        for name, value in settings.items():
            if rank.echo and rank.echo.get(name) != value:
                return f"rank {rank.rank} saw {name}={rank.echo.get(name, '')} instead of {value}"
    return ""


def _same(value: str, said: str) -> bool:
    if value.strip().casefold() == said.strip().casefold():
        return True
    try:
        return int(value, 0) == int(said, 0)
    except ValueError:
        return False


def merged(launches: Iterable[Launch]) -> dict[Candidate, Candidate]:
    """Map each candidate with inert settings to the candidate without them, as its latest evidence says."""
    without: dict[Candidate, Candidate] = {}
    for launch in launches:
        evidence = launch.outcome.evidence
        if isinstance(launch.outcome, Measurement) and evidence is not None:
            kept = {name: value for name, value in launch.candidate.settings.items() if name not in evidence.inert}
            without[launch.candidate] = Candidate(settings=kept)
    return {before: after for before, after in without.items() if before != after}


def score(launches: Sequence[Launch], candidate: Candidate) -> Ranked | None:
    """Score one candidate over all its samples, those of equal candidates (less inert settings) among them."""
    same = merged(launches)
    target = same.get(candidate, candidate)
    medians = tuple(
        launch.outcome.median_us
        for launch in launches
        if same.get(launch.candidate, launch.candidate) == target
        and isinstance(launch.outcome, Measurement)
        and is_sample(launch)
    )
    return Ranked(target, statistics.median(medians), medians) if medians else None


def is_sample(launch: Launch) -> bool:
    """Say whether the launch measured its candidate for the search."""
    return launch.purpose in SAMPLING and isinstance(launch.outcome, Measurement) and not invalid_reason(launch)


def faulty(launches: Iterable[Launch]) -> set[Candidate]:
    """Return candidates that failed by their own fault or whose settings did not take effect: never to be shipped."""
    return {
        launch.candidate
        for launch in launches
        if not launch.candidate.is_default
        and (invalid_reason(launch) or (launch.outcome.outcome == "failure" and launch.outcome.blame == "candidate"))
    }


def best(launches: Sequence[Launch], noise: float = 0.0, barred: Iterable[Candidate] = ()) -> list[Ranked]:
    """Rank all candidates that were measured and are sound, the default among them.

    Candidates that differ by no more than the noise are tied; ties go to the one nearest the default (fewest
    settings), then to the faster one.

    Args:
        launches: Of the whole study.
        noise: Relative noise floor.
        barred: Candidates to leave out, besides those that ``faulty`` names.

    Returns:
        Best first.
    """
    same = merged(launches)
    out = {same.get(candidate, candidate) for candidate in (*faulty(launches), *barred)}
    medians: dict[Candidate, list[float]] = {}
    for launch in launches:
        candidate = same.get(launch.candidate, launch.candidate)
        if (
            is_sample(launch)
            and isinstance(launch.outcome, Measurement)
            and (candidate.is_default or candidate not in out)
        ):
            medians.setdefault(candidate, []).append(launch.outcome.median_us)
    found = [Ranked(candidate, statistics.median(values), tuple(values)) for candidate, values in medians.items()]
    rest = sorted(found, key=lambda ranked: ranked.value_us)
    order: list[Ranked] = []
    while rest:
        limit = rest[0].value_us * (1 + noise)
        tied = [ranked for ranked in rest if ranked.value_us <= limit]
        order += sorted(tied, key=lambda ranked: (len(ranked.candidate.settings), ranked.value_us))
        rest = rest[len(tied) :]
    return order
