"""Studies and NCCL logs that were recorded on two H200 GPUs, read again by today's code."""

from __future__ import annotations

import math
import shutil
import statistics
from collections import Counter
from pathlib import Path

import pytest

from nccltune.records import DEFAULT, Candidate, Evidence, Launch, Measurement, Verdict
from nccltune.space.catalogue import load_catalogue
from nccltune.study.campaign import ranked
from nccltune.study.ledger import Ledger
from nccltune.study.table import write_tables
from nccltune.trial import evidence, model_check
from nccltune.verdict import rounds
from nccltune.verdict.decision import Account, conclude
from nccltune.verdict.sequence import Ask, Ended, Entry, Rule, judge

RECORDINGS = Path(__file__).resolve().parents[1] / "recordings"
STUDIES = sorted(path.name for path in (RECORDINGS / "ledgers").iterdir())
KNOBS = {
    "NCCL_ALGO": "allreduce:tree",
    "NCCL_PROTO": "allreduce:simple",
    "NCCL_MIN_NCHANNELS": "4",
    "NCCL_MAX_NCHANNELS": "8",
    "NCCL_BUFFSIZE": "1048576",
}
SOCKETS = {"NCCL_SOCKET_NTHREADS": "2", "NCCL_NSOCKS_PERTHREAD": "4"}
NODE = {"NCCL_P2P_LEVEL": "SYS", "NCCL_NTHREADS": "256"}


@pytest.fixture
def study(request, tmp_path):
    folder = tmp_path / request.param
    shutil.copytree(RECORDINGS / "ledgers" / request.param, folder)
    with Ledger.open(folder) as ledger:
        yield ledger


def read(name: str, settings: dict[str, str]) -> Evidence:
    log = evidence.read_logs(sorted((RECORDINGS / "nccl" / f"2.28.9-{name}").glob("*.log")))
    return evidence.evidence(log, Candidate(settings=settings), load_catalogue())


def all_reduces(found: Evidence) -> set[str]:
    return {" ".join(choice.split()[:2]) for size, choice in found.choices.items() if size.startswith("AllReduce ")}


@pytest.mark.parametrize("study", STUDIES, indirect=True)
def test_every_launch_was_right_and_ran_under_its_settings(study):
    for launch in study.launches:
        assert isinstance(launch.outcome, Measurement)
        assert (launch.outcome.checks.cases > 0) is (launch.purpose != "batch")
        assert launch.outcome.checks.failures == ()
        assert launch.outcome.evidence is not None
        assert launch.outcome.evidence.refused == {}
        assert launch.outcome.evidence.nnodes == study.plan["placement"]["emulated_nodes"] or 1


@pytest.mark.parametrize("study", STUDIES, indirect=True)
def test_the_tables_hold_every_launch(study):
    trials, launches = write_tables(study)
    assert launches.read_text().count("\n") == 1 + len(study.launches)
    assert trials.read_text().count("\n") == 1 + len(study.trials)


@pytest.mark.parametrize("study", ["2xh200-allreduce-tcp"], indirect=True)
def test_socket_threads_make_an_emulated_network_at_least_four_times_as_fast(study):
    verdict = study.verdict
    assert verdict.word == "unconfirmed"
    assert len(verdict.pairs) == 5
    assert all(pair.default_us / pair.candidate_us >= 4 for pair in verdict.pairs)
    today = fresh(study, verdict.candidate, 5)
    assert [(pair.default_us, pair.candidate_us, pair.gain) for pair in today.pairs] == [
        (pair.default_us, pair.candidate_us, pair.gain) for pair in verdict.pairs
    ]
    assert today.word == "ship"
    assert today.bounds[0] > 3  # faster by more than 300 %
    assert today.interval[0] < verdict.gain < today.interval[1]


@pytest.mark.parametrize("study", ["2xh200-allreduce-tcp-ship"], indirect=True)
def test_an_emulated_network_ends_in_ship_for_the_collective_alone(study):
    verdict = study.verdict
    assert verdict.label == "ship (collective only)"
    assert len(verdict.pairs) == 6
    assert all(pair.default_us / pair.candidate_us >= 4 for pair in verdict.pairs)
    assert verdict.interval[0] > 3.5
    today = fresh(study, verdict.candidate, 20)
    assert (today.word, today.gain) == ("ship", pytest.approx(verdict.gain))
    launched = Counter(launch.purpose for launch in study.launches)
    assert launched["confirm"] == 12, "nothing is launched once the bounds decide"
    assert not any(launch.disturbances.seen for launch in study.launches if launch.disturbances)


@pytest.mark.parametrize("study", ["2xh200-resnet-nvlink"], indirect=True)
def test_a_model_that_nvlink_serves_well_keeps_the_defaults(study):
    assert study.verdict.word == "keep-default"
    assert study.noise.relative < 0.002
    assert ranked(study)[0].value_us == pytest.approx(55_240, rel=0.001)
    tries = study.batch.tries
    assert (study.batch.batch_size, study.batch.reason) == (256, "busy")
    assert [each.batch_size for each in tries] == [32, 64, 128, 256]
    assert [round(each.idle_share, 2) for each in tries] == [0.67, 0.43, 0.04, 0.0]
    profiled = [launch.outcome.communication for launch in study.launches if launch.outcome.communication]
    assert statistics.median(found.inflation for found in profiled) == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("study", ["2xh200-resnet-nvlink"], indirect=True)
def test_the_first_step_of_a_model_is_the_same_under_every_setting_but_for_rounding(study):
    measured = [launch.outcome for launch in study.launches if launch.outcome.checks.first_step]
    wanted = model_check.reference([measured[0]])
    assert len(measured) > 10
    for outcome in measured[1:]:
        found = outcome.checks.first_step
        assert model_check.differs(found, wanted) is None
        assert math.dist(found.gradient[0], wanted.gradient[0]) < 0.2 * wanted.tolerance * wanted.norm[0], "far from it"


@pytest.mark.parametrize("study", ["2xh200-allreduce-nvlink"], indirect=True)
def test_the_best_of_nvlink_is_found_again_from_the_launches(study):
    verdict = study.verdict
    assert verdict.word == "unconfirmed"
    assert all(pair.gain > 0.09 for pair in verdict.pairs)
    assert ranked(study)[0].candidate == verdict.candidate
    assert fresh(study, verdict.candidate, 3).word == "ship"  # one degree of freedom, and yet far enough
    assert ranked(study)[-1].value_us > 10 * verdict.pairs[0].candidate_us


@pytest.mark.parametrize("study", ["2xh200-resnet-tcp"], indirect=True)
def test_a_study_that_was_cut_off_in_its_rounds_has_no_verdict_and_keeps_what_it_has(study):
    assert study.verdict is None
    best = next(entry.candidate for entry in ranked(study) if entry.candidate != DEFAULT)
    pairs = rounds.pairs(study.launches, best)
    assert len(pairs) == 1
    assert judge([Entry(best, pairs)], Rule(min_gain=0.01, rounds=20)) == Ask(2, (best,))
    measured = [launch for launch in study.launches if launch.purpose == "search"]
    assert measured
    assert all(_communication_share(launch) > 0 for launch in measured)


def fresh(study: Ledger, candidate: Candidate, most: int) -> Verdict:
    """What today's test makes of the rounds of a recorded study."""
    rule = Rule(min_gain=0.01, rounds=most)
    ended = judge([Entry(candidate, rounds.pairs(study.launches, candidate))], rule)
    assert isinstance(ended, Ended)
    return conclude(ended, rule, Account())


def _communication_share(launch: Launch) -> float:
    assert isinstance(launch.outcome, Measurement)
    assert launch.outcome.communication is not None
    return launch.outcome.communication.share


def test_every_knob_of_the_tcp_space_is_proven_over_sockets():
    found = read("tcp-all-knobs", KNOBS | SOCKETS)
    assert (found.refused, found.inert) == ({}, ())
    assert (KNOBS | SOCKETS).items() <= found.echoed.items()
    assert (found.network, found.nnodes, found.sockets, found.channels) == ("Socket", 2, (2, 4), 4)
    assert all_reduces(found) == {"Tree Simple"}


def test_every_knob_of_the_nvlink_space_is_proven_and_sockets_are_inert_there():
    found = read("nvlink-all-knobs", KNOBS | NODE | SOCKETS)
    assert found.refused == {}
    assert set(found.inert) == set(SOCKETS)
    assert (KNOBS | NODE).items() <= found.echoed.items()
    assert found.transports == {"P2P/CUMEM": 16}
    assert all_reduces(found) == {"Tree Simple"}


def test_words_that_nccl_ignores_are_caught():
    forced = {"NCCL_P2P_LEVEL": "loc", "NCCL_NTHREADS": "word", "NCCL_NTHREDS": "256"}
    found = read("nvlink-ignored", forced)
    assert {"NCCL_P2P_LEVEL", "NCCL_NTHREADS"} <= found.refused.keys()
    assert found.refused.keys() | set(found.inert) == forced.keys()


def test_socket_threads_that_nccl_cuts_are_caught():
    found = read("tcp-too-many-threads", {"NCCL_SOCKET_NTHREADS": "32", "NCCL_NSOCKS_PERTHREAD": "1"})
    assert "NCCL_SOCKET_NTHREADS" in found.refused
    assert found.sockets == (16, 1)
