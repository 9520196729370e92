"""How a batch size was chosen."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from .base import Record


class BatchTry(Record):
    """One batch size of a ladder.

    Attributes:
        batch_size: Of one rank.
        step_us: Median step time; ``None`` where the batch did not fit.
        idle_share: As of ``Communication``.
        memory_bytes: Taken of the GPU's memory, by whomever; the largest over the ranks.
        memory_share: The same as a share of the GPU's memory.
    """

    batch_size: int
    step_us: float | None = None
    idle_share: float | None = None
    memory_bytes: int | None = None
    memory_share: float | None = None


class BatchChoice(Record):
    """The batch size that a ladder came to.

    Attributes:
        batch_size: Of one rank.
        reason: Why the search ended: ``busy`` the GPU works enough; ``memory`` the next batch would take too much of
            it; ``out of memory`` the next batch did; ``largest`` the next is beyond what was asked for;
            ``not measured`` nobody could say whether the GPU works.
        tries: All sizes, in order.
    """

    batch_size: int
    reason: Literal["busy", "memory", "out of memory", "largest", "not measured"]
    tries: Annotated[tuple[BatchTry, ...], Field(min_length=1)]

    @property
    def chosen(self) -> BatchTry:
        """What was measured with the chosen batch."""
        return next(each for each in self.tries if each.batch_size == self.batch_size)
