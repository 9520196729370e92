"""The tables: one row a trial, one row a launch, and nothing invented where nothing was measured."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from nccltune.errors import StorageError
from nccltune.records import (
    Candidate,
    Dimension,
    Disturbance,
    Disturbances,
    Failure,
    Launch,
    Measurement,
    Outcome,
    Space,
)
from nccltune.study.entries import TrialEntry
from nccltune.study.ledger import Ledger
from nccltune.study.table import write_tables

AT = "2026-01-02T03:04:05+00:00"
FAST = Candidate(settings={"A": "ring,tree"})
BUSY = Disturbances(
    seen=(Disturbance(kind="cpu", text="others", share=0.5), Disturbance(kind="gpu-user", text="somebody")),
    cpu_others=0.5,
)


def launch(number: int, trial: int | None, candidate: Candidate, outcome: Outcome) -> Launch:
    return Launch(
        launch_id=f"{number:04d}-search",
        purpose="search" if trial is not None else "drift",
        candidate=candidate,
        trial=trial,
        started_at=AT,
        wall_s=1.23456,
        outcome=outcome,
    )


def measured(*values: float) -> Measurement:
    return Measurement(step_times_us=values, clock="host", warmup_steps=1)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    ledger = Ledger.create(tmp_path / "s", {})
    ledger.append(
        Space(name="toy", dimensions=(Dimension(name="B", values=(None, "1")), Dimension(name="A", values=(None,)))),
        launch(0, 0, Candidate(), measured(10.0)),
        launch(1, 0, Candidate(), measured(12.0)),
        TrialEntry(number=0, candidate=Candidate(), value_us=11.0, state="measured"),
        launch(2, 1, FAST, measured(8.0, 8.0, 9.0).model_copy(update={"disturbances": Disturbances(power_capped=0.9)})),
        TrialEntry(number=1, candidate=FAST, value_us=8.0, state="measured"),
        TrialEntry(number=2, candidate=FAST, state="illegal", constraint=2, reason="A with\na line, and a comma"),
        launch(3, 3, FAST, Failure(name="hang", blame="candidate", message="nobody moved", disturbances=BUSY)),
        TrialEntry(number=3, candidate=FAST, state="infeasible", constraint=1, reason="hang: nobody moved"),
        launch(4, None, Candidate(), measured(10.5)),
    )
    return ledger


def test_trials(ledger: Ledger) -> None:
    path, _ = write_tables(ledger)
    table = pd.read_csv(path, index_col="trial")
    assert path.name == "trials.csv"
    assert list(table.state) == ["measured", "measured", "illegal", "infeasible"]
    assert list(table.launches) == [2, 1, 0, 1]
    assert list(table.columns[-3:]) == ["B", "A", "reason"]
    assert table.B.isna().all()
    assert list(table.A.isna()) == [True, False, False, False]
    assert table.A[1] == "ring,tree"
    assert table.value_us[1] == 8.0
    assert (table.fastest_us[0], table.median_us[0], table.slowest_us[0]) == (10.0, 11.0, 12.0)
    assert table.value_us[2:].isna().all(), "what was not measured is empty, never 0"
    assert table.reason[2] == "A with\na line, and a comma"


def test_launches(ledger: Ledger) -> None:
    _, path = write_tables(ledger)
    table = pd.read_csv(path, index_col="launch_id")
    assert path.name == "launches.csv"
    assert list(table.outcome) == ["measurement"] * 3 + ["hang", "measurement"]
    assert table.steps["0002-search"] == 3
    assert table.median_us["0002-search"] == 8.0
    assert table.blame["0003-search"] == "candidate"
    assert table.message["0003-search"] == "nobody moved"
    assert table.communication_share.isna().all()
    assert table.wall_s["0000-search"] == 1.235
    assert table.disturbances["0003-search"] == "others; somebody"
    assert table.disturbances["0002-search"] == "none seen"
    assert table.disturbances["0000-search"] == "not watched"
    assert table.cpu_others_share["0003-search"] == 0.5
    assert table.power_capped_share["0002-search"] == 0.9
    assert table.cpu_others_share[["0000-search", "0002-search"]].isna().all()


def test_empty_study_gives_empty_tables_with_headings(tmp_path: Path) -> None:
    trials, launches = write_tables(Ledger.create(tmp_path / "s", {}))
    assert pd.read_csv(trials).empty
    assert "median_us" in pd.read_csv(launches).columns


def test_tables_that_cannot_be_written_leave_the_old_ones(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = write_tables(ledger)
    before = path.read_text()

    def full(self: pd.DataFrame, target: Path, **_: object) -> None:
        target.write_text("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pd.DataFrame, "to_csv", full)
    with pytest.raises(StorageError, match=r"cannot write .*trials\.csv: No space left"):
        write_tables(ledger)
    assert path.read_text() == before
    assert [file.name for file in ledger.folder.iterdir() if file.name.startswith(".")] == []
