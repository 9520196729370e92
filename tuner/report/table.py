"""A table as data: made once, shown on the page and as text, so that both hold the same numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ..quantities import format_percent, format_seconds, format_share, format_us
from ..records import Candidate

NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class Cell:
    """One entry.

    Attributes:
        text: What is read.
        key: What is sorted by: the number itself where there is one; ``None`` comes last in either order.
        parts: The same text in parts that must not be broken, for settings.
    """

    text: str
    key: float | str | None = None
    parts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Column:
    """A heading, and whether numbers stand below it."""

    name: str
    kind: Literal["text", "number"] = "text"


@dataclass(frozen=True, kw_only=True)
class Table:
    """Columns and rows.

    Attributes:
        caption: What the table shows, in a few words.
        sortable: Whether the page lets its reader sort it.
    """

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    sortable: bool = False

    def without_empty(self, *names: str) -> Table:
        """Leave out those of the named columns in which no row has anything."""
        kept = [
            index
            for index, column in enumerate(self.columns)
            if column.name not in names or any(row[index].text for row in self.rows)
        ]
        return Table(
            caption=self.caption,
            columns=tuple(self.columns[index] for index in kept),
            rows=tuple(tuple(row[index] for index in kept) for row in self.rows),
            sortable=self.sortable,
        )


def text(value: str) -> Cell:
    """A word or a sentence."""
    return Cell(value, value or None)


def count(value: int | None, missing: str = NOT_MEASURED) -> Cell:
    """A whole number."""
    return Cell(missing) if value is None else Cell(f"{value:,}", value)


def time(value_us: float | None, missing: str = NOT_MEASURED) -> Cell:
    """A time that is given in microseconds."""
    return Cell(missing) if value_us is None else Cell(format_us(value_us), value_us)


def seconds(value_s: float | None, missing: str = NOT_MEASURED) -> Cell:
    """A duration in seconds; below ten with a digit after the point."""
    if value_s is None:
        return Cell(missing)
    return Cell(f"{value_s:.2g} s" if 0 < value_s < 10 else format_seconds(value_s), value_s)


def gain(value: float | None, missing: str = NOT_MEASURED) -> Cell:
    """A share with its sign."""
    return Cell(missing) if value is None else Cell(format_share(value), value)


def percent(value: float | None, missing: str = NOT_MEASURED) -> Cell:
    """A share without a sign."""
    return Cell(missing) if value is None else Cell(format_percent(value), value)


def number(value: float | None, unit: str = "", missing: str = NOT_MEASURED) -> Cell:
    """A number in three digits with its unit."""
    return Cell(missing) if value is None else Cell(f"{value:.3g} {unit}".rstrip(), value)


def interval(value: tuple[float, float] | None, missing: str = NOT_MEASURED) -> Cell:
    """Two shares with their signs; sorted by the lower."""
    if value is None:
        return Cell(missing)
    return Cell(f"{format_share(value[0])} to {format_share(value[1])}", value[0])


def span(values_us: Sequence[float], missing: str = NOT_MEASURED) -> Cell:
    """From the fastest to the slowest time; sorted by how far apart they are."""
    if not values_us:
        return Cell(missing)
    fastest, slowest = min(values_us), max(values_us)
    return Cell(f"{format_us(fastest)} to {format_us(slowest)}", slowest / fastest - 1)


def settings(value: Candidate | Mapping[str, str]) -> Cell:
    """What is set."""
    pairs = value.settings if isinstance(value, Candidate) else value
    parts = tuple(f"{name}={setting}" for name, setting in pairs.items()) or ("default",)
    return Cell(" ".join(parts), " ".join(parts), parts)
