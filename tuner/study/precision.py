"""How well a launch has to know its step time: as well as launches can be told apart, and no better. Pure."""

from __future__ import annotations

from ..records import Steps
from .entries import NoiseFloor

FLOOR_SHARE = 1 / 3
"""Of the noise floor. An error of a third of it makes the spread of launches 5 % larger; all smaller ones cost GPU time
for less than that."""
FINEST, COARSEST = 0.0005, 0.01
"""Bounds of the error asked for. A finer one would need more steps than a launch may time (0.4 % from step to step are
200 steps at 0.035 %); a coarser one would leave too few steps for the 95th percentile."""


def steps(planned: Steps, noise: NoiseFloor | None) -> Steps:
    """Say how a launch is measured once the noise floor is known.

    The fewest and most steps and the time for them stay as planned, so that the error asked for only moves the number
    of steps between them.

    Args:
        planned: How launches are measured before; part of the study's identity, which this is not.
        noise: Of the default; ``None`` before it is known.
    """
    if noise is None:
        return planned
    wanted = min(COARSEST, max(FINEST, FLOOR_SHARE * noise.relative))
    return planned.model_copy(update={"relative_error": wanted})
