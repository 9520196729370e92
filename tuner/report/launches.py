"""What the launches said of themselves, and what they cost."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence

from ..records import Failure, Launch, Measurement
from ..study import disturbed
from ..study.ledger import Ledger
from . import table

_PARTS = {
    "start": "start of torchrun and its workers",
    "import": "import of torch",
    "group": "process group and first collective",
    "build": "model or buffers",
    "warmup": "untimed steps",
    "timed": "timed steps",
    "profiled": "profiled steps",
    "check": "known-answer sums",
    "end": "end of all processes",
}


def warnings_table(ledger: Ledger) -> table.Table:
    """One row for each warning, failure or disturbance of a launch."""
    rows = []
    for launch in ledger.launches:
        for what in (*_warnings(launch), *_disturbances(launch)):
            rows.append(
                (
                    table.text(launch.launch_id),
                    table.text(_moment(launch.started_at)),
                    table.settings(launch.candidate),
                    table.text(what),
                )
            )
    return table.Table(
        caption="Warnings, failures and disturbances, launch by launch",
        columns=(table.Column("Launch"), table.Column("Started (UTC)"), table.Column("Settings"), table.Column("What")),
        rows=tuple(rows),
    )


def launch_lines(ledger: Ledger) -> tuple[str, ...]:
    """What the launches say together: failures, and who else used the machine."""
    launches = ledger.launches
    failed = sum(isinstance(launch.outcome, Failure) for launch in launches)
    found = disturbed.count(launches)
    if not found.watched:
        shared = "Whether anybody else used the machine was not watched."
    elif found.sentence:
        shared = f"Disturbed: {found.sentence}."
    else:
        shared = f"Nothing disturbed the {found.watched} launches that were watched."
    unknown = dict.fromkeys(what for each in launches if each.disturbances for what in each.disturbances.unknown)
    return (
        f"{len(launches)} launches, {failed} failed.",
        shared,
        *(f"Could not be watched: {what}." for what in unknown),
    )


def purposes_table(ledger: Ledger) -> table.Table:
    """What the launches were made for, and their time."""
    found: dict[str, list[Launch]] = defaultdict(list)
    for launch in ledger.launches:
        found[launch.purpose].append(launch)
    rows = [
        (
            table.text(purpose),
            table.count(len(launches)),
            table.seconds(statistics.median(launch.wall_s for launch in launches)),
            table.seconds(sum(launch.wall_s for launch in launches)),
        )
        for purpose, launches in found.items()
    ]
    return table.Table(
        caption="Launches by purpose",
        columns=(
            table.Column("Purpose"),
            table.Column("Launches", "number"),
            table.Column("One launch (median)", "number"),
            table.Column("Together", "number"),
        ),
        rows=tuple(rows),
    )


def parts_table(ledger: Ledger) -> table.Table:
    """Median seconds of each part of a launch."""
    measured = [launch.outcome for launch in ledger.launches if isinstance(launch.outcome, Measurement)]
    times: dict[str, list[float]] = defaultdict(list)
    for name in [*_PARTS, *(name for outcome in measured for name in outcome.parts_s)]:
        times.setdefault(name, [])
    for outcome in measured:
        for name, part_s in outcome.parts_s.items():
            times[name].append(part_s)
    rows = [_part(name, found, len(measured)) for name, found in times.items() if found]
    return table.Table(
        caption="Cost of one launch, by part",
        columns=(table.Column("Part"), table.Column("Median", "number"), table.Column("Launches", "number")),
        rows=tuple(rows),
    )


def _part(name: str, found: Sequence[float], launches: int) -> tuple[table.Cell, ...]:
    what = f"{name} ({_PARTS[name]})" if name in _PARTS else name
    count = table.Cell(f"{len(found)} of {launches}", len(found))
    return table.text(what), table.seconds(statistics.median(found)), count


def _disturbances(launch: Launch) -> list[str]:
    return [f"disturbed: {each.text}" for each in disturbed.seen(launch)]


def _moment(at: str) -> str:
    """``2026-11-30 15:18:06`` of an ISO 8601 time in UTC."""
    return at[:19].replace("T", " ")


def _warnings(launch: Launch) -> list[str]:
    outcome = launch.outcome
    if isinstance(outcome, Failure):
        advice = f"; {outcome.advice}" if outcome.advice else ""
        return [f"{outcome.name} ({outcome.blame}): {outcome.message}{advice}"]
    if launch.purpose == "evidence":
        return []  # a short launch that is timed for nobody
    return list(outcome.warnings) or ([] if outcome.flat else ["the step time was not flat when timing began"])
