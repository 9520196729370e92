"""Every trial of the search, and its course."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ..records import DEFAULT, Failure, Launch, Measurement
from ..study.entries import TrialEntry, TrialState
from ..study.ledger import Ledger
from . import table

_STATES: dict[TrialState, str] = {
    "measured": "measured",
    "repeat": "measured again",
    "infeasible": "failed",
    "invalid": "did not take effect",
    "illegal": "refused, not launched",
    "known": "known, not launched",
    "lost": "lost to the machine",
}
_BANDWIDTH = "bus_bandwidth_gbytes_per_s"
_LEAST_STEPS = 20  # fewer have no 5 % and 95 % to speak of


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One trial with all that was measured in it; times in microseconds, shares of 1.

    Attributes:
        medians_us: The median step of each of its launches.
        steps_us: From the 5 % to the 95 % point of all steps of its launches; ``None`` where they are too few.
        gain: Against the default of the noise floor.
        failure: Of its last launch that failed.
    """

    entry: TrialEntry
    launches: int
    medians_us: tuple[float, ...]
    steps_us: tuple[float, float] | None
    gain: float | None
    bandwidth_gbytes_per_s: float | None
    communication_share: float | None
    failure: Failure | None

    @property
    def failed(self) -> bool:
        """Whether it was launched and gave no number."""
        return self.entry.state in ("infeasible", "invalid", "lost")


@dataclass(frozen=True, kw_only=True)
class Course:
    """The search over its trials, in order.

    Attributes:
        trials: All of them.
        default_us: Median step of the default's launches in the noise floor.
        noise: Relative noise floor.
    """

    trials: tuple[Trial, ...]
    default_us: float | None
    noise: float | None

    @property
    def best_us(self) -> tuple[float | None, ...]:
        """The best step time up to each trial; ``None`` before the first that was measured."""
        values = (trial.entry.value_us for trial in self.trials)
        return tuple(itertools.accumulate(values, _lower))


def course(ledger: Ledger) -> Course:
    """Return the trials of a study."""
    default_us = default_step_us(ledger)
    return Course(
        trials=tuple(_trial(entry, ledger.launches, default_us) for entry in ledger.trials),
        default_us=default_us,
        noise=ledger.noise.relative if ledger.noise else None,
    )


def default_step_us(ledger: Ledger) -> float | None:
    """Median step of the default's launches in the noise floor, which every trial is compared with."""
    return statistics.median(ledger.noise.medians) if ledger.noise else None


def trials_table(found: Course) -> table.Table:
    """One row a trial."""
    return table.Table(
        caption="Every trial",
        columns=(
            table.Column("Trial", "number"),
            table.Column("Settings that differ from the default"),
            table.Column("State"),
            table.Column("Step", "number"),
            table.Column("Launches, fastest to slowest", "number"),
            table.Column("Steps, 5 % to 95 %", "number"),
            table.Column("Gain", "number"),
            table.Column("Bus bandwidth", "number"),
            table.Column("Communication", "number"),
            table.Column("Launches", "number"),
            table.Column("Failure"),
            table.Column("What to do"),
        ),
        rows=tuple(_row(trial) for trial in found.trials),
        sortable=True,
    ).without_empty("Launches, fastest to slowest", "Bus bandwidth", "Failure", "What to do")


def _row(trial: Trial) -> tuple[table.Cell, ...]:
    several = trial.medians_us if len(trial.medians_us) > 1 else ()
    why = trial.failure.message if trial.failure and trial.failed else ""
    reason = f"{trial.failure.name} ({trial.failure.blame}): {why}" if trial.failure and why else trial.entry.reason
    return (
        table.count(trial.entry.number),
        table.settings(trial.entry.candidate),
        table.text(_STATES[trial.entry.state]),
        table.time(trial.entry.value_us),
        table.span(several, missing="one launch" if trial.medians_us else ""),
        table.span(trial.steps_us or (), missing=""),
        table.gain(None if trial.entry.candidate == DEFAULT else trial.gain, missing=""),
        table.number(trial.bandwidth_gbytes_per_s, "GB/s", missing=""),
        table.percent(trial.communication_share),
        table.count(trial.launches),
        table.text(reason),
        table.text(trial.failure.advice if trial.failure and trial.failed else ""),
    )


def _trial(entry: TrialEntry, launches: Sequence[Launch], default_us: float | None) -> Trial:
    mine = [launch.outcome for launch in launches if launch.trial == entry.number]
    measured = [outcome for outcome in mine if isinstance(outcome, Measurement)]
    shares = [outcome.communication.share for outcome in measured if outcome.communication]
    bandwidths = [outcome.metrics[_BANDWIDTH] for outcome in measured if _BANDWIDTH in outcome.metrics]
    failures = [outcome for outcome in mine if isinstance(outcome, Failure)]
    return Trial(
        entry=entry,
        launches=len(mine),
        medians_us=tuple(outcome.median_us for outcome in measured),
        steps_us=_middle([time for outcome in measured for time in outcome.step_times_us]),
        gain=default_us / entry.value_us - 1 if default_us and entry.value_us else None,
        bandwidth_gbytes_per_s=statistics.median(bandwidths) if bandwidths else None,
        communication_share=statistics.median(shares) if shares else None,
        failure=failures[-1] if failures else None,
    )


def _middle(times_us: Sequence[float]) -> tuple[float, float] | None:
    if len(times_us) < _LEAST_STEPS:
        return None
    points = statistics.quantiles(times_us, n=20, method="inclusive")
    return points[0], points[-1]


def _lower(one: float | None, other: float | None) -> float | None:
    known = [value for value in (one, other) if value is not None]
    return min(known, default=None)
