"""``nccltune knobs``: what would be searched on this machine and what not, each with its reason; or one knob explained.

The same plan as the main job's, short of the launches; pure but for ``nccltune.plan.prepare``.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from .errors import NccltuneError
from .plan import Options, Plan, prepare
from .space.catalogue import Catalogue, load_catalogue
from .space.describe import KnobRow, KnobsTable, describe_knob, knobs_table, shown

_WIDTH = 100


def table(plan: Plan) -> KnobsTable:
    """The space of a plan, before and after narrowing."""
    return knobs_table(plan.declared, plan.space, plan.count(plan.space))


def table_lines(found: KnobsTable) -> Iterator[str]:
    """The table for a reader."""
    stay = [row for row in found.rows if row.values]
    gone = [row for row in found.rows if not row.values]
    distinct = f"{found.count} distinct candidate{'s' * (found.count.legal != 1)}"
    yield f"space {found.space}: {distinct} out of {found.count.combinations:,} combinations"
    yield f"searched here ({len(stay)}):" if stay else "nothing can be searched here"
    width = max((len(row.name) for row in found.rows), default=0)
    for row in stay:
        yield from _folded(f"  {row.name:<{width}}  ", "  ".join(row.values))
        for reason, values in _by_reason(row).items():
            yield from _folded(f"  {'':<{width}}    not ", f"{', '.join(values)}: {reason}")
    if gone:
        yield f"not searched here ({len(gone)}):"
    for row in gone:
        yield from _folded(f"  {row.name:<{width}}  ", row.reason)


def table_data(found: KnobsTable) -> dict[str, Any]:
    """The table for a program."""
    return {
        "space": found.space,
        "candidates": found.count.legal,
        "exact": found.count.exact,
        "combinations": found.count.combinations,
        "searched": [
            {"name": row.name, "values": [None if value == shown(None) else value for value in row.values],
             "dropped": row.dropped}
            for row in found.rows
            if row.values
        ],
        "removed": {row.name: row.reason for row in found.rows if not row.values},
    }  # fmt: skip


def check(name: str, catalogue: Catalogue | None = None) -> None:
    """Refuse a name that is no knob.

    Raises:
        SpaceError: With the nearest names.
    """
    (catalogue or load_catalogue()).knob(name)


def here(name: str, options: Options, environ: Mapping[str, str]) -> str | None:
    """Say what becomes of one knob on this machine; ``None`` where nothing can be planned here."""
    try:
        found = table(prepare(options, environ))
    except NccltuneError:
        return None
    row = next((row for row in found.rows if row.name == name), None)
    if row is None:
        return f"not in the space {found.space}"
    return f"searched over {', '.join(row.values)}" if row.values else f"not searched: {row.reason}"


def knob_lines(name: str, place: str | None, catalogue: Catalogue | None = None) -> tuple[str, ...]:
    """One knob for a reader.

    Args:
        name: Of the knob.
        place: What becomes of it here.
        catalogue: This installation's by default.

    Raises:
        SpaceError: There is no such knob; the message has the nearest ones.
    """
    lines = describe_knob(name, catalogue or load_catalogue())
    return (*lines, *((f"  {'here':<14}{place}",) if place else ()))


def knob_data(name: str, place: str | None, catalogue: Catalogue | None = None) -> dict[str, Any]:
    """One knob for a program; see ``knob_lines``."""
    return {**(catalogue or load_catalogue()).knob(name).model_dump(mode="json"), "here": place}


def _by_reason(row: KnobRow) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for value, reason in row.dropped.items():
        found.setdefault(reason, []).append(value)
    return found


def _folded(first: str, text: str) -> list[str]:
    """Lines of at most ``_WIDTH`` characters where the words allow it, the later ones below the text of the first."""
    return textwrap.wrap(
        text, _WIDTH, initial_indent=first, subsequent_indent=" " * len(first), break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip
