"""One launch as the ledger keeps it."""

from __future__ import annotations

from typing import Literal, TypeAlias

from .base import Record
from .candidate import Candidate
from .disturbance import Disturbances
from .measurement import Outcome

Purpose: TypeAlias = Literal["noise-floor", "search", "repeat", "drift", "confirm", "evidence", "validate", "batch"]


class Launch(Record):
    """One launch as the ledger keeps it.

    Attributes:
        purpose: Why it was made.
        trial: Number of the Optuna trial it belongs to, if any.
        round: Number of the confirming round, if any.
        attempt: 1 for the first try of this measurement, 2 after an infrastructure fault, …
        started_at: UTC, ISO 8601.
        wall_s: From the call of the runner to its return.
        folder: Of the launch, relative to the study folder.
    """

    launch_id: str
    purpose: Purpose
    candidate: Candidate
    trial: int | None = None
    round: int | None = None
    attempt: int = 1
    started_at: str
    wall_s: float
    folder: str = ""
    outcome: Outcome

    @property
    def disturbances(self) -> Disturbances | None:
        """What else used the machine meanwhile; ``None`` where it was not watched."""
        return self.outcome.disturbances
