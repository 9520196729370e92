"""The profile folder."""

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from nccltune.errors import ProfileError
from nccltune.verdict import profile as profiles

NUMBERS = profiles.Numbers(default_step_us=2000, candidate_step_us=1000, gain=1.0, noise_floor=0.01, launches=9)


def a_profile(**changes):
    values = {
        "cluster": "2xh200-nvlink",
        "study": "allreduce-tcp-1",
        "created": "2026-01-01",
        "verdict": "unconfirmed",
        "sentence": "Unconfirmed gain",
        "settings": {"NCCL_ALGO": "allreduce:tree", "NCCL_BUFFSIZE": "1048576"},
        "workload": "allreduce",
        "backend": "nccl",
        "min_gain": 0.01,
        "numbers": NUMBERS,
        "conditions": {"nccl": "2.28.9"},
    }
    return profiles.Profile(**{**values, **changes})


def read_as_docker(text):
    """Docker's rules for --env-file: lines that begin with # are comments, the rest is NAME=VALUE as it stands."""
    return dict(line.split("=", 1) for line in text.splitlines() if line and not line.startswith("#"))


def test_the_env_file_reads_back_as_the_settings():
    assert read_as_docker(profiles.env_text(a_profile())) == a_profile().settings


@given(st.text(), st.text(), st.dictionaries(st.text(), st.text(), max_size=3))
def test_no_text_of_the_header_becomes_a_setting(sentence, study, conditions):
    text = profiles.env_text(a_profile(sentence=sentence, study=study, conditions=conditions))
    assert read_as_docker(text) == a_profile().settings


def test_the_header_names_what_limits_the_profile():
    text = profiles.env_text(a_profile(emulated=2, collective_only=True))
    assert "EMULATED" in text
    assert "COLLECTIVE ONLY" in text
    assert "UNCONFIRMED" in text
    assert "every communicator" in text
    assert "nccl: 2.28.9" in text


def test_keep_default_has_the_same_header_and_no_setting():
    text = profiles.env_text(a_profile(verdict="keep-default", settings={}))
    assert read_as_docker(text) == {}
    assert "keep the defaults" in text


def test_both_files_are_written_and_read_back(tmp_path):
    env_file, profile_file = profiles.write(a_profile(), tmp_path / "new" / "profile")
    assert read_as_docker(env_file.read_text()) == a_profile().settings
    assert profiles.Profile.model_validate(yaml.safe_load(profile_file.read_text())) == a_profile()
    assert sorted(path.name for path in env_file.parent.iterdir()) == ["nccl.env", "profile.yaml"]


def test_a_full_disk_leaves_the_old_profile_whole(tmp_path, monkeypatch):
    env_file, _ = profiles.write(a_profile(), tmp_path)
    before = env_file.read_text()

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(profiles.os, "fsync", full)
    with pytest.raises(ProfileError, match="No space left on device"):
        profiles.write(a_profile(settings={"A": "1"}), tmp_path)
    assert env_file.read_text() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["nccl.env", "profile.yaml"]
