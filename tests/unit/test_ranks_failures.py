"""Failures of one rank among several: the rank that failed is the cause, the others' complaints are its echo."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nccltune.records import Failure, ResultFile
from nccltune.trial.diagnose import diagnose, read_error_files
from nccltune.trial.process import Ended
from nccltune.trial.symptoms import read_symptoms

WORLDS = pytest.mark.parametrize("world", [2, 3, 8], ids=lambda world: f"{world}-ranks")
LOST = "RuntimeError: [/gloo/transport/tcp/pair.cc:554] Connection closed by peer [127.0.0.1]:41210"


def failed(
    folder: Path, messages: dict[int, str], log: str = "", told: str | None = None, how: str = "exited"
) -> Failure:
    """Diagnose a launch whose ranks left these errors, all within the same second, the first entry first."""
    paths = []
    for rank, message in messages.items():
        path = folder / f"{rank}.json"
        path.write_text(json.dumps({"message": {"message": message, "extraInfo": {"timestamp": "1764500000"}}}))
        paths.append(path)
    text = folder / "launch.log"
    text.write_text(log)
    result = ResultFile(token="t", status="failed", failure="workload_error", detail=told) if told else None
    ended = Ended(reason=how, returncode=1, wall_s=9.0, survivors=(), phase="timed")  # type: ignore[arg-type]
    return diagnose(result=result, ended=ended, error_files=paths, log=text, nccl_logs=[])


def echoes(world: int, culprit: int) -> dict[int, str]:
    return {rank: LOST for rank in range(world) if rank != culprit}


class TestErrors:
    @WORLDS
    def test_what_the_harness_named_wins_over_what_the_others_saw(self, tmp_path: Path, world: int) -> None:
        told = f"rank {world - 1}, timed: KeyError: 'layer'"
        found = failed(tmp_path, echoes(world, world - 1) | {world - 1: f"WorkloadError: {told}"}, LOST, told)
        assert (found.name, found.blame, found.message, found.retry) == ("workload_error", "workload", told, False)

    @WORLDS
    def test_the_first_error_of_a_script_wins_over_its_echoes(self, tmp_path: Path, world: int) -> None:
        errors = {world - 1: "ValueError: the labels are 7, not 5"} | echoes(world, world - 1)
        found = failed(tmp_path, errors, LOST)
        assert (found.name, found.message) == ("workload_error", "ValueError: the labels are 7, not 5")

    @WORLDS
    def test_echoes_alone_stay_echoes(self, tmp_path: Path, world: int) -> None:
        found = failed(tmp_path, echoes(world, world - 1))
        assert (found.name, found.blame, found.retry) == ("remote_exit", "unknown", True)

    def test_errors_of_one_second_stay_in_the_order_in_which_they_were_written(self, tmp_path: Path) -> None:
        failed(tmp_path, {5: "ValueError: first"} | echoes(8, 5))
        paths = [tmp_path / f"{rank}.json" for rank in (5, 0, 1, 2, 3, 4, 6, 7)]
        assert read_error_files(paths)[0].message == "ValueError: first"

    def test_a_cause_in_the_log_wins_over_any_error(self, tmp_path: Path) -> None:
        log = (
            'h:1:1 [5] graph/tuning.cc:104 NCCL WARN Unrecognized element token "rong" when parsing "allreduce:rong"\n'
        )
        found = failed(tmp_path, {5: "WorkloadError: x"} | echoes(8, 5), log, "x")
        assert (found.name, found.blame) == ("invalid_setting", "candidate")


# As torchrun 2.13 prints it where seven ranks lost their peer within the second in which it crashed.
CRASH = """\
E1130 torch/distributed/elastic/multiprocessing/api.py:986] failed (exitcode: 1) local_rank: 0 (pid: 70)
Failures:
[5]:
  rank      : 5 (local_rank: 5)
  exitcode  : -{signal} (pid: 75)
  error_file: <N/A>
  traceback : Signal {signal} ({name}) received by PID 75
Root Cause (first observed failure):
[0]:
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 70)
  error_file: error.json
"""


class TestSignals:
    @pytest.mark.parametrize(
        ("signal", "name", "wanted"),
        [(7, "SIGBUS", "shm_too_small"), (11, "SIGSEGV", "segfault"), (9, "SIGKILL", "host_oom")],
        ids=["bus-error", "segfault", "killed"],
    )
    def test_a_crash_of_rank_5_is_the_cause_though_rank_0_is_reported_first(
        self, tmp_path: Path, signal: int, name: str, wanted: str
    ) -> None:
        found = failed(tmp_path, echoes(8, 5), CRASH.format(signal=signal, name=name) + LOST)
        assert (found.name, found.details["signal"]) == (wanted, signal)

    def test_ranks_that_were_ended_for_it_are_not(self, tmp_path: Path) -> None:
        log = CRASH.format(signal=15, name="SIGTERM")
        assert failed(tmp_path, {0: "ValueError: mine"}, log).name == "workload_error"

    def test_a_crash_while_others_clean_up_explains_no_error_that_the_harness_named(self, tmp_path: Path) -> None:
        found = failed(tmp_path, {0: "WorkloadError: mine"}, CRASH.format(signal=11, name="SIGSEGV"), "mine")
        assert (found.name, found.message) == ("workload_error", "mine")


INIT = "h:10{0}:1 [{0}] NCCL INFO comm 0x7 rank {0} nranks {1} cudaDev {0} busId 4 commId 0xab - Init COMPLETE\n"
TIMEOUT = (
    "[rank{0}]:[E1130 10:00:01.0 ProcessGroupNCCL.cpp:683] [Rank {0}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum={1}, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=30000) ran for 30012 milliseconds\n"
)
DUMP = (
    "[rank{0}]:[E1130 10:00:02.0 ProcessGroupNCCL.cpp:1700] [PG ID 0 PG GUID 0(default_pg) Rank {0}] Received a dump "
    "signal due to a collective timeout from rank 0. Last enqueued NCCL work: {1}, last completed NCCL work: {1}.\n"
)


def up(world: int) -> str:
    return "".join(INIT.format(rank, world) for rank in range(world))


class TestHangs:
    def test_a_rank_that_the_harness_waits_for_in_vain_hangs_and_is_no_error_of_the_workload(
        self, tmp_path: Path
    ) -> None:
        found = failed(tmp_path, {0: "RankSilent: rank 5 did not answer 'timed' within 60 s (DistStoreError)"})
        assert (found.name, found.retry, found.details["rank"]) == ("hang_timeout", True, 5)
        assert "rank 5" in found.message

    @WORLDS
    def test_a_rank_that_never_asked_is_named(self, tmp_path: Path, world: int) -> None:
        late = world - 1
        log = up(world) + "".join(TIMEOUT.format(rank, 12) for rank in range(late)) + DUMP.format(late, 11)
        found = failed(tmp_path, {}, log, how="no_progress")
        assert (found.name, found.pattern, found.blame) == ("hang_timeout", "different_seq", "unknown")
        assert found.details["ranks_behind"] == [late]
        assert "ranks_unheard" not in found.details

    def test_a_rank_that_stands_at_an_earlier_collective_is_named(self, tmp_path: Path) -> None:
        log = up(8) + "".join(TIMEOUT.format(rank, 11 if rank in (2, 5) else 12) for rank in range(8))
        found = failed(tmp_path, {}, log, how="no_progress")
        assert (found.pattern, found.details["ranks_behind"]) == ("different_seq", [2, 5])

    def test_a_rank_that_says_nothing_at_all_is_named_and_not_accused(self, tmp_path: Path) -> None:
        log = up(8) + "".join(TIMEOUT.format(rank, 12) for rank in range(8) if rank != 5)
        found = failed(tmp_path, {}, log, how="no_progress")
        assert (found.pattern, found.details["ranks_unheard"]) == ("same_seq", [5])
        assert "ranks_behind" not in found.details

    @WORLDS
    def test_all_ranks_at_one_collective_leave_nobody_behind(self, tmp_path: Path, world: int) -> None:
        log = up(world) + "".join(TIMEOUT.format(rank, 12) for rank in range(world))
        found = failed(tmp_path, {}, log, how="no_progress")
        assert (found.pattern, found.blame, found.details["seq"]) == ("same_seq", "candidate", 12)
        assert not found.details.keys() & {"ranks_behind", "ranks_unheard"}

    @pytest.mark.parametrize("missing", [None, 5], ids=["all-up", "rank-5-not-up"])
    def test_silence_after_the_start_needs_every_rank_to_have_started(self, missing: int | None) -> None:
        lines = [line for rank, line in enumerate(up(8).splitlines()) if rank != missing]
        assert read_symptoms(lines).pattern == ("silent_after_init" if missing is None else None)
