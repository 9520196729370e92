"""Arguments to calls, errors to exit statuses."""

import errno
import os
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
        (["--workload", "resnet", "--finalists", "4"], "give 1 to 3"),
        (["--workload", "resnet", "--nproc", "1"], "nobody to talk to"),
        (["--workload", "resnet", "--study", "../x"], "no name for a folder"),
        (["--workload", "resnet", "--study", "a\nb"], "no name for a folder"),
        (["--workload", "resnet", "--cluster", "x" * 300], "--cluster is longer than 200 bytes"),
        (["--workload", "resnet", "--seed", "99999999999999999999"], "beyond what torch takes"),
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


def test_an_interrupt_at_start_up_is_one_line_with_status_130(monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("nccltune.plan.prepare", interrupted)
    assert cli.run(["--workload", "resnet"]) == 130
    assert capsys.readouterr().err == "nccltune: stopped at once; run the same command again to go on.\n"


def test_an_interrupt_while_modules_are_imported_is_one_line_with_status_130():
    code = (
        "import sys\n"
        "from nccltune.__main__ import main\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'cyclopts':\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "main()\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 130
    assert ended.stderr == "nccltune: stopped before anything was started; run the same command again.\n"


def test_output_that_cannot_be_written_is_no_internal_error(monkeypatch, capsys):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("nccltune.plan.prepare", full)
    assert cli.run(["--workload", "resnet"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("nccltune: cannot write the output: No space left on device; free space")


def test_closed_standard_streams_are_never_taken_by_other_files():
    code = (
        "import os, sys\n"
        "for descriptor in (0, 1, 2):\n"
        "    os.close(descriptor)\n"
        "sys.stdin = sys.stdout = sys.stderr = None\n"
        "from nccltune.cli.output import open_standard_streams\n"
        "open_standard_streams()\n"
        "print('for nobody', file=sys.stderr)\n"
        "sys.exit(0 if os.open(os.devnull, os.O_RDONLY) > 2 else 1)\n"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_the_example_is_the_main_jobs_alone(capsys):
    assert cli.run(["--help"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("Usage: nccltune [COMMAND] [OPTIONS]")
    assert "Example: nccltune --workload" in said
    assert "start nothing" in " ".join(said.split())
    assert cli.run(["knobs", "--help"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("Usage: nccltune knobs")
    assert "Example" not in said
