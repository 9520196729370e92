"""One answer for each kind of file, the same whatever happened to the file on its way."""

# ruff: noqa: E501 - lines of logs stand as they are written

from __future__ import annotations

import gzip
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nccltune.errors import StorageError, UsageError
from nccltune.explain import explain, kind_of, words

_SPEC = importlib.util.spec_from_file_location("nccl_samples", Path(__file__).with_name("nccl_samples.py"))
assert _SPEC
assert _SPEC.loader
samples = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(samples)

MATRIX = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tNV4\t0-15\t0\nGPU1\tNV4\t X \t16-31\t1\n"
# What names hosts, processes or pointers, and so follows a change of names.
NAMED = {"communicator_ids", "root_line"}
# A failure as torchrun prints it, made up of its usual parts.
FAILED = """h1:71:99 [0] NCCL INFO NCCL version 2.27.3+cuda12.9
h1:71:99 [0] NCCL INFO comm 0x7f1 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 4b000 commId 0xfeed - Init START
h1:72:98 [1] NCCL INFO comm 0x7f2 rank 1 nranks 2 cudaDev 1 nvmlDev 1 busId 5b000 commId 0xfeed - Init START
[2026-03-01 10:00:00] h1:71:99 [0] misc/shmutils.cc:88 NCCL WARN Error: failed to extend /dev/shm/nccl-Ab to 9 bytes, error: No space left on device (28)
[2026-03-01 10:00:00] h1:72:98 [1] proxy.cc:1326 NCCL WARN Socket recv failed
"""


def answer(path: Path, text: str | bytes) -> dict[str, Any]:
    if isinstance(text, bytes):
        path.write_bytes(text)
    else:
        path.write_text(text)
    return explain([path])


def facts(found: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in found.items() if key not in NAMED}


class TestKinds:
    @pytest.mark.parametrize(
        ("start", "kind"),
        [
            (b"", "log"),
            (b"NCCL version 2.28.9+cuda13.0\n", "log"),
            (MATRIX.encode(), "topology"),
            (b"  \x1b[4mGPU0\tGPU1\tCPU Affinity\x1b[0m\nGPU0\t X \tPIX\t0-7\n", "topology"),
            (b'{"schemaVersion": 1, "traceEvents": []}', "traces"),
            (b'\xef\xbb\xbf{"traceEvents": [', "traces"),
            (b'{"level": "info", "message": "structured logs are no traces"}', "log"),
            (b"GPU0 is on NUMA node 1, says the training script\n", "log"),
        ],
    )
    def test_content_tells(self, start: bytes, kind: str) -> None:
        assert kind_of(start) == kind

    def test_files_of_different_kinds_are_refused(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_text(MATRIX)
        (tmp_path / "b").write_text("NCCL version 2.28.9+cuda13.0\n")
        with pytest.raises(UsageError, match="different kinds"):
            explain([tmp_path / "a", tmp_path / "b"])

    def test_a_missing_file_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(StorageError, match="nowhere"):
            explain([tmp_path / "nowhere"])

    def test_no_file_is_refused(self) -> None:
        with pytest.raises(UsageError):
            explain([])


class TestLogs:
    def test_a_healthy_run(self) -> None:
        found = explain([samples.RECORDINGS / "2.28.9-nvlink-default.log"])
        assert found["class"] is None
        assert found["failure_class"] is None
        assert (found["nranks"], found["nnodes"], found["transports"]) == (2, 1, {"P2P/CUMEM": 48})
        assert (found["fallback_to_socket"], found["fallback_matters"]) == (True, False)
        assert {
            "func": "AllReduce",
            "bytes": 33554432,
            "algo": "Ring",
            "proto": "Simple",
            "channels": [0, 23],
        } in found["algo_proto"]
        assert found["warnings"] == []

    def test_a_failed_run(self, tmp_path: Path) -> None:
        found = answer(tmp_path / "log", FAILED)
        assert (found["class"], found["blame"], found["stop_search"]) == ("shm_too_small", "environment", True)
        assert (found["nccl_version"], found["nranks"], found["init_complete_ranks"]) == ("2.27.3", 2, 0)
        assert "the start is confirmed for 0 of 2 ranks" in found["warnings"]

    def test_one_file_a_rank_is_one_run(self, tmp_path: Path) -> None:
        lines = FAILED.splitlines(keepends=True)
        (tmp_path / "r0").write_text("".join(line for line in lines if "[0]" in line))
        (tmp_path / "r1").write_text("".join(line for line in lines if "[1]" in line))
        assert facts(explain([tmp_path / "r0", tmp_path / "r1"])) == facts(answer(tmp_path / "log", FAILED))

    @pytest.mark.parametrize("change", samples.CHANGES)
    @pytest.mark.parametrize("name", ["made up", *(path.stem for path in samples.RECORDED)])
    def test_the_way_to_the_reader_changes_nothing(self, name: str, change: str, tmp_path: Path) -> None:
        text = FAILED if name == "made up" else (samples.RECORDINGS / f"{name}.log").read_text()
        changed = answer(tmp_path / "changed", samples.CHANGES[change](text))
        assert facts(changed) == facts(answer(tmp_path / "log", text))

    def test_sockets_on_purpose_are_no_fallback(self, tmp_path: Path) -> None:
        echo = "h1:1:1 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.\n"
        used = "h1:1:1 [0] NCCL INFO Using network Socket\n"
        assert answer(tmp_path / "a", used)["fallback_to_socket"] is True
        assert answer(tmp_path / "b", echo + used)["fallback_to_socket"] is False
        assert answer(tmp_path / "c", echo)["fallback_to_socket"] is None

    def test_worlds_of_one_rank_are_pointed_out(self, tmp_path: Path) -> None:
        line = "h{0}:1:1 [0] NCCL INFO comm 0x{0} rank 0 nranks 1 cudaDev 0 nvmlDev 0 busId 30 commId 0x{0} - Init COMPLETE\n"
        found = answer(tmp_path / "log", line.format(1) + line.format(2))
        assert any("did not find each other" in warning for warning in found["warnings"])

    def test_nothing_known_is_nothing_said(self, tmp_path: Path) -> None:
        for content in ("", b"\x00\x01\xff" * 99, "step 1 loss 0.3\n"):
            found = answer(tmp_path / "log", content)
            known = {key: value for key, value in found.items() if value not in (None, [], {}, 0)}
            assert known == {"kind": "log"}
            assert words(found) == "Nothing that NCCL or torchrun says was found."

    def test_another_encoding(self, tmp_path: Path) -> None:
        assert answer(tmp_path / "wide", FAILED.encode("utf-16")) == answer(tmp_path / "log", FAILED)
        assert answer(tmp_path / "latin", ("ä" + FAILED).encode("latin-1")) == answer(tmp_path / "log", FAILED)


class TestOtherKinds:
    def test_a_matrix(self, tmp_path: Path) -> None:
        found = answer(tmp_path / "topo", MATRIX)
        assert (found["kind"], found["gpus"], found["nvlink"], found["links"]) == ("topology", 2, True, {"0-1": "NV4"})

    def test_traces(self, tmp_path: Path) -> None:
        events = [
            {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "ts": 0, "dur": 100, "pid": 1, "tid": 1},
            {
                "ph": "X",
                "cat": "kernel",
                "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)",
                "ts": 10,
                "dur": 20,
                "pid": 0,
                "tid": 7,
            },
            {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 40, "dur": 30, "pid": 0, "tid": 8},
        ]
        body = json.dumps({"schemaVersion": 1, "traceEvents": events}).encode()
        plain, packed = answer(tmp_path / "t.json", body), answer(tmp_path / "t.json.gz", gzip.compress(body))
        assert (plain["kind"], plain["comm_kernels"], plain["comm_us"]) == ("traces", 1, 20.0)
        assert packed == plain

    def test_half_a_trace_is_named_and_invents_nothing(self, tmp_path: Path) -> None:
        found = answer(tmp_path / "t.json", '{"traceEvents": [{"ph": "X", "cat": "ker')
        assert found.get("comm_us") is None
        assert "t.json" in found["problems"][0]


class TestWords:
    def test_a_failure_comes_first_with_what_to_do(self, tmp_path: Path) -> None:
        said = words(answer(tmp_path / "log", FAILED)).splitlines()
        assert said[0].startswith("Failed: shm_too_small (blame: environment)")
        assert "--shm-size" in said[1]
        assert "nccl version: 2.27.3" in said

    def test_a_matrix(self, tmp_path: Path) -> None:
        assert "nvlink: yes" in words(answer(tmp_path / "topo", MATRIX)).splitlines()


class TestAnyInput:
    @settings(max_examples=100, deadline=None)
    @given(
        data=st.one_of(
            st.binary(max_size=2000),
            st.text().map(str.encode),
            st.sampled_from([b"\x1f\x8b", b"\x1f\x8b\x08", b"\xff\xfe", b'{"traceEvents": ', b"GPU0 GPU1\n"]).flatmap(
                lambda start: st.binary(max_size=200).map(lambda rest: start + rest)
            ),
        )
    )
    def test_no_content_raises(self, data: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
        words(answer(tmp_path_factory.mktemp("any") / "any", data))
