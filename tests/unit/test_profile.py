"""The profile folder: written, and read back."""

import json
from importlib import resources

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from nccltune.errors import ProfileError
from nccltune.machine.inherited import parse_conf
from nccltune.space.catalogue import load_catalogue
from nccltune.verdict import profile as profiles
from nccltune.verdict import reading
from nccltune.verdict.reading import read_profile

NUMBERS = profiles.Numbers(default_step_us=2000, candidate_step_us=1000, gain=1.0, noise_floor=0.01, launches=9)


def a_profile(**changes):
    values = {
        "cluster": "2xh200-nvlink",
        "study": "allreduce-tcp-1",
        "created": "2026-01-01",
        "verdict": "ship",
        "sentence": "Ship it",
        "settings": {"NCCL_ALGO": "allreduce:tree", "NCCL_BUFFSIZE": "1048576"},
        "workload": "resnet",
        "backend": "nccl",
        "min_gain": 0.01,
        "numbers": NUMBERS,
        "conditions": {"nccl": "2.28.9"},
    }
    return profiles.Profile(**{**values, **changes})


def read_as_docker(text):
    """Docker's rules for --env-file: lines that begin with # are comments, the rest is NAME=VALUE as it stands."""
    return dict(line.split("=", 1) for line in text.splitlines() if line and not line.startswith("#"))


@pytest.fixture
def edited(tmp_path):
    """A profile on disk after a hand has been at it."""

    def edit(old="", new=""):
        _, file = profiles.write(a_profile(), tmp_path)
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new, 1) if old else new)
        return file

    return edit


# ---- written


def test_the_env_file_reads_back_as_the_settings():
    text = profiles.env_text(a_profile())
    assert read_as_docker(text) == a_profile().settings
    assert dict(parse_conf(text.encode(), (2, 28, 9))) == a_profile().settings


@given(st.text(), st.text(), st.dictionaries(st.text(), st.text(), max_size=3))
def test_no_text_of_the_header_becomes_a_setting(sentence, study, conditions):
    text = profiles.env_text(a_profile(sentence=sentence, study=study, conditions=conditions))
    assert read_as_docker(text) == a_profile().settings


def test_the_header_names_what_limits_the_profile():
    text = profiles.env_text(a_profile(emulated=2, collective_only=True))
    assert "EMULATED" in text
    assert "COLLECTIVE ONLY" in text
    assert "every communicator" in text
    assert "nccl: 2.28.9" in text


def test_each_setting_has_its_documentation_class_in_the_line_above():
    lines = profiles.env_text(a_profile()).splitlines()
    for name in a_profile().settings:
        (at,) = [index for index, line in enumerate(lines) if line.startswith(f"{name}=")]
        assert lines[at - 1].startswith(f"# {name} is {load_catalogue().knobs[name].docs}: NVIDIA ")


@pytest.mark.parametrize("docs", ["system", "debugging", "undocumented"])
def test_every_class_has_its_advice(docs):
    name = next(name for name, knob in load_catalogue().knobs.items() if knob.docs == docs and "nccl" in knob.backends)
    assert profiles.ADVICE[docs] in profiles.setting_comments(a_profile(settings={name: "1"}))[name]


def test_a_setting_of_the_cpu_is_not_ascribed_to_nvidia():
    (comment,) = profiles.setting_comments(a_profile(settings={"OMP_NUM_THREADS": "2"})).values()
    assert "no setting of NCCL" in comment
    assert "NVIDIA" not in comment


def test_keep_default_has_the_same_header_and_no_setting():
    text = profiles.env_text(a_profile(verdict="keep-default", settings={}))
    assert read_as_docker(text) == {}
    assert "keep the defaults" in text


def test_a_validation_on_a_model_lifts_the_limit_of_a_collective():
    confirmed = profiles.Confirmation(at="2026-02-02", workload="resnet", gain=0.04, rounds=8)
    text = profiles.env_text(a_profile(collective_only=True, confirmed=confirmed))
    assert "COLLECTIVE ONLY" not in text
    assert "confirmed: 2026-02-02 on resnet (+4 %), 8 fresh rounds" in text
    again = confirmed.model_copy(update={"collective_only": True})
    assert "COLLECTIVE ONLY" in profiles.env_text(a_profile(collective_only=True, confirmed=again))


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


# ---- read


def test_both_files_are_written_and_read_back_by_any_of_their_names(tmp_path):
    env_file, profile_file = profiles.write(a_profile(), tmp_path / "new" / "profile")
    assert sorted(path.name for path in env_file.parent.iterdir()) == ["nccl.env", "profile.yaml"]
    for path in (profile_file, env_file, env_file.parent):
        assert read_profile(path) == a_profile()


def test_a_profile_of_the_first_release_is_still_read(tmp_path):
    document = a_profile(verdict="unconfirmed").model_dump(mode="json")
    old = {name: value for name, value in document.items() if name not in ("confirmed", "withheld")}
    (tmp_path / "profile.yaml").write_text(yaml.safe_dump(old))
    assert read_profile(tmp_path).verdict == "unconfirmed"


@pytest.mark.parametrize("thoroughly", [True, False])
@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("", "a: [1", "is no YAML"),
        ("", "just text", "is no mapping"),
        ("", "", "is no mapping"),
        ("", "!!python/object/apply:os.system ['true']", "is no YAML"),
        ("NCCL_ALGO: ", "LD_PRELOAD: ", "settings.LD_PRELOAD: 'LD_PRELOAD' is no setting"),
        ("NCCL_ALGO: ", "nccl_algo: ", "settings.nccl_algo"),
        ("NCCL_ALGO: ", "'NCCL_A;touch x': ", "no setting"),
        ("NCCL_ALGO: ", '"NCCL_A\\n\\e[31mB": ', "no setting"),
        ("allreduce:tree", '""', "settings.NCCL_ALGO: the value is empty"),
        ("allreduce:tree", '"a\\nb"', "not one printable line"),
        ("allreduce:tree", "a" * 1024, "longer than the 1023 bytes"),
        ("'1048576'", "1048576", "settings.NCCL_BUFFSIZE"),
        ("min_gain: 0.01", "min_gain: much", "min_gain"),
        ("schema_version: 1", "schema_version: 2", "schema_version: 2 is newer"),
        ("study:", "colour: red\nstudy:", "colour: is no field here"),
        ("noise_floor:", "noise_flor:", "numbers.noise_flor"),
        ("inherited: {}", "inherited: {'A B': x}", "inherited.A B"),
    ],
)
def test_a_profile_edited_by_hand_is_refused_in_one_line_that_says_where(edited, old, new, said, thoroughly):
    file = edited(old, new)
    with pytest.raises(ProfileError) as refused:
        read_profile(file, thoroughly=thoroughly)
    assert said in str(refused.value)
    assert str(file) in str(refused.value)
    assert str(refused.value).isprintable()
    assert refused.value.do


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("NCCL_ALGO: ", "NCCL_ALGOO: ", "Did you mean 'NCCL_ALGO'"),
        ("allreduce:tree", "allreduce:oak", "settings.NCCL_ALGO: the value 'allreduce:oak'"),
        ("'1048576'", "'lots'", "settings.NCCL_BUFFSIZE: the value 'lots'"),
    ],
)
def test_a_value_that_no_knob_takes_is_refused(edited, old, new, said):
    with pytest.raises(ProfileError) as refused:
        read_profile(edited(old, new))
    assert said in str(refused.value)


def test_a_missing_profile_and_a_huge_one_are_named(tmp_path):
    with pytest.raises(ProfileError, match="there is no profile"):
        read_profile(tmp_path / "none")
    (tmp_path / "profile.yaml").write_text("#" * (1 << 20 | 1))
    with pytest.raises(ProfileError, match="larger than 1 MiB"):
        read_profile(tmp_path)


def test_the_quick_list_of_names_is_the_catalogues():
    assert reading.catalogue_names() == frozenset(load_catalogue().knobs)


def test_the_published_schema_is_that_of_the_model():
    published = resources.files("nccltune.verdict") / "profile.schema.json"
    assert json.loads(published.read_text()) == reading.json_schema()
