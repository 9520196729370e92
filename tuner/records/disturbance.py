"""Who else used the machine."""

from __future__ import annotations

from typing import Literal

from .base import Record


class Disturbance(Record):
    """Something that took from a launch what the launch did not use itself.

    Attributes:
        kind: Who or what: ``gpu-user`` another process on the GPUs, ``gpu-clock`` clocks held down, ``cpu`` other users
            of the cores, ``cpu-limit`` the control group's limit, ``memory`` waiting for memory.
        text: In plain words, with numbers.
        share: How much of the launch or of the resource it took, 0 to 1; ``None`` where not known.
    """

    kind: Literal["gpu-user", "gpu-clock", "cpu", "cpu-limit", "memory"]
    text: str
    share: float | None = None


class Disturbances(Record):
    """What was seen on this machine while a launch ran; says nothing of other machines.

    Attributes:
        seen: Empty where nothing was.
        unknown: What could not be watched, in plain words.
        cpu_others: Share of the usable cores' time that other processes used.
        power_capped: Largest share of samples, over the GPUs, in which a GPU was at its power limit. That is how a
            healthy GPU lives under load, so it is no disturbance.
    """

    seen: tuple[Disturbance, ...] = ()
    unknown: tuple[str, ...] = ()
    cpu_others: float | None = None
    power_capped: float | None = None


class Disturbed(Record):
    """Launches of a study that shared the machine with somebody, or were held up by it.

    Attributes:
        watched: Launches that were watched.
        disturbed: Those of them in which something was seen.
        deciding: Watched launches of the rounds that decide.
        deciding_disturbed: Those of them in which something was seen.
        worst: What took the largest share of a launch, in plain words.
        worst_launch: The launch that it was seen in.
    """

    watched: int = 0
    disturbed: int = 0
    deciding: int = 0
    deciding_disturbed: int = 0
    worst: str = ""
    worst_launch: str = ""

    @property
    def counted(self) -> str:
        """The counts in words; empty where nothing was seen."""
        if not self.disturbed:
            return ""
        deciding = f", {self.deciding_disturbed} of {self.deciding} in the fresh rounds" if self.deciding else ""
        return f"{self.disturbed} of {self.watched} launches{deciding}"

    @property
    def sentence(self) -> str:
        """The counts and the worst in words; empty where nothing was seen."""
        return f"{self.counted}; the worst: {self.worst} ({self.worst_launch})" if self.disturbed else ""
