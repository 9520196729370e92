"""What NCCL said about each setting of a candidate: taken, changed, refused, or never looked at."""

# ruff: noqa: E501 - lines of logs stand as they are written

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nccltune.records import Candidate, Evidence
from nccltune.space.catalogue import load_catalogue
from nccltune.trial.evidence import complaints, evidence, load_log_patterns, proven, read_logs
from nccltune.trial.nccl_log import parse_text

RECORDINGS = Path(__file__).parents[1] / "recordings" / "nccl"
CATALOGUE = load_catalogue()
INFO = "h1:100:110 [0] NCCL INFO "
WARN = "[2026-11-30 10:00:00] h1:100:110 [0] transport/net_socket.cc:300 NCCL WARN "
RAN = INFO + "Using network Socket\n"


def judge(text: str, completed: bool = True, **asked: str) -> Evidence:
    return evidence(parse_text(text), Candidate(settings=asked), CATALOGUE, completed=completed)


def recorded(name: str, **asked: str) -> Evidence:
    return evidence(read_logs([RECORDINGS / f"2.28.9-{name}.log"]), Candidate(settings=asked), CATALOGUE)


class TestTaken:
    @pytest.mark.parametrize(
        ("name", "asked"),
        [
            ("allreduce-tree", {"NCCL_ALGO": "allreduce:tree", "NCCL_PROTO": "allreduce:simple"}),
            ("ctas", {"NCCL_MIN_CTAS": "4", "NCCL_MAX_CTAS": "4", "NCCL_BUFFSIZE": "1048576", "NCCL_NTHREADS": "256"}),
            ("p2p-loc", {"NCCL_P2P_LEVEL": "LOC"}),
            ("sock-threads", {"NCCL_SOCKET_NTHREADS": "2", "NCCL_NSOCKS_PERTHREAD": "2"}),
        ],
    )
    def test_recorded_runs_took_all_settings(self, name: str, asked: dict[str, str]) -> None:
        found = recorded(name, **asked)
        assert (found.refused, found.inert) == ({}, ())
        assert all(found.echoed[setting] == value for setting, value in asked.items())

    def test_the_facts_of_a_run(self) -> None:
        found = recorded("sock-threads")
        assert (found.nccl_version, found.nranks, found.nnodes, found.network) == ("2.28.9", 2, 2, "Socket")
        assert (found.transports, found.sockets, found.channels) == ({"NET/Socket": 4}, (2, 2), 2)
        assert found.choices["AllReduce 33554432"] == "Ring Simple 2"
        assert found.ll128 is False


class TestRefused:
    def test_a_token_that_nccl_does_not_know(self) -> None:
        assert "foo" in recorded("badtoken", NCCL_ALGO="allreduce:foo").refused["NCCL_ALGO"]

    @pytest.mark.parametrize(("asked", "read"), [("4M", "4"), ("word", "0"), ("010", "8"), ("1e6", "1")])
    def test_a_number_that_nccl_reads_otherwise(self, asked: str, read: str) -> None:
        found = judge(INFO + f"NCCL_BUFFSIZE set by environment to {read}.\n", NCCL_BUFFSIZE=asked)
        assert found.refused == {"NCCL_BUFFSIZE": f"NCCL read {read} instead of {asked}"}

    def test_one_rank_that_read_another_value_is_enough(self) -> None:
        text = INFO + "NCCL_BUFFSIZE set by environment to 1048576.\n"
        text += INFO.replace("[0]", "[1]") + "NCCL_BUFFSIZE set by environment to 4.\n"
        assert "NCCL_BUFFSIZE" in judge(text, NCCL_BUFFSIZE="1048576").refused

    def test_threads_that_are_cut(self) -> None:
        text = INFO + "NCCL_SOCKET_NTHREADS set by environment to 32.\n"
        text += WARN + "NET/Socket : NCCL_SOCKET_NTHREADS is greater than the maximum allowed, setting to 16\n"
        assert "setting to 16" in judge(text, NCCL_SOCKET_NTHREADS="32").refused["NCCL_SOCKET_NTHREADS"]

    def test_sockets_that_are_cut(self) -> None:
        text = INFO + "NCCL_NSOCKS_PERTHREAD set by environment to 16.\n" + INFO
        text += "NCCL_SOCKET_NTHREADS set by environment to 16.\n" + WARN
        text += "NET/Socket : the total number of sockets is greater than the maximum allowed, setting NCCL_NSOCKS_PERTHREAD to 4\n"
        found = judge(text, NCCL_SOCKET_NTHREADS="16", NCCL_NSOCKS_PERTHREAD="16")
        assert set(found.refused) == {"NCCL_NSOCKS_PERTHREAD"}

    def test_a_path_in_lower_case(self) -> None:
        found = judge(RAN, NCCL_P2P_LEVEL="loc")
        assert "LOC" in found.refused["NCCL_P2P_LEVEL"]
        assert found.inert == ()

    def test_threads_that_are_no_multiple_of_32(self) -> None:
        text = INFO + "NCCL_NTHREADS set by environment to 100.\n" + INFO
        text += "Invalid NCCL_NTHREADS 100 (must be a multiple of 32)\n"
        assert "multiple of 32" in judge(text, NCCL_NTHREADS="100").refused["NCCL_NTHREADS"]

    def test_a_complaint_about_another_setting_is_not_held_against_the_candidate(self) -> None:
        text = RAN + INFO + "minCTAs 32 is larger than maxCTAs 8, set both to 8\n"
        assert judge(text, NCCL_BUFFSIZE="1048576").refused == {}
        assert set(judge(text, NCCL_MIN_CTAS="32").refused) == {"NCCL_MIN_CTAS"}

    @pytest.mark.parametrize("refusal", load_log_patterns().refusals, ids=lambda refusal: refusal.sample[:40])
    def test_every_wording_by_its_sample(self, refusal: object) -> None:
        sample = refusal.sample  # type: ignore[attr-defined]
        asked = dict.fromkeys(CATALOGUE.knobs, "allreduce:rong")
        others = [other for other in load_log_patterns().refusals if other is not refusal]
        assert complaints([sample], asked)
        assert not any(other.regex.search(sample) for other in others)


class TestInert:
    def test_a_setting_that_was_never_looked_at(self) -> None:
        assert recorded("p2p-loc", NCCL_SOCKET_NTHREADS="2").inert == ("NCCL_SOCKET_NTHREADS",)

    def test_a_name_that_no_nccl_knows(self) -> None:
        assert recorded("ctas", NCCL_BUFSIZE="1048576").inert == ("NCCL_BUFSIZE",)

    def test_sockets_without_threads(self) -> None:
        text = RAN + INFO + "NCCL_NSOCKS_PERTHREAD set by environment to 4.\n"
        assert judge(text, NCCL_NSOCKS_PERTHREAD="4").inert == ("NCCL_NSOCKS_PERTHREAD",)

    def test_a_launch_that_broke_off_proves_no_silence(self) -> None:
        assert judge(RAN, completed=False, NCCL_BUFFSIZE="1048576").inert == ()

    def test_an_empty_log_proves_no_silence(self) -> None:
        found = judge("", NCCL_BUFFSIZE="1048576")
        assert (found.inert, found.refused, found.nranks) == ((), {}, None)

    def test_what_nccl_does_not_read_is_not_asked_of_its_log(self) -> None:
        assert judge(RAN, OMP_NUM_THREADS="2").inert == ()


class TestProof:
    def test_an_effect_line_gives_the_value(self) -> None:
        knob = CATALOGUE.knobs["NCCL_NSOCKS_PERTHREAD"]
        assert proven(["NET/Socket: Using 4 threads and 2 sockets per thread"], knob) == ("2",)

    @pytest.mark.parametrize(
        "knob", [knob for knob in CATALOGUE.knobs.values() if knob.proof_line], ids=lambda knob: knob.name
    )
    def test_every_proof_line_of_the_catalogue_is_found_again(self, knob: object) -> None:
        line = knob.proof_line  # type: ignore[attr-defined]
        for hole in ("threads", "value"):
            line = line.replace("{" + hole + "}", "8")
        log = parse_text(INFO + line + "\n")
        name = knob.name  # type: ignore[attr-defined]
        if "{value}" in knob.proof_line:  # type: ignore[attr-defined]
            assert log.echoed.get(name) == ("8",) or proven(log.texts, knob) == ("8",)  # type: ignore[arg-type]
        else:
            assert proven(log.texts, knob)  # type: ignore[arg-type]


class TestAnyInput:
    @settings(max_examples=100, deadline=None)
    @given(text=st.text(), value=st.text(st.characters(min_codepoint=33, exclude_categories=["Cc", "Cs"]), min_size=1))
    def test_no_text_raises(self, text: str, value: str) -> None:
        judge(text, NCCL_ALGO=value, NCCL_P2P_LEVEL=value, NCCL_BUFFSIZE=value)

    def test_a_file_that_is_missing_says_nothing(self, tmp_path: Path) -> None:
        assert read_logs([tmp_path / "none.log"]).lines == 0
