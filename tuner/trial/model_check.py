"""Does a model's first step come to the same as under the default?

The known-answer collectives ask each collective alone; this asks the model itself. Wrong data that only its own
mix of collectives brings about show here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..records import Failure, FirstStep, Measurement, Outcome
from .diagnose import failure


def judged(outcome: Outcome, defaults: Sequence[Outcome]) -> Outcome:
    """Hold a launch against those of the default.

    Args:
        outcome: Of a launch.
        defaults: Outcomes of launches of the default, of the same study.

    Returns:
        The outcome, or a failure ``wrong_data`` where its first step differs. Nothing can be said, and the outcome
        stays, where the default was not measured, or where its own launches differ: then the job itself is not the
        same from launch to launch, for instance because it sets no seed.
    """
    if not isinstance(outcome, Measurement) or outcome.checks.first_step is None:
        return outcome
    wanted = reference(defaults)
    problem = differs(outcome.checks.first_step, wanted) if wanted is not None else None
    return outcome if problem is None else failure("wrong_data", problem)


def reference(defaults: Sequence[Outcome]) -> FirstStep | None:
    """Give the first step that all launches of the default agree on.

    Args:
        defaults: Outcomes of its launches; failures do not count.

    Returns:
        ``None`` where there is none, or they differ.
    """
    steps = [
        each.checks.first_step
        for each in defaults
        if not isinstance(each, Failure) and each.checks.first_step is not None
    ]
    return steps[0] if steps and not any(differs(each, steps[0]) for each in steps[1:]) else None


def differs(found: FirstStep, wanted: FirstStep) -> str | None:
    """Compare two first steps.

    Args:
        found: Of a launch.
        wanted: Of the default.

    Returns:
        One line that names the first difference, or ``None``.
    """
    if len(found.norm) != len(wanted.norm):
        return f"the model's first step ran on {len(found.norm)} ranks, under the default on {len(wanted.norm)}"
    share = wanted.tolerance
    for rank, (loss, right) in enumerate(zip(found.loss, wanted.loss, strict=False)):
        if abs(loss - right) > share * abs(right):
            return f"the model's first loss is not that under the default on rank {rank}: {loss:.6g} for {right:.6g}"
    for rank, (sums, rights) in enumerate(zip(found.gradient, wanted.gradient, strict=True)):
        apart, norm = math.dist(sums, rights), wanted.norm[rank]
        if apart > share * norm:
            return (
                f"the model's first gradients are not those under the default on rank {rank}: {apart:.3g} apart,"
                f" which is more than {share:g} of their norm {norm:.3g}"
            )
    return None
