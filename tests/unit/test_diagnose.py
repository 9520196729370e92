"""Whose fault it was: every pattern by its sample, causes before consequences, and what needs more than the log."""

# ruff: noqa: E501 - lines of logs stand as they are written

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nccltune.records import Failure, ResultFile
from nccltune.trial.diagnose import diagnose, failure, read_error_files
from nccltune.trial.failures import load_failures
from nccltune.trial.process import Ended
from nccltune.trial.symptoms import read_symptoms

RECORDINGS = Path(__file__).parents[1] / "recordings" / "nccl"
SAMPLES = [(entry.name, pattern.sample) for entry in load_failures().classes for pattern in entry.patterns]


def ended(reason: str = "exited", phase: str | None = None, returncode: int | None = 1) -> Ended:
    return Ended(reason=reason, returncode=returncode, wall_s=12.0, survivors=(), phase=phase)  # type: ignore[arg-type]


class Case:
    """A launch folder's worth of files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "launch.log"
        self.errors: list[Path] = []

    def error(self, message: str, timestamp: int, callstack: str = "") -> None:
        path = self.folder / f"error{len(self.errors)}.json"
        body = {"message": message, "extraInfo": {"py_callstack": callstack, "timestamp": str(timestamp)}}
        path.write_text(json.dumps({"message": body}))
        self.errors.append(path)

    def diagnose(self, text: str = "", how: Ended | None = None, result: ResultFile | None = None) -> Failure:
        self.log.write_text(text)
        return diagnose(result=result, ended=how or ended(), error_files=self.errors, log=self.log, nccl_logs=[])


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


class TestTable:
    @pytest.mark.parametrize(("name", "sample"), SAMPLES)
    def test_every_sample_gives_its_class(self, name: str, sample: str) -> None:
        hit = load_failures().hit(sample)
        assert hit is not None
        assert hit.name == name

    @pytest.mark.parametrize("prefix", ["3: ", "[rank1]: ", "[trainer3]:", "node7: [default0]:"])
    @pytest.mark.parametrize(("name", "sample"), SAMPLES)
    def test_a_collectors_prefix_changes_nothing(self, prefix: str, name: str, sample: str) -> None:
        hit = load_failures().hit(prefix + sample)
        assert hit is not None
        assert hit.name == name

    def test_the_classes_that_others_rely_on_exist(self) -> None:
        wanted = """shm_too_small no_socket_interface duplicate_gpu hang_timeout nvls_unavailable unsupported_algo cuda_oom
            port_in_use remote_exit network_error wrong_data nccl_mismatch workload_error no_result startup_timeout
            total_timeout environment_changed launcher_missing segfault host_oom unsupported_dtype ranks_disagree
            invalid_setting python_import_error"""
        assert set(wanted.split()) <= set(load_failures().by_name)

    def test_every_class_says_what_to_do(self) -> None:
        assert all(entry.message and entry.advice for entry in load_failures().classes)

    def test_environment_faults_of_the_machine_stop_the_study(self) -> None:
        table = load_failures().by_name
        assert table["shm_too_small"].stop
        assert table["duplicate_gpu"].stop
        assert not table["unsupported_algo"].stop
        assert table["port_in_use"].retry

    def test_an_unknown_class_is_refused(self) -> None:
        with pytest.raises(KeyError):
            failure("no_such_class")

    def test_a_failure_takes_message_and_facts(self) -> None:
        built = failure("wrong_data", "allreduce of 1 MiB: 3 of 4 wrong\nmore", size=4, unknown=None)
        assert (built.message, built.details) == ("allreduce of 1 MiB: 3 of 4 wrong", {"size": 4})


class TestCauses:
    def test_a_cause_wins_over_what_its_peers_saw(self, case: Case) -> None:
        text = """h1:1:2 [1] proxy.cc:1458 NCCL WARN Socket recv failed
h1:3:4 [0] misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-Q to 9 bytes, error: No space left on device (28)
[rank1]:[E1] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE, Timeout(ms)=9) ran for 10 ms
"""
        found = case.diagnose(text)
        assert (found.name, found.blame, found.stop, found.retry) == ("shm_too_small", "environment", True, False)

    def test_memory_that_ran_out_on_one_rank_explains_the_others_timeout(self, case: Case) -> None:
        text = """[rank1]:[E1] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE, Timeout(ms)=9) ran for 10 ms
[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
"""
        assert case.diagnose(text).name == "cuda_oom"

    def test_the_setting_is_blamed_only_when_the_log_shows_it(self, case: Case) -> None:
        symptom = "NCCL WARN Bootstrap : no socket interface found\n"
        assert "blame_setting" not in case.diagnose(symptom).details
        echo = "h1:1:1 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth9\n"
        assert case.diagnose(echo + symptom).details["blame_setting"] == "NCCL_SOCKET_IFNAME"

    def test_an_algorithm_that_is_missing(self, case: Case) -> None:
        text = "[rank0]: No algorithm/protocol nor symKernelId available for function Reduce with datatype ncclFloat8e4m3. NCCL_ALGO was set to allreduce:nvls."
        details = case.diagnose(text).details
        assert (details["collective"], details["datatype"]) == ("Reduce", "ncclFloat8e4m3")
        assert (details["blame_setting"], details["value"]) == ("NCCL_ALGO", "allreduce:nvls")

    def test_a_harmless_warning_is_no_failure(self, case: Case) -> None:
        text = """h1:1:1 [0] misc/ibvwrap.cc:63 NCCL WARN Failed to open libibverbs.so[.1]
[2026-01-01 00:00:00] h1:1:1 [0] ras/client_support.cc:159 NCCL WARN Call to bind failed: Address already in use
"""
        assert case.diagnose(text).name == "no_result"

    @pytest.mark.parametrize("name", ["tree-all", "badtoken"])
    def test_recorded_failures(self, name: str) -> None:
        log = RECORDINGS / f"2.28.9-{name}.log"
        found = diagnose(result=None, ended=ended(), error_files=[], log=log, nccl_logs=[])
        wanted = {"tree-all": "unsupported_algo", "badtoken": "invalid_setting"}
        assert (found.name, found.blame) == (wanted[name], "candidate")
        assert found.details["nccl_version"] == "2.28.9"
        assert found.details["exit_code"] == 1
        assert found.log_tail

    def test_nccls_own_logs_count_too(self, case: Case, tmp_path: Path) -> None:
        case.log.write_text("")
        own = tmp_path / "nccl.log"
        own.write_text("init.cc:916 NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 4b000\n")
        found = diagnose(result=None, ended=ended(), error_files=[], log=case.log, nccl_logs=[own])
        assert (found.name, found.blame, found.details["bus_id"]) == ("duplicate_gpu", "workload", "4b000")


class TestHangs:
    LINE = (
        "[rank{0}]:[E1130 10:00:01.0 ProcessGroupNCCL.cpp:683] [Rank {0}] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum={1}, OpType={2}, NumelIn=4, NumelOut=4, Timeout(ms)=30000) ran for 30012 milliseconds before timing out.\n"
    )

    def test_all_ranks_at_the_same_collective(self, case: Case) -> None:
        found = case.diagnose("".join(self.LINE.format(rank, 12, "ALLREDUCE") for rank in range(4)))
        assert (found.name, found.pattern, found.blame, found.retry) == ("hang_timeout", "same_seq", "candidate", True)
        assert (found.details["seq"], found.details["op"], found.details["timeout_ms"]) == (12, "ALLREDUCE", 30000)

    def test_ranks_at_different_collectives(self, case: Case) -> None:
        found = case.diagnose(self.LINE.format(0, 12, "ALLREDUCE") + self.LINE.format(1, 11, "BROADCAST"))
        assert (found.pattern, found.blame, found.retry) == ("different_seq", "unknown", True)
        assert found.details["seq_by_rank"] == {"0": 12, "1": 11}
        assert "seq" not in found.details

    def test_a_rank_that_never_asked_is_behind(self, case: Case) -> None:
        text = self.LINE.format(0, 12, "ALLREDUCE") + (
            "[rank1]:[E1130 10:00:02.0 ProcessGroupNCCL.cpp:1700] [PG ID 0 PG GUID 0(default_pg) Rank 1] Received a dump signal due to a"
            " collective timeout from rank 0 and we will try our best to dump the debug info. Last enqueued NCCL work: 11,"
            " last completed NCCL work: 11.\n"
        )
        assert case.diagnose(text).pattern == "different_seq"

    def test_one_rank_alone_leaves_the_pattern_open(self, case: Case) -> None:
        assert case.diagnose(self.LINE.format(0, 12, "ALLREDUCE")).pattern is None

    def test_older_torch_names_no_number(self, case: Case) -> None:
        line = "[E ProcessGroupNCCL.cpp:587] [Rank {}] Watchdog caught collective operation timeout: WorkNCCL(OpType=ALLREDUCE, TensorShape=[1], Timeout(ms)=1800000) ran for 1803443 milliseconds before timing out.\n"
        found = case.diagnose(line.format(0) + line.format(1))
        assert (found.pattern, found.details["timeout_ms"], "seq" in found.details) == (None, 1800000, False)

    def test_groups_are_compared_on_their_own(self, case: Case) -> None:
        line = "[rank{0}]:[E] [PG ID {1} PG GUID {1}(x) Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={2}, OpType=ALLREDUCE, Timeout(ms)=9) ran for 10 milliseconds\n"
        text = line.format(0, 1, 5) + line.format(1, 1, 5) + line.format(0, 2, 77)
        assert case.diagnose(text).pattern == "same_seq"

    INIT = "h1:10{0}:1 [{0}] NCCL INFO comm 0x7 rank {0} nranks 2 cudaDev {0} busId 4 commId 0xab - Init COMPLETE\n"

    def test_silence_after_a_complete_start(self, case: Case) -> None:
        found = case.diagnose(self.INIT.format(0) + self.INIT.format(1), ended("no_progress", "warmup"))
        assert (found.name, found.pattern, found.blame) == ("hang_timeout", "silent_after_init", "environment")
        assert "warmup" in found.message

    def test_a_start_that_not_all_ranks_ended_is_not_silence_after_it(self, case: Case) -> None:
        assert case.diagnose(self.INIT.format(0), ended("no_progress", "warmup")).pattern is None

    def test_a_hang_between_steps_is_the_candidates(self, case: Case) -> None:
        found = case.diagnose(self.INIT.format(0) + self.INIT.format(1), ended("no_progress", "timed"))
        assert (found.pattern, found.blame) == (None, "candidate")


class TestEnds:
    @pytest.mark.parametrize(
        ("reason", "name"),
        [
            ("startup_timeout", "startup_timeout"),
            ("no_progress", "hang_timeout"),
            ("total_timeout", "total_timeout"),
            ("stopped", "stopped"),
            ("launcher_missing", "launcher_missing"),
        ],
    )
    def test_reasons(self, case: Case, reason: str, name: str) -> None:
        assert case.diagnose(how=ended(reason, "timed")).name == name

    def test_what_our_own_kill_leaves_in_the_log_explains_nothing(self, case: Case) -> None:
        text = (
            "E1130 torch/distributed/elastic/multiprocessing/api.py:986] failed (exitcode: -9) local_rank: 0 (pid: 9)\n"
            "NCCL WARN Socket recv failed\n"
        )
        assert case.diagnose(text, ended("total_timeout", "timed")).name == "total_timeout"

    @pytest.mark.parametrize(
        ("code", "name", "signal"),
        [
            (-7, "shm_too_small", 7),
            (135, "shm_too_small", 7),
            (-11, "segfault", 11),
            (139, "segfault", 11),
            (-9, "host_oom", 9),
            (-6, "aborted", 6),
        ],
    )
    def test_signals(self, case: Case, code: int, name: str, signal: int) -> None:
        text = f"E1130 api.py:986] failed (exitcode: {code}) local_rank: 3 (pid: 77) of binary: /usr/bin/python\n"
        found = case.diagnose(text)
        assert (found.name, found.details["signal"]) == (name, signal)
        assert (found.details["exit_code"], found.details["first_failed_local_rank"]) == (code, 3)

    def test_the_root_cause_of_torchrun_comes_first(self, case: Case) -> None:
        text = """E api.py:986] failed (exitcode: -15) local_rank: 0 (pid: 70) of binary: /usr/bin/python
Root Cause (first observed failure):
[0]:
  time      : 2026-11-30_10:47:47
  host      : node0
  rank      : 9 (local_rank: 1)
  exitcode  : -11 (pid: 71)
  error_file: <N/A>
"""
        found = case.diagnose(text)
        assert found.name == "segfault"
        assert (found.details["exit_code"], found.details["first_failed_local_rank"]) == (-11, 1)

    def test_an_exit_code_alone_says_nothing(self, case: Case) -> None:
        assert case.diagnose("failed (exitcode: 1) local_rank: 0 (pid: 7) of binary: python\n").name == "no_result"

    def test_nothing_at_all(self, tmp_path: Path) -> None:
        found = diagnose(
            result=None, ended=ended(), error_files=[tmp_path / "no"], log=tmp_path / "no", nccl_logs=[tmp_path / "no"]
        )
        assert (found.name, found.blame) == ("no_result", "unknown")


class TestErrorFiles:
    def test_the_first_failing_rank_is_quoted(self, case: Case) -> None:
        case.error("ValueError: late", 200)
        case.error("KeyError: 'early'", 100)
        found = case.diagnose()
        assert (found.name, found.blame, found.message) == ("workload_error", "workload", "KeyError: 'early'")

    def test_a_pattern_in_the_error_wins_over_workload_error(self, case: Case) -> None:
        case.error(
            "DistBackendError: NCCL error\nLast error:\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA device 4b000",
            5,
        )
        assert case.diagnose().name == "duplicate_gpu"

    def test_a_text_instead_of_a_mapping(self, case: Case) -> None:
        path = case.folder / "old.json"
        path.write_text(json.dumps({"message": "RuntimeError: as older agents wrote it"}))
        case.errors.append(path)
        assert case.diagnose().message == "RuntimeError: as older agents wrote it"

    @settings(max_examples=60, deadline=None)
    @given(
        body=st.binary(max_size=200)
        | st.recursive(
            st.none() | st.booleans() | st.floats() | st.text(),
            lambda children: (
                st.lists(children, max_size=3)
                | st.dictionaries(st.sampled_from(["message", "extraInfo", "timestamp"]), children, max_size=3)
            ),
        )
    )
    def test_no_content_raises(self, body: object, tmp_path_factory: pytest.TempPathFactory) -> None:
        path = tmp_path_factory.mktemp("error") / "error.json"
        path.write_bytes(body if isinstance(body, bytes) else json.dumps(body).encode())
        for error in read_error_files([path]):
            assert error.timestamp is None or math.isfinite(error.timestamp)

    def test_a_traceback_in_the_log_is_enough(self, case: Case) -> None:
        text = "[rank0]: Traceback (most recent call last):\n[rank0]: my_model.Broken: no weights\n[rank0]: ValueError: no weights here\n"
        found = case.diagnose(text)
        assert (found.name, found.message) == ("workload_error", "ValueError: no weights here")


class TestResults:
    def result(self, name: str) -> ResultFile:
        return ResultFile(token="t", status="failed", failure=name, detail="what the harness saw")

    def test_the_harness_knows_best(self, case: Case) -> None:
        found = case.diagnose("NCCL WARN Socket recv failed\n", result=self.result("wrong_data"))
        assert (found.name, found.blame, found.message) == ("wrong_data", "candidate", "what the harness saw")

    def test_a_general_error_leaves_room_for_the_cause(self, case: Case) -> None:
        text = 'NCCL WARN Unrecognized element token "x" when parsing "allreduce:x"\n'
        assert case.diagnose(text, result=self.result("workload_error")).name == "invalid_setting"
        assert case.diagnose("", result=self.result("workload_error")).message == "what the harness saw"

    def test_a_class_that_nobody_knows_is_not_repeated(self, case: Case) -> None:
        assert case.diagnose("", result=self.result("gremlins")).name == "no_result"


class TestAnyInput:
    @settings(max_examples=200, deadline=None)
    @given(text=st.text())
    def test_no_text_raises(self, text: str) -> None:
        read_symptoms(text.splitlines())

    @settings(max_examples=200, deadline=None)
    @given(
        st.lists(
            st.sampled_from(
                [
                    *["0", "7", "-9", "99999999999999999999999"],
                    *load_failures().literals,
                    "[rank1]:",
                    "SeqNum=",
                    "WorkNCCL(",
                    ") ran for",
                    "Timeout(ms)=",
                    "failed (exitcode: ",
                    ") local_rank: ",
                    "Root Cause (first observed failure)",
                    "\n",
                ]
            ),
            max_size=30,
        )
    )
    def test_no_words_of_the_format_raise(self, words: list[str]) -> None:
        read_symptoms("".join(words).splitlines())
