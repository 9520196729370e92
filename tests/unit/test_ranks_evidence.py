"""NCCL's logs of eight ranks: on one node and on two emulated ones, in a file each and in one that they share."""

# ruff: noqa: E501 - lines of logs stand as they are written

from __future__ import annotations

import random
from pathlib import Path

import pytest

from nccltune.records import Candidate, Evidence
from nccltune.space.catalogue import load_catalogue
from nccltune.trial.evidence import evidence, read_logs
from nccltune.trial.nccl_facts import NcclLog
from nccltune.trial.nccl_log import parse_lines

CATALOGUE = load_catalogue()
CHANNELS = 2
SHAPES = pytest.mark.parametrize(
    ("world", "nodes"), [(2, 1), (3, 1), (8, 1), (8, 2), (2, 2)], ids=["2", "3", "8", "2x4", "2x1"]
)


def log_of(rank: int, world: int, nodes: int, settings: dict[str, str]) -> list[str]:
    """The lines of one rank as NCCL 2.28 writes them; all ranks are processes of one host."""
    each = world // nodes
    who = f"vm:{600 + rank}:{700 + rank} [{rank}] NCCL INFO "
    lines = [f"{name} set by environment to {value}." for name, value in settings.items()]
    if nodes > 1:
        lines += [f"NCCL_HOSTID set by environment to emulated-{rank // each}", "Using network Socket"]
    if rank == 0:
        lines.append("NCCL version 2.28.9+cuda13.0")
    lines += [
        f"ncclCommInitRankConfig comm 0x5{rank}0 rank {rank} nranks {world} cudaDev {rank} nvmlDev {rank} busId {rank}b000 commId 0xabc - Init START",
        f"comm 0x5{rank}0 rank {rank} nRanks {world} nNodes {nodes} localRanks {each} localRank {rank % each} MNNVL 0",
        f"{CHANNELS} coll channels, {CHANNELS} collnet channels, 0 nvls channels, {CHANNELS} p2p channels, {CHANNELS} p2p channels per peer",
    ]
    other = (rank + 1) % world
    for channel in range(CHANNELS):
        if rank // each == other // each:
            lines.append(f"Channel {channel:02}/0 : {rank}[{rank}] -> {other}[{other}] via P2P/CUMEM")
        else:
            lines.append(f"Channel {channel:02}/0 : {rank}[{rank}] -> {other}[{other}] [send] via NET/Socket/0")
    lines.append(
        f"ncclCommInitRankConfig comm 0x5{rank}0 rank {rank} nranks {world} cudaDev {rank} nvmlDev {rank} busId {rank}b000 commId 0xabc - Init COMPLETE"
    )
    if rank == 0:
        lines.append("AllReduce: 33554432 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..1}")
    return [who + line for line in lines]


def logs(world: int, nodes: int, settings: dict[str, str] | None = None) -> list[list[str]]:
    return [log_of(rank, world, nodes, settings or {}) for rank in range(world)]


def mixed(streams: list[list[str]], seed: int = 0) -> list[str]:
    """One file that all ranks wrote at the same time: each keeps the order of its own lines."""
    order, left, found = random.Random(seed), [list(lines) for lines in streams], []
    while any(left):
        found.append(order.choice([lines for lines in left if lines]).pop(0))
    return found


def judged(log: NcclLog, completed: bool = True, **asked: str) -> Evidence:
    return evidence(log, Candidate(settings=asked), CATALOGUE, completed=completed)


@SHAPES
def test_ranks_nodes_and_transports_are_counted(world: int, nodes: int) -> None:
    found = parse_lines(mixed(logs(world, nodes)))
    assert (found.nranks, found.nnodes, found.nnodes_basis) == (world, nodes, "NCCL's own count")
    assert (found.init_complete_ranks, found.processes_seen, found.hosts) == (world, world, 1)
    assert (found.communicators, found.channels, found.version) == (1, CHANNELS, "2.28.9")
    across = nodes if nodes > 1 else 0
    wanted = {"P2P/CUMEM": CHANNELS * (world - across), "NET/Socket": CHANNELS * across}
    assert found.transports == {kind: count for kind, count in wanted.items() if count}
    assert len(found.connections) == world


@SHAPES
def test_a_file_for_each_rank_says_the_same_as_one_for_all(world: int, nodes: int, tmp_path: Path) -> None:
    streams = logs(world, nodes, {"NCCL_BUFFSIZE": "1048576"})
    paths = []
    for rank, lines in enumerate(streams):
        paths.append(tmp_path / f"vm.{600 + rank}.log")
        paths[-1].write_text("\n".join(lines) + "\n")
    together = judged(parse_lines(mixed(streams, seed=world)), NCCL_BUFFSIZE="1048576")
    assert judged(read_logs(paths), NCCL_BUFFSIZE="1048576") == together
    assert (together.refused, together.inert) == ({}, ())
    assert together.choices == {"AllReduce 33554432": "Ring Simple 2"}


def test_the_identities_of_emulated_nodes_are_facts_and_no_complaint() -> None:
    found = judged(parse_lines(mixed(logs(8, 2))), NCCL_SOCKET_NTHREADS="2")
    assert found.echoed["NCCL_HOSTID"] == "emulated-0 | emulated-1"
    assert (found.nnodes, found.network, found.refused) == (2, "Socket", {})
    assert found.inert == ("NCCL_SOCKET_NTHREADS",)


@pytest.mark.parametrize("odd", [0, 5, 7], ids=lambda rank: f"rank-{rank}")
def test_one_rank_of_eight_that_read_another_value_refuses_the_candidate(odd: int) -> None:
    streams = logs(8, 1, {"NCCL_BUFFSIZE": "1048576"})
    streams[odd] = log_of(odd, 8, 1, {"NCCL_BUFFSIZE": "4194304"})
    found = judged(parse_lines(mixed(streams)), NCCL_BUFFSIZE="1048576")
    assert found.refused == {"NCCL_BUFFSIZE": "NCCL read 4194304 instead of 1048576"}


@pytest.mark.parametrize("seed", range(5))
def test_how_the_lines_of_the_ranks_are_mixed_says_nothing(seed: int) -> None:
    assert judged(parse_lines(mixed(logs(8, 2), seed))) == judged(parse_lines(mixed(logs(8, 2), 99)))


def test_a_rank_that_never_came_up_is_missed() -> None:
    streams = logs(8, 1)
    streams[5] = [line for line in streams[5] if "Init COMPLETE" not in line]
    assert parse_lines(mixed(streams)).init_complete_ranks == 7
