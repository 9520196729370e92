"""The ledger: what was written is there, whatever happens to the writer, the disk or the last line."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nccltune.errors import LedgerError, StorageError
from nccltune.records import (
    Candidate,
    Dimension,
    Disturbance,
    Disturbances,
    Failure,
    Launch,
    Measurement,
    Reach,
    Record,
    Request,
    ResultFile,
    Space,
    Verdict,
)
from nccltune.study.entries import Intent, NoiseFloor, Note, TrialEntry
from nccltune.study.ledger import Ledger, plan_differences
from nccltune.trial.paths import launch_paths

AT = "2026-01-02T03:04:05+00:00"
CANDIDATE = Candidate(settings={"A": "1"})
MEASURED = Measurement(step_times_us=(10.0, 11.5, 10.25), clock="host", warmup_steps=2)


DISTURBED = Disturbances(
    seen=(Disturbance(kind="gpu-user", text="somebody"),), unknown=("GPU clocks",), cpu_others=0.25, power_capped=0.5
)


def intent(launch_id: str = "0000-search", candidate: Candidate = CANDIDATE) -> Intent:
    return Intent(launch_id=launch_id, purpose="search", candidate=candidate, trial=1, started_at=AT)


def launch(launch_id: str = "0000-search", outcome: Measurement | Failure = MEASURED) -> Launch:
    return Launch(**dict(intent(launch_id)), wall_s=1.5, outcome=outcome)


ENTRIES: tuple[Record, ...] = (
    Space(name="toy", dimensions=(Dimension(name="A", values=(None, "1")),), removed={"B": "why – not"}),
    intent(),
    launch(),
    TrialEntry(number=0, candidate=CANDIDATE, value_us=10.25, state="measured"),
    launch("0001-search", Failure(name="hang", blame="candidate", message="nobody moved\nat all")),
    NoiseFloor(relative=0.01, medians=(1.0, 1.01), n=2),
    Note(at=AT, text="é\u2028ü"),
    Verdict(word="keep-default", sentence="Keep the defaults."),
    launch("0002-search", MEASURED.model_copy(update={"disturbances": DISTURBED})),
    NoiseFloor(
        relative=0.01, medians=(1.0, 1.01), n=2,
        reach=Reach(
            min_gain=0.01, rounds=20, finalists=3, power=0.8, wanted=0.02, smallest=0.03, likely=(0.02, 0.1),
            falls_short=True, sentences=("shows", "takes"),
        ),
    ),
)  # fmt: skip


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    ledger = Ledger.create(tmp_path / "s", {"workload": "toy", "placement": {"nproc": 2}})
    ledger.append(*ENTRIES)
    return ledger


def test_everything_written_is_read_again(ledger: Ledger) -> None:
    again = Ledger.open(ledger.folder)
    assert again.entries == ENTRIES
    assert again.plan == {"workload": "toy", "placement": {"nproc": 2}}
    assert again.id == ledger.id != ""
    assert [one.launch_id for one in again.launches] == ["0000-search", "0001-search", "0002-search"]
    assert [one.disturbances for one in again.launches] == [None, None, DISTURBED]
    assert again.space == ENTRIES[0]
    assert again.noise == ENTRIES[9]
    assert again.verdict == ENTRIES[7]
    first = json.loads(ledger.path.read_text().splitlines()[0])
    assert first["schema_version"] == 1
    assert first["record"] == "study"


def test_last_written_space_and_verdict_hold(ledger: Ledger) -> None:
    ledger.append(Space(name="narrower", dimensions=()), Verdict(word="no-verdict", sentence="Too noisy."))
    again = Ledger.open(ledger.folder)
    assert again.space is not None
    assert again.space.name == "narrower"
    assert again.verdict is not None
    assert again.verdict.word == "no-verdict"


@pytest.mark.parametrize("last", range(len(ENTRIES)))
def test_cut_at_any_byte_of_the_last_line_all_others_are_kept_and_writing_goes_on(
    tmp_path: Path, last: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # only to be quick
    ledger = Ledger.create(tmp_path / "s", {})
    ledger.append(*ENTRIES[:last])
    before = ledger.path.stat().st_size
    ledger.append(ENTRIES[last])
    ledger.close()
    content = ledger.path.read_bytes()
    for end in range(before, len(content)):
        ledger.path.write_bytes(content[:end])
        (tmp_path / "s" / "ledger.torn").unlink(missing_ok=True)
        with Ledger.open(ledger.folder) as cut:
            assert cut.entries == ENTRIES[:last]
            assert ledger.path.read_bytes() == content[:end], "reading must not change the file"
            cut.append(ENTRIES[last])
        assert ledger.path.read_bytes() == content
        torn = tmp_path / "s" / "ledger.torn"
        assert torn.exists() == (end > before)
        if end > before:
            assert torn.read_bytes() == content[before:end] + b"\n"


def test_zeros_after_a_power_cut_are_a_torn_line(ledger: Ledger) -> None:
    with ledger.path.open("ab") as file:
        file.write(b"\0" * 100)
    with Ledger.open(ledger.folder) as again:
        assert again.entries == ENTRIES
        again.append(Note(at=AT, text="on"))
    assert len(Ledger.open(ledger.folder).entries) == len(ENTRIES) + 1


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"{broken", "line 3 is no JSON"),
        (b"[" * 100_000, "line 3 is no JSON"),
        (b"[1]", "line 3 is no JSON object"),
        (b'{"record":"noise","noise":{"relative":Infinity,"medians":[1],"n":1}}', "line 3 is no JSON: Infinity"),
        (b'{"record":"dance"}', "line 3: unknown record 'dance'"),
        (b'{"record":["x"]}', "line 3: unknown record"),
        (b'{"record":"note","note":{"at":1}}', r"line 3: note\.at: "),
        (b'{"record":"note"}', "line 3: note"),
    ],
)
def test_bad_middle_line_is_named(ledger: Ledger, line: bytes, why: str) -> None:
    lines = ledger.path.read_bytes().split(b"\n")
    lines[2] = line
    ledger.path.write_bytes(b"\n".join(lines))
    with pytest.raises(LedgerError, match=why):
        Ledger.open(ledger.folder)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is empty"),
        (b'{"schema_ver', "is empty"),
        (b'{"schema_version":2,"record":"study","plan":{}}\n', "has schema 2, this release reads up to 1"),
        (b'{"schema_version":1,"record":"launch"}\n', "line 1 is no study line"),
        (b'{"schema_version":1,"record":"study"}\n', "line 1 is no study line"),
    ],
)
def test_bad_first_line_is_named(tmp_path: Path, content: bytes, why: str) -> None:
    (tmp_path / "ledger.jsonl").write_bytes(content)
    with pytest.raises(LedgerError, match=why):
        Ledger.open(tmp_path)


def test_missing_ledger_and_second_ledger_are_refused(ledger: Ledger, tmp_path: Path) -> None:
    assert Ledger.exists(ledger.folder)
    assert not Ledger.exists(tmp_path)
    with pytest.raises(StorageError, match="cannot read"):
        Ledger.open(tmp_path)
    with pytest.raises(LedgerError, match="exists already"):
        Ledger.create(ledger.folder, {})
    assert Ledger.open(ledger.folder).entries == ENTRIES


@given(room=st.integers(0, 400), calls=st.integers(1, 60))
@settings(max_examples=40, deadline=None)
def test_full_disk_loses_nothing_and_leaves_no_half_line(
    tmp_path_factory: pytest.TempPathFactory, room: int, calls: int
) -> None:
    ledger = Ledger.create(tmp_path_factory.mktemp("full") / "s", {})
    ledger.append(*ENTRIES[:3])
    size = ledger.path.stat().st_size
    write, left = os.write, [room]

    def small_disk(descriptor: int, data: bytes) -> int:
        taken = min(left[0], calls, len(data))
        if taken == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        left[0] -= taken
        return write(descriptor, bytes(data)[:taken])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "write", small_disk)
        with pytest.raises(StorageError, match=r"cannot write .*: No space left on device; free space"):
            ledger.append(launch("0009-search"), launch("0010-search"))
    assert ledger.path.stat().st_size == size
    assert ledger.entries == ENTRIES[:3]
    ledger.append(ENTRIES[3])
    assert Ledger.open(ledger.folder).entries == ENTRIES[:4]


def test_failed_sync_takes_the_line_back(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    content = ledger.path.read_bytes()

    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(StorageError, match="Input/output error"):
            ledger.append(Note(at=AT, text="lost"))
    assert ledger.path.read_bytes() == content


def test_every_append_is_synced(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: sizes.append(os.fstat(descriptor).st_size))
    ledger.append(Note(at=AT, text="x"))
    assert sizes == [ledger.path.stat().st_size]


def test_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot write") as caught:
        Ledger.create(tmp_path / "file" / "s", {})
    assert "\n" not in str(caught.value)


def test_create_on_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(StorageError, match="No space left"):
            Ledger.create(tmp_path / "s", {})
    assert list((tmp_path / "s").iterdir()) == []
    Ledger.create(tmp_path / "s", {})


def test_plan_differences_name_nested_fields() -> None:
    stored = {"workload": "a", "placement": {"nproc": 2, "nodes": 1}, "sizes": [1, 2], "gone": True}
    wanted = {"workload": "b", "placement": {"nproc": 4, "nodes": 1}, "sizes": [1, 3], "new": "x"}
    assert plan_differences(stored, wanted) == [
        'workload: "a" there, "b" wanted',
        "placement.nproc: 2 there, 4 wanted",
        "sizes[1]: 2 there, 3 wanted",
        "gone: true there, nothing wanted",
        'new: nothing there, "x" wanted',
    ]
    assert plan_differences(stored, stored) == []
    assert plan_differences({"a": (1, 2)}, {"a": [1, 2]}) == []
    assert plan_differences({"a": 1}, {"a": True}) != []
    assert plan_differences({"a": [1]}, {"a": [1, 2]}) == ["a: [1] there, [1, 2] wanted"]


# ---- adoption


def leave_result(
    ledger: Ledger, token: str = "t", status: Literal["ok", "failed"] = "ok", candidate: Candidate = CANDIDATE
) -> Path:
    paths = launch_paths(ledger.folder, "0007-search")
    paths.folder.mkdir(parents=True)
    request = Request(
        study="s", launch_id="0007-search", token="t", workload="allreduce", backend="gloo", candidate=candidate
    )
    result = ResultFile(token=token, status=status, measurement=MEASURED if status == "ok" else None)
    paths.request.write_text(request.model_dump_json())
    paths.result.write_text(result.model_dump_json())
    return paths.result


def test_result_whose_line_is_missing_is_adopted_once_with_its_place(ledger: Ledger) -> None:
    ledger.append(intent("0007-search"))
    leave_result(ledger)
    (adopted,) = ledger.adopt()
    assert adopted.outcome == MEASURED
    assert (adopted.trial, adopted.purpose, adopted.candidate) == (1, "search", CANDIDATE)
    assert ledger.adopt() == []
    assert Ledger.open(ledger.folder).launches[-1] == adopted


def test_runner_concludes_what_an_adopted_result_means(ledger: Ledger) -> None:
    ledger.append(intent("0007-search"))
    leave_result(ledger)
    verdict = Failure(name="wrong_data", blame="candidate", message="sums differ")
    seen = []

    def conclude(request: Request, measurement: Measurement, paths: object) -> Failure:
        seen.append((request.launch_id, measurement))
        return verdict

    (adopted,) = ledger.adopt(conclude=conclude)
    assert adopted.outcome == verdict
    assert seen == [("0007-search", MEASURED)]


@pytest.mark.parametrize("fault", ["none", "cut", "token", "failed", "candidate", "schema"])
def test_what_is_not_a_good_result_of_that_launch_is_left_alone(ledger: Ledger, fault: str) -> None:
    ledger.append(intent("0007-search"))
    if fault == "cut":
        result = leave_result(ledger)
        result.write_bytes(result.read_bytes()[:-5])
    elif fault == "token":
        leave_result(ledger, token="other")
    elif fault == "failed":
        leave_result(ledger, status="failed")
    elif fault == "candidate":
        leave_result(ledger, candidate=Candidate(settings={"A": "2"}))
    elif fault == "schema":
        result = leave_result(ledger)
        result.write_text(result.read_text().replace('"schema_version":1', '"schema_version":9'))
    assert ledger.adopt() == []
