"""Rules between knobs, from a closed set of predicates: data, never code."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from math import prod
from typing import Annotated, Literal, TypeAlias, assert_never

from pydantic import Field, JsonValue, TypeAdapter, field_validator

from ..records import Record, Space

Settings: TypeAlias = Mapping[str, str]
Several: TypeAlias = Annotated[tuple[str, ...], Field(min_length=2)]

_INTEGER = re.compile(r"\s*([+-]?)(0[xX][0-9a-fA-F]+|[0-9]+)", re.ASCII)
_LONG = 2**63


def c_integer(text: str) -> int:
    """Read a number as NCCL does: ``strtoll(text, NULL, 0)``, ``src/misc/param.cc`` ``ncclLoadParam``.

    The base is guessed, what follows the digits is dropped, a word is 0, an overflow is cut.
    """
    match = _INTEGER.match(text[:80])
    if match is None:
        return 0
    sign, digits = match.groups()
    if digits[:2] in ("0x", "0X"):
        number = int(digits, 16)
    elif digits.startswith("0"):
        number = int(re.split(r"[89]", digits)[0] or "0", 8)
    else:
        number = int(digits)
    return max(-_LONG, min(_LONG - 1, -number if sign == "-" else number))


class _Condition(Record):
    """What all predicates share.

    Attributes:
        reason: Why the rule exists, in words; shown to the user behind the general message.
    """

    reason: str = ""


class Needs(_Condition):
    """``knob`` has no effect unless ``other`` is set too."""

    predicate: Literal["needs"]
    knob: str
    other: str


class Together(_Condition):
    """All of the knobs are set, or none of them."""

    predicate: Literal["together"]
    knobs: Several


class NotTogether(_Condition):
    """At most one of the knobs is set: two names for one thing, for instance."""

    predicate: Literal["not_together"]
    knobs: Several


class ProductAtMost(_Condition):
    """The product of those knobs that are set is limited."""

    predicate: Literal["product_at_most"]
    knobs: Several
    limit: Annotated[int, Field(ge=1)]


class Ordered(_Condition):
    """The knobs that are set rise, or stay equal, from first to last."""

    predicate: Literal["ordered"]
    knobs: Several


class Divides(_Condition):
    """``knob`` divides each of the others that is set."""

    predicate: Literal["divides"]
    knob: str
    others: Annotated[tuple[str, ...], Field(min_length=1)]


class Implies(_Condition):
    """Where all of ``when`` hold, all of ``then`` must; each lists the values allowed, null for unset."""

    predicate: Literal["implies"]
    when: Annotated[dict[str, tuple[str | None, ...]], Field(min_length=1)]
    then: Annotated[dict[str, tuple[str | None, ...]], Field(min_length=1)]

    @field_validator("when", "then", mode="before")
    @classmethod
    def _numbers_as_text(cls, raw: object) -> object:
        if not isinstance(raw, Mapping):
            return raw
        return {name: _allowed(values) for name, values in raw.items()}


Condition: TypeAlias = Annotated[
    Needs | Together | NotTogether | ProductAtMost | Ordered | Divides | Implies, Field(discriminator="predicate")
]
_CONDITIONS: TypeAdapter[tuple[Condition, ...]] = TypeAdapter(tuple[Condition, ...])


def names_of(condition: Condition) -> tuple[str, ...]:
    """Every knob that the rule looks at."""
    match condition:
        case Needs():
            return (condition.knob, condition.other)
        case Divides():
            return (condition.knob, *condition.others)
        case Implies():
            return (*condition.when, *condition.then)
        case _:
            return condition.knobs


def why_broken(condition: Condition, settings: Settings) -> str | None:
    """Say why the settings break the rule, with the rule's own reason; ``None`` when they keep it."""
    found = _broken(condition, settings)
    return f"{found} ({condition.reason})" if found and condition.reason else found


def conditions_of(space: Space) -> tuple[Condition, ...]:
    """Read the rules that a space carries as plain data.

    Raises:
        pydantic.ValidationError: If they are none, which a loaded space cannot hold.
    """
    return _CONDITIONS.validate_python(space.conditions)


def as_data(conditions: tuple[Condition, ...]) -> tuple[dict[str, JsonValue], ...]:
    """The rules as plain data, for ``Space.conditions``."""
    return tuple(condition.model_dump(mode="json") for condition in conditions)


def _broken(condition: Condition, settings: Settings) -> str | None:
    match condition:
        case Needs():
            lonely = condition.knob in settings and condition.other not in settings
            return f"{condition.knob} has no effect without {condition.other}" if lonely else None
        case Together():
            lonely = 0 < len(_present(condition.knobs, settings)) < len(condition.knobs)
            return f"{' and '.join(condition.knobs)} are set together or not at all" if lonely else None
        case NotTogether():
            present = _present(condition.knobs, settings)
            return f"{' and '.join(present)} exclude each other" if len(present) > 1 else None
        case ProductAtMost():
            return _product(condition, settings)
        case Ordered():
            return _order(condition, settings)
        case Divides():
            return _division(condition, settings)
        case Implies():
            return _implication(condition, settings)
        case _:
            assert_never(condition)


def _present(names: tuple[str, ...], settings: Settings) -> list[str]:
    return [name for name in names if name in settings]


def _product(condition: ProductAtMost, settings: Settings) -> str | None:
    present = _present(condition.knobs, settings)
    product = prod(c_integer(settings[name]) for name in present)
    return f"{' x '.join(present)} is {product}, more than {condition.limit}" if product > condition.limit else None


def _order(condition: Ordered, settings: Settings) -> str | None:
    for low, high in pairwise(_present(condition.knobs, settings)):
        if c_integer(settings[low]) > c_integer(settings[high]):
            return f"{low}={settings[low]} is more than {high}={settings[high]}"
    return None


def _division(condition: Divides, settings: Settings) -> str | None:
    divisor = c_integer(settings.get(condition.knob, "0"))
    for name in _present(condition.others, settings) if divisor > 0 else []:
        if c_integer(settings[name]) % divisor:
            return f"{condition.knob}={divisor} does not divide {name}={settings[name]}"
    return None


def _implication(condition: Implies, settings: Settings) -> str | None:
    if any(settings.get(name) not in values for name, values in condition.when.items()):
        return None
    for name, values in condition.then.items():
        if settings.get(name) not in values:
            cause = " and ".join(_shown(key, settings.get(key)) for key in condition.when)
            wanted = " or ".join("unset" if value is None else value for value in values)
            return f"with {cause}, {name} must be {wanted}"
    return None


def _shown(name: str, value: str | None) -> str:
    return f"{name} unset" if value is None else f"{name}={value}"


def _allowed(values: object) -> object:
    return tuple(map(_text, values)) if isinstance(values, list | tuple) else (_text(values),)


def _text(value: object) -> object:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value
