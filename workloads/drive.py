"""A run of steps as a generator: each ``yield`` is the place of one step.

So the same lines time and profile a step that is a function, which they call, and the steps of a script,
which they cannot call: there the script's own hook goes on with the generator (``script_steps.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeVar

T = TypeVar("T")


class OutOfSteps(Exception):
    """Thrown in where a step was wanted: the workload has no further one."""


def drive(steps: Generator[None, None, T], step: Callable[[], None]) -> T:
    """Run a generator to its end.

    Args:
        steps: Yields where a step belongs.
        step: One step; one that somebody else takes has a method ``play``, which runs the generator there.

    Returns:
        What the generator returned.

    Raises:
        OutOfSteps: The workload has no further step, and the generator did not care.
    """
    play: Callable[[Generator[None, None, T]], T] | None = getattr(step, "play", None)
    if play is not None:
        return play(steps)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        step()
