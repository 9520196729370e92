"""The table of what can go wrong with a launch: ``failures.yaml``, read and held against lines of a log."""

from __future__ import annotations

import re
from functools import cache, cached_property
from importlib import resources
from typing import Literal

import yaml
from pydantic import Field, JsonValue, ValidationError, field_validator

from ..errors import StorageError
from ..records import Blame, Record, first_problem

# Details that are counts; all others stay text (a bus id such as 41000 is no number).
_NUMBERS = frozenset(
    {"bytes", "clients", "cuda_error", "family", "joined", "pid", "port", "rank", "other_rank", "status"}
    | {"stuck_s", "timeout_ms", "wrong_values"}
)
# A line that is longer than this is cut before a regular expression sees it: no message of NCCL or torch is longer.
_LONGEST_LINE = 4000


class Pattern(Record):
    """One form of a message.

    Attributes:
        find: A literal that the line must hold; tested before ``match``.
        match: Regular expression for the line; named groups become details.
        sample: A line of this form.
    """

    find: str = Field(min_length=4)
    match: str
    sample: str

    @field_validator("match")
    @classmethod
    def _compiles(cls, match: str) -> str:
        try:
            re.compile(match)
        except re.error as error:
            raise ValueError(f"no regular expression: {error}") from None
        return match

    @cached_property
    def regex(self) -> re.Pattern[str]:
        """``match``, compiled."""
        return re.compile(self.match)


class Variant(Record):
    """What a pattern of a hang changes in its class; ``None`` leaves it as it is."""

    blame: Blame | None = None
    retry: bool | None = None
    stop: bool | None = None
    message: str | None = None
    advice: str | None = None


class FailureClass(Record):
    """One class of failures.

    Attributes:
        name: As it stands in ``records.Failure.name``.
        retry: Whether the same settings are worth another try.
        stop: Whether every candidate would fail, so that the study must stop.
        symptom: Whether a launch that was killed shows this as well.
        settings: Knobs that are blamed when the log shows that one of them was set.
        signals: Numbers of the signals that mean this class when nothing else explains the end.
        variants: By pattern of the hang: what differs from the class.
    """

    name: str
    blame: Blame
    message: str
    advice: str
    retry: bool = False
    stop: bool = False
    symptom: bool = False
    settings: tuple[str, ...] = ()
    signals: tuple[int, ...] = ()
    patterns: tuple[Pattern, ...] = ()
    variants: dict[Literal["same_seq", "different_seq", "silent_after_init"], Variant] = {}

    def variant(self, pattern: str | None) -> FailureClass:
        """The class as it is under one pattern of a hang."""
        change = {key: variant for key, variant in self.variants.items() if key == pattern}
        fields = change[pattern].model_dump(exclude_none=True) if change else {}  # type: ignore[index]
        return self.model_copy(update=fields)


class Hit(Record):
    """A line that a pattern was found in."""

    name: str
    line: str
    details: dict[str, JsonValue]


class FailureTable(Record):
    """All classes, causes before their consequences."""

    schema_version: Literal[1]
    classes: tuple[FailureClass, ...]

    @cached_property
    def by_name(self) -> dict[str, FailureClass]:
        """Name to class."""
        return {entry.name: entry for entry in self.classes}

    @cached_property
    def order(self) -> dict[str, int]:
        """Name to place: the lower, the more of a cause."""
        return {entry.name: place for place, entry in enumerate(self.classes)}

    @cached_property
    def literals(self) -> tuple[str, ...]:
        """Every ``find`` of the table, each once."""
        return tuple(dict.fromkeys(pattern.find for entry in self.classes for pattern in entry.patterns))

    @cached_property
    def suspicious(self) -> re.Pattern[str]:
        """Matches every line that any pattern could match."""
        return re.compile("|".join(re.escape(literal) for literal in self.literals))

    def hit(self, line: str) -> Hit | None:
        """Say what a line of a log tells of a failure.

        Args:
            line: One line, without its end.

        Returns:
            The first class of the table whose pattern matches, with what its named groups hold; ``None`` for a line
            that tells nothing.
        """
        line = line[:_LONGEST_LINE]
        if not self.suspicious.search(line):
            return None
        for entry in self.classes:
            for pattern in entry.patterns:
                if pattern.find in line and (found := pattern.regex.search(line)):
                    return Hit(name=entry.name, line=line.strip(), details=_details(found.groupdict()))
        return None


def _details(groups: dict[str, str | None]) -> dict[str, JsonValue]:
    return {
        key: int(text) if key in _NUMBERS and text.isdecimal() else text
        for key, text in groups.items()
        if text is not None
    }


@cache
def load_failures() -> FailureTable:
    """Read ``failures.yaml``.

    Raises:
        StorageError: When the file cannot be read or a field of it is wrong.
    """
    source = resources.files(__package__).joinpath("failures.yaml")
    try:
        return FailureTable.model_validate(yaml.safe_load(source.read_text(encoding="utf-8")))
    except ValidationError as error:
        raise StorageError(f"failures.yaml is wrong at {first_problem(error)}", "Reinstall nccltune") from None
    except (OSError, yaml.YAMLError) as error:
        raise StorageError(f"failures.yaml cannot be read: {error}", "Reinstall nccltune") from None
