import json
import os
from pathlib import Path

import pytest
from fakes import request

from nccltune.trial.paths import launch_paths, unfinished_tokens


def test_paths_are_absolute_so_that_none_begins_with_a_dash():
    paths = launch_paths(Path("-rf"), "0000-search")
    assert paths.request.is_absolute()
    assert paths.request == Path.cwd() / "-rf/launches/0000-search/request.json"


@pytest.mark.parametrize("launch_id", ["", ".", "..", "../x", "a/b", ".hidden", "a\0b"])
def test_a_launch_id_that_leaves_the_folder_is_refused(launch_id):
    with pytest.raises(ValueError, match="no plain name"):
        launch_paths(Path("s"), launch_id)


def test_error_files_come_oldest_first(tmp_path):
    paths = launch_paths(tmp_path, "l")
    for name, age in (("0", 10), ("1", 30), ("2", 20)):
        file = paths.elastic / "run_x" / "attempt_0" / name / "error.json"
        file.parent.mkdir(parents=True)
        file.write_text("{}")
        os.utime(file, (1e9 - age, 1e9 - age))
    assert [file.parent.name for file in paths.error_files()] == ["1", "2", "0"]


def test_unfinished_tokens_are_those_of_launches_whose_guardian_did_not_report(tmp_path):
    for launch_id in ("done", "killed", "torn", "other"):
        paths = launch_paths(tmp_path, launch_id)
        paths.folder.mkdir(parents=True)
        paths.request.write_text(request(launch_id, token=f"t-{launch_id}").model_dump_json())
    launch_paths(tmp_path, "done").guardian.write_text("{}")
    launch_paths(tmp_path, "torn").request.write_text('{"token": "t-')
    launch_paths(tmp_path, "other").request.write_text(json.dumps({"token": 7}))
    assert list(unfinished_tokens(tmp_path)) == ["t-killed"]


def test_a_study_without_launches_has_no_unfinished_ones(tmp_path):
    assert list(unfinished_tokens(tmp_path / "absent")) == []
