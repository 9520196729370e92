"""What the real runner makes of a launch that had nowhere to write; everything else is in the contract suite."""

import shutil

import pytest
from fakes import request

from nccltune.errors import StorageError
from nccltune.records import Failure
from nccltune.trial import runner
from nccltune.trial.process import Ended

ENDED = Ended(reason="exited", returncode=1, wall_s=1.0, survivors=(), phase="timed")


def test_a_launch_whose_folder_cannot_be_written_accuses_no_candidate(tmp_path, monkeypatch):
    def folder_goes(_argv, *, paths, **_):
        shutil.rmtree(paths.folder)
        return ENDED

    monkeypatch.setattr(runner, "run_guarded", folder_goes)
    with pytest.raises(StorageError, match=r"could not write to its folder .* run the same command again"):
        runner.LaunchRunner(tmp_path).run(request("0000-search"))


def test_a_launch_without_a_result_in_a_folder_that_can_be_written_is_a_failure(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "run_guarded", lambda *_, **__: ENDED)
    assert isinstance(runner.LaunchRunner(tmp_path).run(request("0000-search")), Failure)
    assert not (tmp_path / "launches" / "0000-search" / ".space").exists()
