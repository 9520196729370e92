"""The noise floor, and the smallest gain that it lets anybody show."""

from __future__ import annotations

import math

from ..quantities import format_percent
from ..study.entries import NoiseFloor
from ..study.ledger import Ledger
from ..verdict.bounds import half_width
from . import table

_ROUNDS = (4, 6, 10, 20)
_ERROR = 0.025
"""Of a 95 % interval, on each side."""


def noise_sentence(ledger: Ledger) -> str:
    """The noise floor in one sentence."""
    floor = ledger.noise
    if floor is None:
        return "The noise floor was not measured."
    return (
        f"{floor.n} launches of the default differ among themselves by {format_percent(floor.relative)} "
        "(standard deviation): settings that differ by less than a few times that cannot be told apart by one launch."
    )


def noise_table(ledger: Ledger) -> table.Table:
    """The default's launches, and what rounds at this noise can show."""
    floor = ledger.noise
    rows: list[tuple[table.Cell, ...]] = []
    if floor is not None:
        for number, median_us in enumerate(floor.medians, start=1):
            rows.append((table.text(f"launch {number} of the default"), table.time(median_us)))
        rows.append((table.text("noise floor"), table.percent(floor.relative)))
        rows += [(table.text(f"smallest gain that {rounds} rounds show"), _shown(floor, rounds)) for rounds in _ROUNDS]
    return table.Table(
        caption="Noise floor and what it can show",
        columns=(table.Column(""), table.Column("", "number")),
        rows=tuple(rows),
    )


def _shown(floor: NoiseFloor, rounds: int) -> table.Cell:
    """Half the width of the 95 % interval that is to be expected, where rounds are no noisier than launches."""
    width = half_width(math.sqrt(2) * floor.relative, rounds, _ERROR)
    return table.gain(math.expm1(width))
