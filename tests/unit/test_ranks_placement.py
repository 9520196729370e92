"""Ranks on nodes, real and emulated: each is on exactly one, all nodes are equal, and what cannot be is refused."""

from __future__ import annotations

from collections import Counter

import pytest
from fakes import request
from hypothesis import given
from hypothesis import strategies as st

from nccltune.errors import MachineError, UsageError
from nccltune.records import Limits, Placement
from nccltune.trial import environment, launch
from nccltune.trial.paths import launch_paths
from nccltune.trial.placement import limits_here, place

WORLDS = pytest.mark.parametrize("ranks", [2, 3, 8], ids=lambda ranks: f"{ranks}-ranks")


class TestPlaces:
    @WORLDS
    @pytest.mark.parametrize("backend", ["nccl", "gloo"])
    def test_as_many_ranks_as_asked_for(self, backend, ranks):
        found = place(backend=backend, gpus=8 if backend == "nccl" else 0, cores=2, nproc=ranks)
        assert (found.world_size, found.nccl_nodes, found.nnodes) == (ranks, 1, 1)

    @pytest.mark.parametrize("backend", ["nccl", "gloo"])
    def test_one_rank_is_refused_in_so_many_words(self, backend):
        with pytest.raises(UsageError) as raised:
            place(backend=backend, gpus=8, cores=2, nproc=1)
        assert raised.value.what == "one rank alone has nobody to talk to, so there is nothing to tune"
        assert raised.value.do == "give --nproc 2 or more, or leave it out", "there is no need of another machine"

    def test_one_gpu_is_refused_as_the_machines_fault(self):
        for words in ({}, {"nproc": 1}):
            with pytest.raises(UsageError if words else MachineError, match="nobody to talk to") as raised:
                place(backend="nccl", gpus=1, **words)
            assert "a machine with two GPUs" in raised.value.do

    def test_one_rank_on_each_of_several_nodes_is_a_world(self):
        found = place(backend="nccl", gpus=1, launch_prefix="srun -N8", environ={"SLURM_JOB_NODELIST": "n[1-8]"})
        assert (found.world_size, found.nccl_nodes) == (8, 8)

    @given(ranks=st.integers(2, 128), nodes=st.integers(-2, 130))
    def test_emulated_nodes_are_equal_or_refused(self, ranks, nodes):
        if nodes == 0:
            assert place(backend="nccl", gpus=128, nproc=ranks).emulated_nodes == 0
        elif nodes >= 2 and ranks % nodes == 0:
            found = place(backend="nccl", gpus=128, nproc=ranks, emulate_nodes=nodes)
            own = environment.per_rank(found)
            assert sorted(own, key=int) == [str(rank) for rank in range(ranks)]
            identities = [own[str(rank)][environment.HOSTID] for rank in range(ranks)]
            assert identities == sorted(identities, key=lambda one: int(one.rpartition("-")[2])), "neighbours stay so"
            assert Counter(identities) == dict.fromkeys((f"emulated-{node}" for node in range(nodes)), ranks // nodes)
        else:
            with pytest.raises(UsageError, match="cannot be split evenly") as raised:
                place(backend="nccl", gpus=128, nproc=ranks, emulate_nodes=nodes)
            assert f"{ranks} ranks" in str(raised.value)
            assert f"divides {ranks}" in str(raised.value)


class TestLaunch:
    @WORLDS
    def test_torchrun_is_told_the_number_of_ranks(self, ranks, tmp_path):
        words = launch.arguments(
            request(placement=Placement(nproc_per_node=ranks)), launch_paths(tmp_path, "l"), port=1, python="/py"
        )
        assert f"--nproc-per-node={ranks}" in words
        assert "--nnodes=1" in words

    @WORLDS
    def test_each_of_several_ranks_gets_one_thread_as_torchrun_would_give_it(self, ranks):
        decided = environment.decided(request(placement=Placement(nproc_per_node=ranks)), {})
        assert decided["OMP_NUM_THREADS"] == "1"

    def test_one_rank_a_node_keeps_its_threads(self):
        placement = Placement(nnodes=8, nproc_per_node=1, launch_prefix=("srun", "-N8"))
        assert "OMP_NUM_THREADS" not in environment.decided(request(placement=placement), {})

    def test_eight_ranks_on_two_emulated_nodes_share_an_identity_with_their_own_node_alone(self):
        placement = Placement(nproc_per_node=8, emulated_nodes=2)
        complete = environment.complete(request(placement=placement), _Nothing(), {})
        identities = [complete.per_rank_env[str(rank)][environment.HOSTID] for rank in range(8)]
        assert identities == ["emulated-0"] * 4 + ["emulated-1"] * 4
        assert {own[environment.SOCKET_IFNAME] for own in complete.per_rank_env.values()} == {"lo"}
        assert not complete.environment.keys() & {environment.HOSTID, environment.SOCKET_IFNAME}


class TestLimits:
    @pytest.mark.parametrize(
        ("ranks", "cores", "factor"),
        [(2, 2, 1), (8, 2, 1), (8, 1, 1), (16, 1, 2), (64, 2, 4), (8, 0, 1), (8, 128, 1)],
        ids=["2-on-2", "8-on-2", "8-on-1", "16-on-1", "64-on-2", "cores-unknown", "8-on-128"],
    )
    def test_crowded_cores_get_more_time_in_proportion(self, ranks, cores, factor):
        found, usual = limits_here(Limits(), Placement(nproc_per_node=ranks), cores), Limits()
        for name in ("startup_s", "no_progress_s", "total_s"):
            assert getattr(found, name) == factor * getattr(usual, name)
        assert (found.grace_s, found.shutdown_s) == (usual.grace_s, usual.shutdown_s)

    def test_the_most_ranks_that_are_let_in_have_time_to_import_torch(self):
        most = place(backend="gloo", gpus=0, cores=2, nproc=64)
        with pytest.raises(UsageError, match="more ranks than 2 cores can hold"):
            place(backend="gloo", gpus=0, cores=2, nproc=65)
        processor_s_a_rank = 4.0
        assert limits_here(Limits(), most, 2).startup_s >= 3 * processor_s_a_rank * 64 / 2

    def test_several_nodes_get_the_time_of_a_cluster(self):
        found = limits_here(Limits(), Placement(nnodes=2, nproc_per_node=8), 64)
        assert (found.startup_s, found.total_s, found.no_progress_s) == (240.0, 900.0, 60.0)
        longer = Limits(startup_s=300.0, no_progress_s=120.0, total_s=1200.0)
        assert limits_here(longer, Placement(nnodes=2, nproc_per_node=8), 64) == longer


class _Nothing:
    """Nothing is inherited."""

    settings: dict[str, str] = {}
