"""Where the ranks run."""

import pytest

from nccltune.errors import MachineError, NccltuneError, UsageError
from nccltune.trial.placement import place


def test_every_gpu_gets_a_rank_and_a_cpu_machine_two():
    assert place(backend="nccl", gpus=8).world_size == 8
    assert place(backend="gloo", gpus=0).world_size == 2
    assert place(backend="gloo", gpus=0, nproc=8).world_size == 8


@pytest.mark.parametrize(
    "prefix", ["srun -N2 --ntasks-per-node=1", "srun -N 2", "srun --nodes=2", "srun --nodes 2 --export=ALL"]
)
def test_the_nodes_are_read_from_srun(prefix):
    placement = place(backend="nccl", gpus=4, launch_prefix=prefix, rendezvous_host="n0")
    assert (placement.nnodes, placement.world_size, placement.rendezvous_host) == (2, 8, "n0")


@pytest.mark.parametrize(
    ("hosts", "first"),
    [("gpu[03-07,9],login", "gpu03"), ("a,b", "a"), ("n[1,3]", "n1"), ("x7", "x7"), ("rack1-n[2-3]-ib", "rack1-n2-ib")],
)
def test_the_agents_meet_on_the_first_host_of_the_allocation(hosts, first):
    environ = {"SLURM_JOB_NODELIST": hosts}
    assert place(backend="nccl", gpus=1, launch_prefix="srun -N2", environ=environ).rendezvous_host == first


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"nproc": 3}, "more ranks than the 2 visible GPUs"),
        ({"nproc": 0}, "starts no rank"),
        ({"nproc": 1}, "nobody to talk to"),
        ({"nnodes": 2}, "needs something that starts an agent"),
        ({"launch_prefix": "mpirun"}, "how many nodes"),
        ({"launch_prefix": "srun -N1-2"}, "how many nodes"),
        ({"launch_prefix": 'srun "-N2'}, "cannot be split into words"),
        ({"emulate_nodes": 3}, "split evenly"),
        ({"emulate_nodes": 1}, "split evenly"),
        ({"emulate_nodes": -2}, "split evenly"),
        ({"emulate_nodes": 2, "launch_prefix": "srun -N2"}, "for one machine"),
    ],
)
def test_what_cannot_run_is_refused(words, message):
    with pytest.raises(UsageError, match=message):
        place(backend="nccl", gpus=2, **words)


def test_one_gpu_is_the_machines_fault_and_not_the_users():
    with pytest.raises(MachineError, match="nobody to talk to"):
        place(backend="nccl", gpus=1)


def test_several_emulated_nodes_of_several_ranks():
    placement = place(backend="nccl", gpus=8, emulate_nodes=2)
    assert (placement.nccl_nodes, placement.nnodes, placement.world_size) == (2, 1, 8)
    with pytest.raises(NccltuneError):
        place(backend="nccl", gpus=8, emulate_nodes=3)


def test_more_ranks_than_the_cores_can_hold_are_refused_on_the_cpu_alone():
    assert place(backend="gloo", gpus=0, cores=2, nproc=8).world_size == 8
    with pytest.raises(UsageError, match="give --nproc 64 or fewer"):
        place(backend="gloo", gpus=0, cores=2, nproc=100_000)
    assert place(backend="nccl", gpus=8, cores=1).world_size == 8
