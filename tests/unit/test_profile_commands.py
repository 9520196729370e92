"""The commands export, check and validate: streams, exit statuses, files."""

import json
import os
import stat
import subprocess
import sys

import pytest
from fakes import FakeRunner

from nccltune import cli
from nccltune.machine import facts as machine
from nccltune.trial import runner
from nccltune.verdict import profile as profiles


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Profiles that were measured on this very machine."""
    monkeypatch.chdir(tmp_path)
    for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)

    def make(**changes):
        here = machine.fingerprint(machine.gather(dict(os.environ)))
        values = {
            "cluster": "cpu",
            "study": "s",
            "created": "2026-01-01",
            "verdict": "ship",
            "sentence": "Ship it",
            "settings": {"OMP_WAIT_POLICY": "PASSIVE"},
            "workload": "resnet",
            "workload_options": {"batch_size": 1, "image_size": 40},
            "backend": "gloo",
            "min_gain": 0.01,
            "numbers": profiles.Numbers(),
            "conditions": {**here, "world size": "2"},
        }
        profiles.write(profiles.Profile(**{**values, **changes}), tmp_path / "p")
        return str(tmp_path / "p")

    return make


def test_check_holds_on_this_machine(make, capsys):
    path = make()
    assert cli.run(["check", path]) == 0
    assert capsys.readouterr() == ("the profile holds here\n", "")
    assert cli.run(["check", path, "--format", "sh"]) == 0
    assert capsys.readouterr() == ("export OMP_WAIT_POLICY=PASSIVE\n", "")


def test_check_names_every_difference_and_ends_with_status_5(make, capsys):
    path = make(conditions={"backend": "gloo", "cpu": "Z80", "cores": "999"})
    assert cli.run(["check", path]) == 5
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.split(": ")[1] for line in err.splitlines()] == ["cores", "cpu"]
    assert cli.run(["check", path, "--json"]) == 5
    told = json.loads(capsys.readouterr().out)
    assert told["holds"] is False
    assert len(told["differing"]) == 2


def test_check_for_a_shell_says_one_line_and_prints_nothing_where_it_does_not_hold(make, capsys):
    path = make(conditions={"backend": "gloo", "cpu": "Z80", "cores": "999"})
    assert cli.run(["check", path, "--format", "sh"]) == 5
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "nothing was set: cores" in err


@pytest.mark.parametrize("changes", [{"emulated": 2}, {"collective_only": True}, {"verdict": "unconfirmed"}])
def test_check_sets_nothing_of_an_origin_that_export_refuses(make, capsys, changes):
    path = make(**changes)
    assert cli.run(["check", path]) == 0
    capsys.readouterr()
    assert cli.run(["check", path, "--format", "sh"]) == 5
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert cli.run(["export", path]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1


def test_check_leaves_what_the_user_has_set(make, capsys, monkeypatch):
    path = make()
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    assert cli.run(["check", path, "--format", "sh"]) == 5
    out, err = capsys.readouterr()
    assert out == ""
    assert "OMP_WAIT_POLICY: PASSIVE in the profile, already set to ACTIVE" in err
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    assert cli.run(["check", path, "--format", "sh"]) == 0
    assert capsys.readouterr() == ("", "")


def test_check_of_a_profile_that_cannot_be_read_sets_nothing(make, capsys, tmp_path):
    (tmp_path / "profile.yaml").write_text("a: [")
    assert cli.run(["check", str(tmp_path), "--format", "sh"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1


def test_check_imports_none_of_the_heavy_libraries(make):
    code = (
        "import sys\n"
        "from nccltune import cli\n"
        f"assert cli.run(['check', {make()!r}, '--format', 'sh']) == 0\n"
        "heavy = {'torch', 'optuna', 'mlflow', 'pandas', 'plotly', 'scipy', 'numpy', 'rich', 'jinja2'}\n"
        "ours = {'nccltune.space.catalogue', 'nccltune.plan', 'nccltune.study'}\n"
        "assert not (heavy | ours) & set(sys.modules), (heavy | ours) & set(sys.modules)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_a_shell_takes_the_settings_in_and_goes_on_in_any_case(make):
    command = (
        f'set -eu; eval "$({sys.executable} -m nccltune check "$1" --format sh)"; echo "${{OMP_WAIT_POLICY-none}}"'
    )

    def shell(path):
        return subprocess.run(["sh", "-c", command, "sh", path], capture_output=True, text=True, check=True).stdout

    assert shell(make()) == "PASSIVE\n"
    assert shell(make(conditions={"cpu": "Z80"})) == "none\n"
    assert shell("/nowhere") == "none\n"


def test_export_goes_to_the_standard_output_or_to_a_file(make, capsys, tmp_path):
    path = make()
    assert cli.run(["export", path]) == 0
    text = capsys.readouterr().out
    assert text == (tmp_path / "p" / "nccl.env").read_text()
    assert cli.run(["export", path, "--out", "new.env"]) == 0
    assert capsys.readouterr().out == ""
    assert (tmp_path / "new.env").read_text() == text
    assert cli.run(["export", path, "--format", "sh", "--guard", "--out", "guard.sh"]) == 0
    assert stat.S_IMODE((tmp_path / "guard.sh").stat().st_mode) == 0o755


def test_export_leaves_links_and_pipes_in_their_place(make, tmp_path):
    """As a rename would not: for root ``--out /dev/stdout`` would put a file there, for good and for everybody."""
    path = make()
    text = (tmp_path / "p" / "nccl.env").read_text()
    (tmp_path / "named.env").write_text("old")
    (tmp_path / "link").symlink_to("named.env")
    assert cli.run(["export", path, "--out", "link"]) == 0
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "named.env").read_text() == text
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert cli.run(["export", path, "--out", "pipe"]) == 0
        assert os.read(reader, 1 << 16).decode() == text
    finally:
        os.close(reader)
    assert (tmp_path / "pipe").is_fifo()


def test_export_names_conflicts_and_what_a_file_sets_too_late(make, capsys, monkeypatch):
    path = make()
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    assert cli.run(["export", path, "--format", "nccl-conf"]) == 0
    out, err = capsys.readouterr()
    assert "OMP_WAIT_POLICY=PASSIVE" in out
    assert "conflict: OMP_WAIT_POLICY is set to ACTIVE" in err
    assert "too late for OMP_WAIT_POLICY" in err


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["--format", "toml"], 2, "k8s"),
        (["--guard"], 2, "--format sh"),
        (["--allow", "sistem"], 2, "system"),
        (["--allow", "debugging"], 1, "OMP_WAIT_POLICY is system"),
        (["--out", "/nowhere/x"], 1, "cannot write /nowhere/x"),
    ],
)
def test_what_cannot_be_exported_is_one_line(make, capsys, words, status, said):
    assert cli.run(["export", make(), *words]) == status
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(("us", "status", "word"), [(800.0, 0, "confirmed"), (1000.0, 3, "not confirmed")])
def test_validate_prints_its_result_and_ends_with_its_status(make, capsys, monkeypatch, us, status, word):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    path = make(settings={"OMP_NUM_THREADS": "2"})
    fake = FakeRunner(lambda candidate: 1000.0 if candidate.is_default else us)
    monkeypatch.setattr(runner, "LaunchRunner", lambda *_, **__: fake)
    assert cli.run(["validate", path]) == status
    assert capsys.readouterr().out.startswith(f"{word.capitalize()}: ")
    assert cli.run(["validate", path, "--json"]) == status
    assert json.loads(capsys.readouterr().out)["word"] == word


def test_validate_of_a_profile_from_another_machine_says_so_first(make, capsys, monkeypatch):
    fake = FakeRunner(lambda candidate: 1000.0 if candidate.is_default else 800.0)
    monkeypatch.setattr(runner, "LaunchRunner", lambda *_, **__: fake)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    path = make(settings={"OMP_NUM_THREADS": "2"}, conditions={"backend": "gloo", "cpu": "Z80", "world size": "2"})
    assert cli.run(["validate", path]) == 0
    assert "changed since the profile was measured: cpu: Z80 before" in capsys.readouterr().err
