"""What a launch can do wrong, and what the runner makes of it. Nothing is left running after any of it."""

import errno
import json
import os
import sys
import threading
import time
from pathlib import Path

import pytest

from nccltune.errors import Interrupted, StorageError
from nccltune.records import Candidate, Failure, Limits, Measurement, Placement
from nccltune.trial import guardian
from nccltune.trial.paths import launch_paths
from nccltune.trial.runner import adopt

HERE = Path(__file__).parent


def wait_for(condition, seconds):
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


SHORT = Limits(startup_s=60, no_progress_s=0.5, total_s=90, grace_s=1, shutdown_s=0)


def test_a_good_launch_says_what_its_parts_cost(launches):
    outcome = launches.run("ok")
    assert isinstance(outcome, Measurement)
    assert outcome.parts_s["start"] > 0
    assert outcome.parts_s["end"] >= 0
    assert outcome.warnings == ()


def test_a_good_launch_leaves_its_files_and_nothing_else(launches):
    before = set(Path("/tmp").iterdir())
    launches.run("ok")
    folder = launch_paths(launches.folder, "0000-search").folder
    assert {path.name for path in folder.iterdir()} == {
        "request.json", "result.json", "heartbeat", "launch.log", "nccl.env", "torchelastic", "nccl", "guardian.json",
    }  # fmt: skip
    assert {path.name for path in launches.folder.iterdir()} == {"launches"}
    new = {path for path in set(Path("/tmp").iterdir()) - before if "torchelastic" in path.name}
    assert not new


@pytest.mark.parametrize(
    ("act", "name", "said"),
    [
        ("exit_0", "no_result", "without leaving a result"),
        ("cut_off", "no_result", "cut off or of another schema"),
        ("other_schema", "no_result", "schema_version"),
        ("other_token", "no_result", "another launch's"),
        ("fewer_ranks", "ranks_disagree", "2 ranks were launched"),
        ("raise", "workload_error", "the labels are 7, not 5"),
    ],
)
def test_a_launch_without_a_usable_result_is_a_failure_with_the_reason(launches, act, name, said):
    outcome = launches.run(act)
    assert isinstance(outcome, Failure)
    assert outcome.name == name
    assert said in outcome.message


@pytest.mark.launch
def test_a_segfault_is_not_the_workloads_exception(launches, tmp_path, monkeypatch):
    """Nor do a user's own modules in the working folder shadow what torchrun and the workers import."""
    monkeypatch.chdir(tmp_path)
    for name in ("queue", "statistics", "platform", "torch"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong module')")
    outcome = launches.run("segfault", real=True)
    assert outcome.name == "segfault"
    assert "act.py" in outcome.log_tail, "the Python line is named"


def test_fifty_megabytes_of_output_block_nobody_and_keep_both_ends(launches):
    outcome = launches.run("print")
    assert isinstance(outcome, Measurement)
    log = launch_paths(launches.folder, "0000-search").log
    size = log.stat().st_size
    assert guardian.HEAD_BYTES + guardian.TAIL_BYTES <= size < guardian.HEAD_BYTES + guardian.TAIL_BYTES + 100
    text = log.read_text()
    assert text.endswith("the last line\n")
    left_out = int(text.partition("[nccltune: ")[2].split()[0])
    assert left_out == 50 * (1 << 20) + len("the last line\n") - guardian.HEAD_BYTES - guardian.TAIL_BYTES


def test_a_hang_before_the_group_is_up_is_a_start_up_timeout(launches):
    limits = SHORT.model_copy(update={"startup_s": 1.0})
    outcome = launches.run("hang_before_group", limits=limits)
    assert outcome.name == "startup_timeout"


def test_a_hang_afterwards_is_seen_by_the_silent_heartbeat(launches):
    outcome = launches.run("hang", limits=SHORT)
    assert (outcome.name, outcome.details["phase"]) == ("hang_timeout", "timed")


def test_the_total_limit_ends_a_launch_that_still_makes_progress(launches):
    limits = Limits(startup_s=60, no_progress_s=60, total_s=1.5, grace_s=1)
    assert launches.run("hang", limits=limits).name == "total_timeout"


def test_a_measurement_is_kept_when_the_launch_hangs_after_it(launches):
    outcome = launches.run("hang_after_result", limits=SHORT)
    assert isinstance(outcome, Measurement)
    assert "no_progress" in outcome.warnings[0]


def test_workers_see_the_environment_that_was_rendered(launches):
    launches.environ |= {"NCCL_BUFFSIZE": "1", "PET_NPROC_PER_NODE": "7", "MASTER_PORT": "1", "NCCL_DEBUG": "VERSION"}
    launches.environ.pop("HOME", None)
    candidate = Candidate(settings={"NCCL_ALGO": "allreduce:tree", "OMP_NUM_THREADS": "3"})
    outcome = launches.run("environment", candidate=candidate, backend="nccl")
    assert isinstance(outcome, Measurement)
    paths = launch_paths(launches.folder, "0000-search")
    seen = json.loads((paths.folder / "environ.json").read_text())
    assert seen["NCCL_ALGO"] == "allreduce:tree"
    assert (seen["NCCL_BUFFSIZE"], seen["NCCL_DEBUG"], seen["OMP_NUM_THREADS"]) == ("1", "INFO", "3")
    assert "PET_NPROC_PER_NODE" not in seen
    assert "MASTER_PORT" not in seen
    assert str(Path.cwd()) not in json.loads((paths.folder / "path.json").read_text())
    text = paths.env_file.read_text()
    assert "# replaced for this launch: NCCL_DEBUG=VERSION\n" in text
    assert "PATH=" not in text.replace("PYTHONSAFEPATH=", "")


def test_a_rank_that_saw_something_else_makes_the_launch_invalid(launches, monkeypatch):
    """A site's start-up script that sets NCCL variables again."""
    quick = Path(launches.quick)
    quick.write_text(quick.read_text().replace("exec", "export NCCL_BUFFSIZE=7\nexec"))
    outcome = launches.run("ok", candidate=Candidate(settings={"NCCL_BUFFSIZE": "1"}))
    assert (outcome.name, outcome.stop) == ("environment_changed", True)
    assert "NCCL_BUFFSIZE" in outcome.message


@pytest.mark.parametrize("prefix", [("/nowhere/srun", "-N1"), ("/etc/passwd",)])
def test_a_launcher_that_cannot_be_started_stops_the_study(launches, prefix):
    outcome = launches.run("ok", placement=Placement(launch_prefix=prefix))
    assert (outcome.name, outcome.stop) == ("launcher_missing", True)
    assert prefix[0] in outcome.message
    assert any(os.strerror(number) in outcome.message for number in (errno.ENOENT, errno.EACCES))


@pytest.mark.launch
def test_a_launch_prefix_starts_an_agent_on_each_node(launches, tmp_path):
    srun = tmp_path / "srun"
    srun.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{HERE / "fake_srun.py"}" "$@"\n')
    srun.chmod(0o755)
    placement = Placement(nnodes=2, nproc_per_node=1, launch_prefix=(str(srun), "-N2"))
    outcome = launches.run("ok", real=True, placement=placement)
    assert isinstance(outcome, Measurement), outcome
    assert [report.rank for report in outcome.ranks] == [0, 1]


def test_a_result_that_a_shared_folder_shows_late_is_waited_for(launches, tmp_path):
    starter = tmp_path / "start"
    starter.write_text('#!/bin/sh\nfor last; do :; done\n"$@" && mv "$last" "$last.late"\n')
    starter.chmod(0o755)
    paths = launch_paths(launches.folder, "0000-search")
    late = paths.folder / "result.json.late"

    def show_late():
        if wait_for(paths.guardian.exists, 30):
            late.rename(paths.result)

    server = threading.Thread(target=show_late)
    server.start()
    outcome = launches.run("ok", placement=Placement(launch_prefix=(str(starter),)))
    server.join()
    assert isinstance(outcome, Measurement), outcome


def test_a_complete_result_is_not_overwritten_but_taken_over(launches):
    first = launches.run("ok")
    result = launch_paths(launches.folder, "0000-search").result
    written = result.stat().st_mtime_ns
    again = launches.run("ok")
    assert again.step_times_us == first.step_times_us
    assert result.stat().st_mtime_ns == written
    assert adopt(launches.folder, "0000-search").step_times_us == first.step_times_us


def test_a_result_of_another_launch_under_the_same_name_is_refused_and_kept(launches):
    launches.run("ok")
    with pytest.raises(StorageError, match="another launch"):
        launches.run("ok", candidate=Candidate(settings={"OMP_NUM_THREADS": "2"}))
    assert adopt(launches.folder, "0000-search") is not None


def test_a_launch_that_was_broken_off_is_run_again_in_a_clean_folder(launches):
    launches.run("cut_off")
    paths = launch_paths(launches.folder, "0000-search")
    (paths.nccl / "old.log").write_text("from the first try")
    assert adopt(launches.folder, "0000-search") is None
    assert isinstance(launches.run("ok"), Measurement)
    assert paths.nccl_logs() == ()


def test_a_folder_that_cannot_be_written_is_an_error_of_storage(launches):
    (launches.folder / "launches").write_text("a file in the way")
    with pytest.raises(StorageError, match="cannot be written"):
        launches.run("ok")


def test_a_wish_to_stop_ends_the_launch_and_raises(launches):
    runner = launches.runner(stop=lambda: "timed" in launches.phase())
    with pytest.raises(Interrupted):
        runner.run(launches.request("hang"))
    launches.nobody_left()
    assert adopt(launches.folder, "0000-search") is None


def test_an_interrupt_that_comes_as_an_exception_leaves_nobody(launches):
    def stop():
        if "timed" in launches.phase():
            raise KeyboardInterrupt
        return False

    with pytest.raises(KeyboardInterrupt):
        launches.runner(stop=stop).run(launches.request("hang"))
    launches.nobody_left()
