"""Settings under test, and the space that they come from."""

from __future__ import annotations

import re

from pydantic import JsonValue, field_validator

from .base import Backend, Record

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


class Candidate(Record):
    """A full assignment of the searched knobs; what is not named is left as it is.

    Attributes:
        settings: Name to value, both exactly as they stand in the environment, sorted by name.
    """

    settings: dict[str, str] = {}

    @field_validator("settings")
    @classmethod
    def _check(cls, settings: dict[str, str]) -> dict[str, str]:
        for name, value in settings.items():
            if not _NAME.match(name):
                raise ValueError(f"{name!r} is no name of an environment variable")
            if any(ord(character) < 32 or ord(character) == 127 for character in value):
                raise ValueError(f"the value of {name} holds a control character")
        return dict(sorted(settings.items()))

    @property
    def key(self) -> str:
        """A stable text that is equal for equal candidates; ``default`` for the empty one."""
        return " ".join(f"{name}={value}" for name, value in self.settings.items()) or "default"

    @property
    def is_default(self) -> bool:
        """Whether nothing is set."""
        return not self.settings

    def __hash__(self) -> int:
        return hash(self.key)

    def __str__(self) -> str:
        return self.key


DEFAULT = Candidate()


class Dimension(Record):
    """One knob of a space.

    Attributes:
        name: The environment variable.
        values: What may be tried; ``None`` leaves the variable unset.
    """

    name: str
    values: tuple[str | None, ...]


class Space(Record):
    """What may be tried: the product of the dimensions, less what legality refuses.

    Attributes:
        name: Name of the space file.
        dimensions: The knobs that are searched.
        removed: Knob (or ``KNOB=value``) to the reason why it is not searched here.
        start: Candidates worth trying first.
        backend: The process-group backend that the space is for.
        conditions: Rules between knobs that the space file adds, as plain data; read by ``space/conditions.py``.
    """

    name: str
    dimensions: tuple[Dimension, ...]
    removed: dict[str, str] = {}
    start: tuple[Candidate, ...] = ()
    backend: Backend = "nccl"
    conditions: tuple[dict[str, JsonValue], ...] = ()
