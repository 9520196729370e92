"""A sign of life for the tuner: which phase the launch is in, and that it still moves."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from . import result

PHASES = ("import", "group", "warmup", "timed", "profiled", "check", "end")


class Heartbeat:
    """The file ``heartbeat`` beside the result, written by rank 0 by rename; other ranks only keep the clock.

    Attributes:
        parts_s: Phase to the seconds spent in it so far; a phase counts once it is left.
    """

    def __init__(self, path: Path, rank: int) -> None:
        self._path = path if rank == 0 else None
        self._phase: str | None = None
        self._since = time.monotonic()
        self.parts_s: dict[str, float] = {}

    @property
    def phase(self) -> str:
        """The current phase; empty before the first."""
        return self._phase or ""

    def enter(self, phase: str) -> None:
        """Begin a phase.

        Args:
            phase: One of ``PHASES``.
        """
        now = time.monotonic()
        if self._phase is not None:
            self.parts_s[self._phase] = self.parts_s.get(self._phase, 0.0) + now - self._since
        self._phase, self._since = phase, now
        self.beat(0)

    def beat(self, step: int) -> None:
        """Say that something was done.

        Args:
            step: How many steps of this phase are done.
        """
        if self._path is None:
            return
        with contextlib.suppress(OSError):  # a full disk ends the launch at the result, not here
            result.write(self._path, {"phase": self.phase, "step": step, "time": time.time()}, durable=False)
