"""Which batch size comes next, and which one is taken: pure rules on what was measured so far."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .request import Ladder

GROWTH = 2
# So many sizes in a row without an idle share mean that this machine's profiler does not tell it.
_UNTOLD = 2


@dataclass(frozen=True)
class Try:
    """One batch size; the fields are those of ``nccltune.records.BatchTry``."""

    batch_size: int
    step_us: float | None = None
    idle_share: float | None = None
    memory_bytes: int | None = None
    memory_share: float | None = None


@dataclass(frozen=True)
class Decision:
    """What follows from the sizes so far.

    Attributes:
        next: The next size; 0 where the search is over.
        reason: Why it is over, as in ``nccltune.records.BatchChoice``; empty where it is not.
    """

    next: int
    reason: str = ""


def decide(tries: Sequence[Try], rule: Ladder) -> Decision:
    """Say whether a larger batch is worth a try.

    Args:
        tries: At least one, in order; all of them fitted.
        rule: When to stop.

    Returns:
        The next size, or why there is none.
    """
    last = tries[-1]
    if last.memory_share is not None and last.memory_share > rule.memory_share:
        return Decision(0, "memory")
    if last.idle_share is not None and last.idle_share <= rule.idle_share:
        return Decision(0, "busy")
    if rule.idle_share >= 0 and _untold(tries):
        return Decision(0, "not measured")
    size = last.batch_size * GROWTH
    if rule.last:
        size = min(size, rule.last)
    if size <= last.batch_size:
        return Decision(0, "largest")
    return Decision(size) if _fits(tries, size, rule.memory_share) else Decision(0, "memory")


def choose(tries: Sequence[Try], rule: Ladder) -> int:
    """Take one of the sizes that were tried.

    Args:
        tries: At least one, in order; one without a step time did not fit.
        rule: As of ``decide``.

    Returns:
        The batch size under which the GPU idles least, the largest of equals; where no idle share is looked for, the
        largest. Of sizes that take more of the memory than they may, only the first is ever taken.
    """
    measured = [each for each in tries if each.step_us is not None]
    fitting = [each for each in measured if (each.memory_share or 0.0) <= rule.memory_share] or measured[:1]
    if rule.idle_share < 0:
        return max(each.batch_size for each in fitting)
    return min(fitting, key=lambda each: (_idle(each), -each.batch_size)).batch_size


def choice(tries: Sequence[Try], rule: Ladder, reason: str) -> dict[str, Any]:
    """Put a choice into the fields of ``nccltune.records.BatchChoice``.

    Args:
        tries: As of ``choose``.
        rule: As of ``decide``.
        reason: Why the search is over.
    """
    return {"batch_size": choose(tries, rule), "reason": reason, "tries": [asdict(each) for each in tries]}


def _untold(tries: Sequence[Try]) -> bool:
    """Whether going on would be blind: nothing says how much the GPU works, or how much of its memory is taken."""
    untold = [each.idle_share is None for each in tries[-_UNTOLD:]]
    return all(untold) and (len(untold) == _UNTOLD or tries[-1].memory_share is None)


def _fits(tries: Sequence[Try], size: int, limit: float) -> bool:
    """Foretell the memory of a size by a straight line through the last two; after the first by the worst case."""
    last, before = tries[-1], tries[-2] if len(tries) > 1 else None
    if last.memory_share is None:
        return True
    if before is None or before.memory_share is None:
        # All of it grows with the batch, at worst. What the first size takes whatever the batch (weights, NCCL's
        # buffers) makes the truth smaller, so this bound is the memory's end and not the limit.
        return last.memory_share * size / last.batch_size <= 1.0
    slope = (last.memory_share - before.memory_share) / (last.batch_size - before.batch_size)
    return last.memory_share + max(0.0, slope) * (size - last.batch_size) <= limit


def _idle(each: Try) -> float:
    return math.inf if each.idle_share is None else each.idle_share
