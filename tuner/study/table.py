"""The study as tables: ``trials.csv``, one row a trial, and ``launches.csv``, one row a launch."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import StorageError
from ..records import Candidate, Launch, Measurement
from .entries import TrialEntry
from .ledger import Ledger

if TYPE_CHECKING:
    import pandas as pd

TRIALS = "trials.csv"
LAUNCHES = "launches.csv"


def trials_table(ledger: Ledger) -> pd.DataFrame:
    """Return one row a trial: number, state, score, launches, the candidate's settings, reason.

    A knob that the candidate leaves alone is empty. Times are microseconds.
    """
    import pandas as pd

    launches = ledger.launches
    knobs = _knobs([trial.candidate for trial in ledger.trials], ledger)
    rows = [_trial_row(trial, launches, knobs) for trial in ledger.trials]
    columns = ["trial", "state", "value_us", "launches", "median_us", "fastest_us", "slowest_us", *knobs, "reason"]
    return pd.DataFrame(rows, columns=columns)


def launches_table(ledger: Ledger) -> pd.DataFrame:
    """Return one row a launch: what for, which settings, what came of it. Units end the names."""
    import pandas as pd

    knobs = _knobs([launch.candidate for launch in ledger.launches], ledger)
    rows = [_launch_row(launch, knobs) for launch in ledger.launches]
    columns = ["launch_id", "purpose", "trial", "round", "attempt", "started_at", "wall_s", "outcome", "blame"]
    columns += ["median_us", "steps", "communication_share", *knobs]
    columns += ["disturbances", "cpu_others_share", "power_capped_share", "message"]
    return pd.DataFrame(rows, columns=columns)


def write_tables(ledger: Ledger) -> tuple[Path, Path]:
    """Write both tables into the study folder, each by rename.

    Returns:
        The paths of the trials' and the launches' table.

    Raises:
        StorageError: A file cannot be written.
    """
    paths = ledger.folder / TRIALS, ledger.folder / LAUNCHES
    for path, table in zip(paths, (trials_table(ledger), launches_table(ledger)), strict=True):
        draft = path.with_name(f".{path.name}.draft")
        try:
            table.to_csv(draft, index=False)
            draft.rename(path)
        except OSError as error:
            draft.unlink(missing_ok=True)
            raise StorageError(f"cannot write {path}: {error.strerror}", "free space or change --out") from error
    return paths


def _knobs(candidates: list[Candidate], ledger: Ledger) -> list[str]:
    searched = [dimension.name for dimension in ledger.space.dimensions] if ledger.space else []
    return list(dict.fromkeys([*searched, *(name for candidate in candidates for name in candidate.settings)]))


def _trial_row(trial: TrialEntry, launches: list[Launch], knobs: list[str]) -> dict[str, Any]:
    mine = [launch for launch in launches if launch.trial == trial.number]
    medians = [launch.outcome.median_us for launch in mine if isinstance(launch.outcome, Measurement)]
    return {
        "trial": trial.number,
        "state": trial.state,
        "value_us": trial.value_us,
        "launches": len(mine),
        "median_us": statistics.median(medians) if medians else None,
        "fastest_us": min(medians, default=None),
        "slowest_us": max(medians, default=None),
        **{knob: trial.candidate.settings.get(knob) for knob in knobs},
        "reason": trial.reason,
    }


def _launch_row(launch: Launch, knobs: list[str]) -> dict[str, Any]:
    row: dict[str, Any] = launch.model_dump(include={"launch_id", "purpose", "trial", "round", "attempt", "started_at"})
    row |= {"wall_s": round(launch.wall_s, 3), **{knob: launch.candidate.settings.get(knob) for knob in knobs}}
    row |= _disturbances(launch)
    outcome = launch.outcome
    if isinstance(outcome, Measurement):
        share = outcome.communication.share if outcome.communication else None
        return row | {
            "outcome": "measurement",
            "median_us": outcome.median_us,
            "steps": len(outcome.step_times_us),
            "communication_share": share,
        }
    return row | {"outcome": outcome.name, "blame": outcome.blame, "message": outcome.message}


def _disturbances(launch: Launch) -> dict[str, Any]:
    found = launch.disturbances
    if found is None:
        return {"disturbances": "not watched"}
    return {
        "disturbances": "; ".join(each.text for each in found.seen) or "none seen",
        "cpu_others_share": found.cpu_others,
        "power_capped_share": found.power_capped,
    }
