"""Default against finalists: what the fresh rounds have shown of each."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ..records import Candidate, Finalist, Launch, Pair, Verdict
from ..study.ledger import Ledger
from ..verdict.rounds import pairs
from ..verdict.sequence import of_gain
from . import table
from .summary import is_fresh

_FATES = {"ship": "ship", "out": "out", "open": "not decided"}


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A candidate of the fresh rounds.

    Attributes:
        letter: Its name in the figure.
        finalist: What the rounds have shown; ``open`` while there is no verdict.
    """

    letter: str
    finalist: Finalist

    @property
    def default_us(self) -> float | None:
        """Median step of the default in its rounds."""
        return _median([pair.default_us for pair in self.finalist.pairs])

    @property
    def step_us(self) -> float | None:
        """Median step of the candidate in its rounds."""
        return _median([pair.candidate_us for pair in self.finalist.pairs])


def contenders(ledger: Ledger) -> tuple[Contender, ...]:
    """Return the finalists of a verdict, or those whose rounds have begun."""
    verdict = ledger.verdict
    if verdict is None:
        found = _so_far(ledger)
    elif verdict.finalists or not verdict.pairs:
        found = verdict.finalists
    else:
        found = (_of_first_release(verdict),)
    return tuple(Contender(letter=_letter(index), finalist=finalist) for index, finalist in enumerate(found))


def contenders_table(found: Sequence[Contender]) -> table.Table:
    """One row a finalist, and the default that they were held against."""
    rows = [_row(each) for each in found]
    return table.Table(
        caption="Default against finalists, in fresh rounds",
        columns=(
            table.Column(""),
            table.Column("Settings"),
            table.Column("Fate"),
            table.Column("Gain", "number"),
            table.Column("95 % interval", "number"),
            table.Column("One-sided bounds", "number"),
            table.Column("Rounds", "number"),
            table.Column("Step", "number"),
            table.Column("Default's step", "number"),
            table.Column("Tail gain (95 %)", "number"),
            table.Column("Why"),
        ),
        rows=tuple(rows),
    ).without_empty("Tail gain (95 %)", "Why")


def _row(contender: Contender) -> tuple[table.Cell, ...]:
    finalist = contender.finalist
    return (
        table.text(contender.letter),
        table.settings(finalist.candidate),
        table.text(_FATES[finalist.fate]),
        table.gain(finalist.gain),
        table.interval(finalist.interval),
        table.interval(finalist.bounds),
        table.count(len(finalist.pairs)),
        table.time(contender.step_us),
        table.time(contender.default_us),
        table.gain(finalist.tail_gain, missing=""),
        table.text(finalist.reason),
    )


def _so_far(ledger: Ledger) -> tuple[Finalist, ...]:
    launches = [launch for launch in ledger.launches if is_fresh(launch)]
    begun = dict.fromkeys(launch.candidate for launch in launches if not launch.candidate.is_default)
    return tuple(_begun(candidate, _pairs(launches, candidate)) for candidate in begun)


def _pairs(launches: Sequence[Launch], candidate: Candidate) -> tuple[Pair, ...]:
    return tuple(pairs(launches, candidate, launches[0].purpose).values())


def _begun(candidate: Candidate, rounds: tuple[Pair, ...]) -> Finalist:
    """What rounds without a verdict on them come to; too few give no interval."""
    found = of_gain(rounds)
    return Finalist(
        candidate=candidate,
        fate="open",
        reason="" if found else "too few rounds for an interval",
        pairs=rounds,
        gain=found.gain if found else None,
        interval=found.interval() if found else None,
    )


def _of_first_release(verdict: Verdict) -> Finalist:
    """Its verdicts name no finalists, and it knew no intervals."""
    return Finalist(
        candidate=verdict.candidate,
        fate="open",
        reason="a verdict of the first release, which gave no interval",
        pairs=verdict.pairs,
        gain=verdict.gain,
    )


def _letter(index: int) -> str:
    return chr(ord("A") + index) if index < 26 else str(index + 1)


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None
