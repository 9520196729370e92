"""How many candidates a space holds, and which."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from itertools import islice, product
from math import prod

from ..records import Candidate, Dimension, Space


@dataclass(frozen=True)
class Count:
    """How many distinct legal candidates a space holds.

    Attributes:
        legal: Their number, the default among them where the space holds it; a lower bound unless ``exact``.
        combinations: All combinations of values, legal or not.
        exact: Whether all combinations were looked at.
    """

    legal: int
    combinations: int
    exact: bool = True

    def __str__(self) -> str:
        return f"{self.legal:,}" if self.exact else f"more than {self.legal:,}"


def candidates(space: Space, is_legal: Callable[[Candidate], bool]) -> Iterator[Candidate]:
    """Every distinct legal candidate, in the order of the dimensions, the last one varying fastest."""
    return filter(is_legal, _combinations(space.dimensions))


def distinct(
    space: Space,
    is_legal: Callable[[Candidate], bool],
    limit: int = 1_000_000,
    groups: Collection[frozenset[str]] = (),
) -> Count:
    """Count the distinct legal candidates.

    Args:
        space: Each dimension lists a value once, so that combinations are distinct.
        is_legal: The rules.
        limit: Look at no more than this many combinations.
        groups: Parts of the knobs between which no rule exists (``legality.coupled``); the counts of the
            parts are then multiplied, which is exact and much cheaper. All knobs in one part by default.
    """
    names = [dimension.name for dimension in space.dimensions]
    parts = [[d for d in space.dimensions if d.name in group] for group in groups or [frozenset(names)]]
    legal, exact = 1, True
    for part in parts:
        looked_at = islice(_combinations(tuple(part)), limit)
        legal *= sum(map(is_legal, looked_at))
        exact = exact and prod(len(dimension.values) for dimension in part) <= limit
    return Count(legal, prod(len(dimension.values) for dimension in space.dimensions), exact)


def _combinations(dimensions: tuple[Dimension, ...]) -> Iterator[Candidate]:
    names = [dimension.name for dimension in dimensions]
    for values in product(*(dimension.values for dimension in dimensions)):
        settings = {name: value for name, value in zip(names, values, strict=True) if value is not None}
        yield Candidate(settings=settings)
