"""The whole report as data: sections in the order in which they are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from .. import __version__
from ..quantities import format_share, format_us
from ..study import host_bound
from ..study.ledger import Ledger
from . import breakdown, conditions, contenders, launches, noise, trials
from .source import Source
from .summary import Summary, summarise
from .table import Table

_ABOUT_TIME = (
    "From a few profiled steps of one launch, apart from the launches that decide. Of a collective alone only the "
    "default is profiled: it is all communication."
)


@dataclass(frozen=True, kw_only=True)
class Section:
    """A heading and what stands below it.

    Attributes:
        name: Unique within the page; the figure of the same name belongs to it.
        lines: Sentences.
        tables: Empty ones are left out.
    """

    name: str
    title: str
    lines: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Report:
    """All that is shown of a study.

    Attributes:
        written: UTC, ISO 8601.
        commands: What to do, and the command that does it.
        finalists: For the figure of the rounds.
        course: For the figure of the search.
        steps: For the figure of where the time goes.
    """

    written: str
    version: str
    summary: Summary
    sections: tuple[Section, ...]
    commands: tuple[tuple[str, str], ...]
    finalists: tuple[contenders.Contender, ...]
    min_gain: float | None
    course: trials.Course
    steps: tuple[breakdown.Breakdown, ...]


def gather(source: Source, now: datetime | None = None) -> Report:
    """Read everything that a report shows out of a study.

    Args:
        source: From ``source.find``.
        now: When the report is written.
    """
    ledger = source.ledger
    finalists = contenders.contenders(ledger)
    course = trials.course(ledger)
    steps = breakdown.breakdowns(ledger, finalists)
    return Report(
        written=(now or datetime.now(UTC)).isoformat(timespec="seconds"),
        version=__version__,
        summary=summarise(source),
        sections=_sections(source, finalists, course, steps),
        commands=conditions.commands(source),
        finalists=finalists,
        min_gain=ledger.verdict.min_gain if ledger.verdict else None,
        course=course,
        steps=steps,
    )


def _sections(
    source: Source,
    finalists: tuple[contenders.Contender, ...],
    course: trials.Course,
    steps: tuple[breakdown.Breakdown, ...],
) -> tuple[Section, ...]:
    ledger = source.ledger
    return (
        Section(
            name="rounds",
            title="Default against finalists",
            lines=_about_rounds(finalists),
            tables=_filled(contenders.contenders_table(finalists)),
        ),
        Section(
            name="course",
            title="The course of the search",
            lines=_about_course(course),
            tables=_filled(trials.trials_table(course)),
        ),
        Section(
            name="time",
            title="Where the time goes",
            lines=(_ABOUT_TIME, *_host_bound(ledger), *(each.remark for each in steps if each.remark)),
            tables=_filled(breakdown.breakdown_table(steps)),
        ),
        Section(
            name="noise",
            title="Noise floor",
            lines=noise.noise_lines(ledger),
            tables=_filled(noise.noise_table(ledger)),
        ),
        Section(
            name="launches",
            title="Warnings and cost of the launches",
            lines=launches.launch_lines(ledger),
            tables=_filled(
                launches.warnings_table(ledger), launches.parts_table(ledger), launches.purposes_table(ledger)
            ),
        ),
        Section(
            name="conditions",
            title="Conditions",
            tables=_filled(
                conditions.conditions_table(source), conditions.removed_table(ledger), conditions.notes_table(ledger)
            ),
        ),
    )


def _filled(*tables: Table) -> tuple[Table, ...]:
    return tuple(table for table in tables if table.rows)


def _host_bound(ledger: Ledger) -> tuple[str, ...]:
    said = host_bound.what(host_bound.idle_share(ledger.launches), ledger.batch)
    return (f"{said[0].upper()}{said[1:]}.",) if said else ()


def _about_rounds(finalists: Sequence[contenders.Contender]) -> tuple[str, ...]:
    if not finalists:
        return ("No candidate was held against the default in fresh rounds.",)
    return (
        "In each round the default and the finalists are launched anew, next to each other, in the opposite order the "
        "next time. A gain is one of speed: +10 % makes 1.1 steps in the time of one.",
    )


def _about_course(course: trials.Course) -> tuple[str, ...]:
    measured = [trial for trial in course.trials if trial.entry.value_us is not None]
    if not measured:
        return ("No trial has been measured.",)
    best = min(measured, key=lambda trial: trial.entry.value_us or 0.0)
    failed = sum(trial.failed for trial in course.trials)
    gain = f", {format_share(best.gain)} against the default" if best.gain is not None else ""
    gain = ", the default itself" if best.entry.candidate.is_default else gain
    return (
        f"{len(course.trials)} trials, {len(measured)} of them with a step time, {failed} failed. The fastest is trial "
        f"{best.entry.number} with {format_us(best.entry.value_us or 0.0)} a step{gain}; the best of many trials looks "
        "better than it is, which is why fresh rounds decide.",
    )
