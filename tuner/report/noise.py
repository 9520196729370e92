"""The noise floor, and what it lets anybody show."""

from __future__ import annotations

import statistics

from ..quantities import format_percent
from ..records import Reach
from ..study.entries import NoiseFloor
from ..study.ledger import Ledger
from ..verdict.reach import foresee, warning
from ..verdict.sequence import Rule
from . import table

_MIN_GAIN, _ROUNDS = 0.01, 20  # what is asked for on GPUs, where the user names nothing else


def noise_lines(ledger: Ledger) -> tuple[str, ...]:
    """The noise floor and what rounds at this noise can show, in sentences."""
    floor = ledger.noise
    if floor is None:
        return ("The noise floor was not measured.",)
    reach = floor.reach or _reach(ledger, floor)
    said = (
        f"{floor.n} launches of the default differ among themselves by {format_percent(floor.relative)} "
        "(standard deviation): settings that differ by less than a few times that cannot be told apart by one launch",
        *reach.sentences,
        warning(reach),
    )
    return tuple(f"{sentence[0].upper()}{sentence[1:]}." for sentence in said if sentence)


def noise_table(ledger: Ledger) -> table.Table:
    """The default's launches."""
    medians = ledger.noise.medians if ledger.noise else ()
    return table.Table(
        caption="The default's launches",
        columns=(table.Column("Launch", "number"), table.Column("Step", "number")),
        rows=tuple((table.count(number), table.time(median_us)) for number, median_us in enumerate(medians, start=1)),
    )


def _reach(ledger: Ledger, floor: NoiseFloor) -> Reach:
    """For a ledger of the first release, which did not look ahead."""
    rule = Rule(min_gain=ledger.verdict.min_gain if ledger.verdict else _MIN_GAIN, rounds=_ROUNDS)
    return foresee(floor, rule, statistics.median(launch.wall_s for launch in ledger.launches))
