"""Where the time of a step goes: of the default and of the candidate that the verdict is about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..records import DEFAULT, Candidate, Communication, Measurement
from ..study.ledger import Ledger
from ..study.ranking import best, faulty
from . import table
from .contenders import Contender

_USUAL = (0.8, 1.25)
"""A step that is that much faster or slower under the profiler spends its time otherwise."""

PARTS = (
    ("compute alone", "computation, no communication at the same time"),
    ("overlapped communication", "both at the same time"),
    ("exposed communication", "communication that computation waits for"),
    ("idle", "neither"),
)


@dataclass(frozen=True, kw_only=True)
class Breakdown:
    """A step of one candidate.

    Attributes:
        label: ``default``, ``winner`` or ``best finalist``, ``best of the search``.
        measured: From a profiled window of one of its launches; ``None`` where none was profiled.
    """

    label: str
    candidate: Candidate
    measured: Communication | None

    @property
    def parts_us(self) -> tuple[float, float, float, float] | None:
        """Microseconds of each of ``PARTS``; together the step under the profiler."""
        found = self.measured
        if found is None:
            return None
        alone_us = max(0.0, found.compute_us - found.overlapped_us)
        return alone_us, found.overlapped_us, found.exposed_us, found.idle_us

    @property
    def remark(self) -> str:
        """What a reader must know of these numbers."""
        inflation = self.measured.inflation if self.measured else None
        if inflation is None or _USUAL[0] <= inflation <= _USUAL[1]:
            return ""
        return (
            f"{self.label}: a step took {inflation:.2g} times as long under the profiler as without it, "
            "so that its shares are no more than a hint."
        )


def breakdowns(ledger: Ledger, finalists: Sequence[Contender]) -> tuple[Breakdown, ...]:
    """Return the step of the default, and of the candidate to compare it with, where there is one."""
    shown = [("default", DEFAULT)]
    verdict = ledger.verdict
    if verdict is not None and not verdict.candidate.is_default:
        shown.append(("winner" if verdict.word == "ship" else "best finalist", verdict.candidate))
    elif finalists:
        shown.append(("best finalist", _fastest(finalists)))
    else:
        ranking = [ranked.candidate for ranked in best(ledger.launches, barred=faulty(ledger.launches))]
        shown += [("best of the search", candidate) for candidate in ranking if not candidate.is_default][:1]
    return tuple(
        Breakdown(label=label, candidate=candidate, measured=_profiled(ledger, candidate)) for label, candidate in shown
    )


def breakdown_table(found: Sequence[Breakdown]) -> table.Table:
    """One row a part, one column a candidate."""
    rows = [("step under the profiler", [_us(each, "step_us") for each in found])]
    for index, (name, what) in enumerate(PARTS):
        rows.append((f"{name} ({what})", [_part(each, index) for each in found]))
    rows += [
        ("communication, as a share of the step", [_share(each, "share") for each in found]),
        ("exposed communication, as a share of the step", [_share(each, "exposed_share") for each in found]),
        (
            "GPU idle, as a share of the timed step (not of the profiled one)",
            [_share(each, "idle_share") for each in found],
        ),
        ("of communication: transfer", [_us(each, "transfer_us") for each in found]),
        ("of communication: waiting for a late rank", [_us(each, "waiting_us") for each in found]),
        ("step under the profiler over step without it", [_inflation(each) for each in found]),
    ]
    return table.Table(
        caption="Where the time of a step goes",
        columns=(table.Column(""), *(table.Column(each.label, "number") for each in found)),
        rows=tuple((table.text(name), *cells) for name, cells in rows),
    )


def _fastest(finalists: Sequence[Contender]) -> Candidate:
    known = [each.finalist for each in finalists if each.finalist.gain is not None]
    return max(known, key=lambda finalist: finalist.gain or 0.0, default=finalists[0].finalist).candidate


def _profiled(ledger: Ledger, candidate: Candidate) -> Communication | None:
    return next(
        (
            launch.outcome.communication
            for launch in ledger.launches
            if launch.candidate == candidate
            and isinstance(launch.outcome, Measurement)
            and launch.outcome.communication is not None
        ),
        None,
    )


def _us(breakdown: Breakdown, name: str) -> table.Cell:
    return table.time(getattr(breakdown.measured, name, None))


def _share(breakdown: Breakdown, name: str) -> table.Cell:
    return table.percent(getattr(breakdown.measured, name, None))


def _part(breakdown: Breakdown, index: int) -> table.Cell:
    return table.time(breakdown.parts_us[index] if breakdown.parts_us else None)


def _inflation(breakdown: Breakdown) -> table.Cell:
    return table.number(breakdown.measured.inflation if breakdown.measured else None)
