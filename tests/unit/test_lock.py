"""One run a folder and a GPU; the lock goes with its process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nccltune.errors import StorageError, StudyBusy
from nccltune.study.lock import FOLDER_VARIABLE, hold

HOLD = """
import sys, time
from pathlib import Path
from nccltune.study.lock import hold
with hold(Path(sys.argv[1]), sys.argv[2:]):
    print("held", flush=True)
    time.sleep(60)
"""


def other_process(folder: Path, shared: Path, *gpus: str) -> subprocess.Popen[str]:
    environ = {**os.environ, FOLDER_VARIABLE: str(shared)}
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder), *gpus], env=environ, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_second_run_is_refused_with_the_pid_and_the_lock_dies_with_its_holder(tmp_path: Path) -> None:
    process = other_process(tmp_path / "s", tmp_path, "GPU-1")
    environ = {FOLDER_VARIABLE: str(tmp_path)}
    try:
        with pytest.raises(StudyBusy, match=f"folder .*pid {process.pid}"), hold(tmp_path / "s"):
            pass
        with (
            pytest.raises(StudyBusy, match=rf"GPU GPU-1 .*pid {process.pid}"),
            hold(tmp_path / "t", ["GPU-1"], environ),
        ):
            pass
        with hold(tmp_path / "t", ["GPU-2"], environ):
            pass
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    with hold(tmp_path / "s", ["GPU-1"], environ):
        pass


def test_refusal_gives_back_what_was_taken_before(tmp_path: Path) -> None:
    environ = {FOLDER_VARIABLE: str(tmp_path)}
    with hold(tmp_path / "s", ["GPU-2"], environ):
        with pytest.raises(StudyBusy), hold(tmp_path / "t", ["GPU-1", "GPU-2"], environ):
            pass
        with hold(tmp_path / "t", ["GPU-1"], environ):
            pass


def test_lock_is_released_at_the_end_of_the_block(tmp_path: Path) -> None:
    for _ in range(2):
        with hold(tmp_path / "s"):
            pass


def test_gpu_locks_are_open_to_other_users_and_no_symbolic_link_is_followed(tmp_path: Path) -> None:
    environ = {FOLDER_VARIABLE: str(tmp_path)}
    umask = os.umask(0o077)
    try:
        with hold(tmp_path / "s", ["GPU-1"], environ):
            assert (tmp_path / "nccltune-gpu-GPU-1.lock").stat().st_mode & 0o777 == 0o666
    finally:
        os.umask(umask)
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "nccltune-gpu-GPU-2.lock").symlink_to(victim)
    with pytest.raises(StorageError), hold(tmp_path / "s", ["GPU-2"], environ):
        pass
    assert victim.read_text() == "precious"


def test_identifier_with_a_path_in_it_stays_in_the_folder(tmp_path: Path) -> None:
    with hold(tmp_path / "s", ["../../x"], {FOLDER_VARIABLE: str(tmp_path)}):
        assert (tmp_path / "nccltune-gpu-.._.._x.lock").exists()


def test_folder_that_cannot_be_made_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot make"), hold(tmp_path / "file" / "s"):
        pass
