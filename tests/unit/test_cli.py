"""Arguments to calls, errors to exit statuses."""

import subprocess
import sys

import pytest

from nccltune import cli


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--wrkload", "resnet"], "no option '--wrkload'. Did you mean '--workload'"),
        (["tun", "x"], "no command 'tun'"),
        (["explian", "file"], "Did you mean 'explain'"),
        (["--workload", "resnett"], "Did you mean 'resnet'"),
        (["--workload", "allreduce", "--space", "tpc"], "Did you mean 'tcp'"),
        (["--workload", "resnet", "--trials", "0"], "--trials 0 measures nothing"),
        (["--workload", "resnet", "--trials", "many"], "many"),
        (["--workload", "resnet", "--budget", "-5m"], "no duration"),
        (["--workload", "resnet", "--min-gain", "200%"], "no share"),
        (["--workload", "resnet", "--rounds", "0"], "confirms nothing"),
        (["--workload", "resnet", "--nproc", "1"], "nobody to talk to"),
        (["--workload", "resnet", "--study", "../x"], "no name for a folder"),
        (["--workload", "resnet", "--sizes", "32M"], "takes no --sizes"),
        (["--workload", "resnet", "--", "--lr", "1"], "after '--'"),
    ],
)
def test_usage_errors_are_one_line_with_status_2(argv, message, capsys):
    assert cli.run(argv) == 2
    error = capsys.readouterr().err
    assert error.startswith("nccltune: ")
    assert message in error
    assert error.count("\n") == 1


def test_help_imports_none_of_the_heavy_libraries():
    code = (
        "import sys\n"
        "from nccltune import cli\n"
        "cli.run(['--help'])\n"
        "heavy = {'torch', 'optuna', 'mlflow', 'pandas', 'plotly', 'scipy', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    assert "--emulate-nodes" in shown.stdout


def test_no_workload_starts_nothing_and_says_what_would_be_run(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.run([]) == 0
    told = capsys.readouterr().err
    assert told.startswith("torch ")
    assert "nothing was started; to start, run: nccltune --workload resnet" in told
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_shows_one_argument_list_and_environment_and_writes_nothing(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SOME_SECRET", "hunter2")
    assert cli.run(["--workload", "allreduce", "--dry-run"]) == 0
    shown = capsys.readouterr()
    assert "torch.distributed.run" in shown.out
    assert "NCCLTUNE_TOKEN=" in shown.out
    assert "launches" in shown.err
    assert "hunter2" not in shown.out + shown.err
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_named(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert cli.run(["--workload", "allreduce", "--out", str(tmp_path / "file")]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("nccltune: ")
    assert str(tmp_path / "file") in error
