"""What real NCCL says of each knob of the tcp and nvlink spaces, and of settings that are forced past legality.

Needs two GPUs or more. With ``NCCLTUNE_RECORDINGS=DIR`` the logs of every launch are kept there.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from fakes import request

from nccltune.machine import facts as machine
from nccltune.records import Measurement, Placement, Steps
from nccltune.space.catalogue import load_catalogue
from nccltune.space.legality import illegal
from nccltune.space.space_file import load_space
from nccltune.trial import environment
from nccltune.trial.paths import launch_paths
from nccltune.trial.runner import LaunchRunner

FACTS = machine.gather(os.environ)
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(180),
    pytest.mark.skipif(FACTS.backend != "nccl" or len(FACTS.gpus) < 2, reason="needs two GPUs and a torch with NCCL"),
]

SHORT = Steps(warmup_min=2, warmup_max=4, timed_min=5, timed_max=5, block=5, timed_s=0.5)
COMMON = {
    "NCCL_ALGO": "allreduce:tree",
    "NCCL_PROTO": "allreduce:simple",
    "NCCL_MIN_NCHANNELS": "4",
    "NCCL_MAX_NCHANNELS": "8",
    "NCCL_BUFFSIZE": "1048576",
}
SOCKETS = {"NCCL_SOCKET_NTHREADS": "2", "NCCL_NSOCKS_PERTHREAD": "4"}
NODE = {"NCCL_P2P_LEVEL": "SYS", "NCCL_NTHREADS": "256"}
EMULATED = Placement(nproc_per_node=2, emulated_nodes=2)
ONE_NODE = Placement(nproc_per_node=2)


def launch(name: str, settings: dict[str, str], placement: Placement, folder: Path) -> Measurement:
    """Launch settings as they are, legal or not, with NCCL's choices in the log."""
    wanted = request(
        name,
        settings,
        backend="nccl",
        placement=placement,
        steps=SHORT,
        log_choices=True,
        options={"sizes": [[1 << 20, 1], [32 << 20, 1]], "dtype": "bf16"},
    )
    wanted = environment.complete(wanted, FACTS.inherited, os.environ)
    outcome = LaunchRunner(folder).run(wanted)
    if kept := os.environ.get("NCCLTUNE_RECORDINGS"):
        shutil.copytree(launch_paths(folder, name).nccl, Path(kept) / name, dirs_exist_ok=True)
    assert isinstance(outcome, Measurement), outcome
    assert outcome.evidence is not None
    return outcome


def all_reduces(evidence) -> set[str]:
    """The pairs of algorithm and protocol that all-reduces of any size got; other collectives are left alone."""
    chosen = [choice for size, choice in evidence.choices.items() if size.startswith("AllReduce ")]
    return {" ".join(choice.split()[:2]) for choice in chosen}


def test_every_knob_of_the_tcp_space_takes_effect_over_sockets(tmp_path):
    settings = COMMON | SOCKETS
    assert settings.keys() == {dimension.name for dimension in load_space("tcp", load_catalogue()).dimensions}
    evidence = launch("tcp-all-knobs", settings, EMULATED, tmp_path).evidence
    assert evidence.refused == {}
    assert evidence.inert == ()
    assert settings.items() <= evidence.echoed.items()
    assert evidence.network == "Socket"
    assert evidence.nnodes == 2
    assert evidence.sockets == (2, 4)
    assert 4 <= evidence.channels <= 8
    assert all_reduces(evidence) == {"Tree Simple"}


def test_every_knob_of_the_nvlink_space_takes_effect_and_sockets_are_inert_there(tmp_path):
    settings = COMMON | NODE
    assert settings.keys() == {dimension.name for dimension in load_space("nvlink", load_catalogue()).dimensions}
    evidence = launch("nvlink-all-knobs", settings | SOCKETS, ONE_NODE, tmp_path).evidence
    assert evidence.refused == {}
    assert set(evidence.inert) == set(SOCKETS)
    assert settings.items() <= evidence.echoed.items()
    assert evidence.nnodes == 1
    assert all(name.startswith("P2P") for name in evidence.transports)
    assert all_reduces(evidence) == {"Tree Simple"}


def test_what_nccl_ignores_or_changes_on_one_node_is_caught(tmp_path):
    forced = {"NCCL_P2P_LEVEL": "loc", "NCCL_NTHREADS": "word", "NCCL_NTHREDS": "256"}
    evidence = launch("nvlink-ignored", forced, ONE_NODE, tmp_path).evidence
    caught = evidence.refused.keys() | set(evidence.inert)
    assert caught == forced.keys()
    assert {"NCCL_P2P_LEVEL", "NCCL_NTHREADS"} <= evidence.refused.keys()


def test_too_many_socket_threads_are_caught(tmp_path):
    forced = {"NCCL_SOCKET_NTHREADS": "32", "NCCL_NSOCKS_PERTHREAD": "1"}
    evidence = launch("tcp-too-many-threads", forced, EMULATED, tmp_path).evidence
    assert "NCCL_SOCKET_NTHREADS" in evidence.refused
    assert evidence.sockets == (16, 1)


@pytest.mark.parametrize(
    ("settings", "placement"),
    [({"NCCL_ALGO": "allreduce:nvls"}, ONE_NODE), ({"NCCL_ALGO": "allreduce:nvls,ring"}, ONE_NODE)],
)
def test_a_multicast_algorithm_with_multicast_switched_off_is_refused_without_a_launch(settings, placement):
    from nccltune.records import Candidate

    reason = illegal(
        Candidate(settings=settings),
        load_catalogue(),
        nccl_version=FACTS.nccl.version_tuple,
        inherited={"NCCL_NVLS_ENABLE": "0"},
        backend="nccl",
        nccl_nodes=placement.nccl_nodes,
    )
    assert reason
    assert "NVLS" in reason.upper()
