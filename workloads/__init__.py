"""What torchrun starts. Standard library and torch only.

A training script reports its steps with two lines, and runs as ever where nccltune does not run it::

    from nccltune.workloads import timed_step
    ...
        timed_step()    # once a step, at the same place
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

_hook: Callable[[], None] | None = None  # set by script.py in the processes that nccltune starts


def timed_step() -> contextlib.AbstractContextManager[None]:
    """Say that a training step begins or ends; call it once a step, always at the same place of the loop.

    A step's time is that from one call to the next, so it does not matter which place it is. ``with
    timed_step():`` around the step does the same. Does nothing in a process that nccltune did not start.

    Returns:
        A context that does nothing further.
    """
    if _hook is not None:
        _hook()
    return contextlib.nullcontext()
