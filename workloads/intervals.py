"""Arithmetic on sets of time intervals, kept as sorted lists of disjoint ``(begin, end)`` pairs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

Interval: TypeAlias = tuple[float, float]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Merge intervals that overlap or touch.

    Args:
        intervals: In any order; empty and reversed ones are left out.

    Returns:
        Disjoint intervals in ascending order.
    """
    merged: list[Interval] = []
    for begin, end in sorted(pair for pair in intervals if pair[1] > pair[0]):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged


def length(disjoint: Iterable[Interval]) -> float:
    """Add up the lengths of disjoint intervals.

    Args:
        disjoint: What ``union`` returned.

    Returns:
        Their total length.
    """
    return sum(end - begin for begin, end in disjoint)


def clip(intervals: Iterable[Interval], window: Interval) -> list[Interval]:
    """Cut intervals to a window.

    Args:
        intervals: Any.
        window: Begin and end of what is kept.

    Returns:
        The parts inside.
    """
    low, high = window
    return [(max(begin, low), min(end, high)) for begin, end in intervals if begin < high and end > low]


def gaps(disjoint: Iterable[Interval], window: Interval) -> list[float]:
    """Measure what of a window is not covered.

    Args:
        disjoint: What ``union`` returned of intervals that were cut to the window.
        window: Begin and end.

    Returns:
        The length of each uncovered stretch, in order.
    """
    edges = [window[0], *(edge for interval in disjoint for edge in interval), window[1]]
    found = [later - earlier for earlier, later in zip(edges[::2], edges[1::2], strict=True)]
    return [length for length in found if length > 0]
