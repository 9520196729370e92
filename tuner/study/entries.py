"""What a ledger line can hold, besides the records that other stages define."""

from __future__ import annotations

from typing import Literal, TypeAlias

from ..records import Candidate, Purpose, Reach, Record

TrialState: TypeAlias = Literal["measured", "repeat", "infeasible", "invalid", "illegal", "known", "lost"]

LAUNCHED: frozenset[TrialState] = frozenset({"measured", "repeat", "infeasible", "invalid", "lost"})
"""States of trials that cost a launch, and so count in the budget."""

MAY_RETURN = 1.0
"""Constraint of a candidate that failed once: the sampler keeps away, yet may draw it again."""
NEVER_AGAIN = 2.0
"""Constraint of a candidate that is not launched again."""


class TrialEntry(Record):
    """One trial: a proposal and what became of it.

    Attributes:
        number: Position among all trials, the same as Optuna's number.
        value_us: Score of the candidate after this trial; ``None`` where it has none.
        state: ``measured`` first sample; ``repeat`` a further one; ``infeasible`` it failed; ``invalid`` its settings
            did not take effect; ``illegal`` refused without a launch; ``known`` told from earlier samples without
            a launch; ``lost`` to the infrastructure, charged to nobody.
        constraint: Above 0 when not feasible; ``NEVER_AGAIN`` and more bars the candidate.
        reason: Why it is not feasible, one line.
    """

    number: int
    candidate: Candidate
    value_us: float | None = None
    state: TrialState
    constraint: float = 0.0
    reason: str = ""

    @property
    def launched(self) -> bool:
        """Whether it cost a launch."""
        return self.state in LAUNCHED


class Intent(Record):
    """Written before a launch, so that a result whose launch line is missing can be given its place.

    Attributes:
        started_at: UTC, ISO 8601.
    """

    launch_id: str
    purpose: Purpose
    candidate: Candidate
    trial: int | None = None
    round: int | None = None
    attempt: int = 1
    started_at: str
    folder: str = ""


class NoiseFloor(Record):
    """How much launches of the same settings differ.

    Attributes:
        relative: Robust relative spread of launch medians, default against default (0.01 is 1 %).
        medians: Median step time of each launch, in microseconds.
        n: Launches behind it.
        reach: What the study can be expected to show at this noise; ``None`` in ledgers of the first release.
    """

    relative: float
    medians: tuple[float, ...]
    n: int
    reach: Reach | None = None


class Note(Record):
    """Something that a reader of the study should know.

    Attributes:
        at: UTC, ISO 8601.
    """

    at: str
    text: str
