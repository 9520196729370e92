import subprocess
import sys
from pathlib import Path

import pytest
from fakes import request

from nccltune.errors import UsageError
from nccltune.records import Limits, Placement
from nccltune.trial import agent, launch
from nccltune.trial.paths import launch_paths

PYTHON = "/opt/my python/bin/python"


def words(folder="/data", placement=None, **fields):
    asked = request(placement=placement or Placement(), **fields)
    return launch.arguments(asked, launch_paths(Path(folder), asked.launch_id), port=29511, python=PYTHON)


def test_the_words_of_a_launch_on_one_machine():
    assert words(limits=Limits(startup_s=90)) == (
        PYTHON, "-m", "torch.distributed.run",
        "--nnodes=1", "--nproc-per-node=2", "--node-rank=0",
        "--rdzv-backend=static", "--rdzv-endpoint=127.0.0.1:29511", "--rdzv-id=token-of-0000-search",
        "--rdzv-conf=timeout=90", "--master-addr=127.0.0.1", "--master-port=29511", "--local-addr=127.0.0.1",
        "--max-restarts=0", "--monitor-interval=0.1", "--start-method=spawn", "--redirects=0", "--tee=0",
        "--role=default", "--log-dir=/data/launches/0000-search/torchelastic",
        "--module", "nccltune.workloads.allreduce",
        "--request", "/data/launches/0000-search/request.json",
        "--result", "/data/launches/0000-search/result.json",
    )  # fmt: skip


@pytest.mark.parametrize("folder", ["/a b/c'd\"e", "/größe/日本", "-rf", "/x;touch y", "/$HOME/`id`", "/100%/{}"])
def test_any_folder_stays_one_word(folder):
    given = words(folder)
    assert given[-1].endswith(f"{folder}/launches/0000-search/result.json")
    assert Path(given[-1]).is_absolute()
    assert len(given) == len(words())


def test_torchrun_itself_understands_the_words():
    from torch.distributed.run import parse_args

    given = parse_args(list(words("/a b/-c")[3:]))
    assert (given.nnodes, given.nproc_per_node, given.max_restarts) == ("1", "2", 0)
    assert (given.module, given.training_script) == (True, "nccltune.workloads.allreduce")
    assert given.training_script_args[0] == "--request"
    assert given.log_dir == "/a b/-c/launches/0000-search/torchelastic"


def test_a_launch_prefix_starts_one_agent_a_node():
    placement = Placement(nnodes=2, launch_prefix=("mpirun", "--map-by", "ppr:1:node"), rendezvous_host="gpu03")
    given = words(placement=placement)
    assert given[:3] == placement.launch_prefix
    assert given[3:5] == (PYTHON, "-I")
    assert Path(given[5]).name == "agent.py"
    assert given[6:8] == ("2", PYTHON)
    assert f"--node-rank={agent.NODE_RANK}" in given
    assert "--rdzv-endpoint=gpu03:29511" in given
    assert not [word for word in given if word.startswith("--local-addr")]


@pytest.mark.parametrize(
    ("given", "becomes"),
    [
        ("srun -N2", "srun --export=ALL --kill-on-bad-exit=1 --ntasks=2 -N2"),
        ("/opt/bin/srun -N2 -n2 -K0 --export=ALL", "/opt/bin/srun -N2 -n2 -K0 --export=ALL"),
        (
            "srun --nodes=2 --ntasks-per-node=1",
            "srun --export=ALL --kill-on-bad-exit=1 --ntasks=2 --nodes=2 --ntasks-per-node=1",
        ),
        ("mpirun -np 2", "mpirun -np 2"),
    ],
)
def test_srun_gets_what_it_needs_and_keeps_what_it_was_given(given, becomes):
    assert launch.prefix(Placement(nnodes=2, launch_prefix=tuple(given.split()))) == tuple(becomes.split())


@pytest.mark.parametrize("option", ["--export=NONE", "--export=ALL,NCCL_ALGO=ring", "--export"])
def test_srun_that_hands_on_no_setting_is_refused(option):
    with pytest.raises(UsageError, match="--export"):
        launch.prefix(Placement(nnodes=2, launch_prefix=("srun", "-N2", option)))


def test_a_free_port_can_be_bound_and_is_outside_the_kernels_own_range():
    import socket

    port = launch.free_port()
    assert 20_000 <= port < 30_000
    with socket.socket() as listener:
        listener.bind(("", port))


@pytest.mark.parametrize(
    ("environ", "nnodes", "rank"),
    [
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, 2, 1),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, 2, 1),
        ({"PMI_RANK": "3", "PMI_SIZE": "4"}, 4, 3),
        ({}, 1, 0),
    ],
)
def test_the_agent_finds_the_rank_of_its_node(environ, nnodes, rank):
    assert agent.node_rank(environ, nnodes) == rank


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "4"}, "starts 4 processes"),
        ({"PMIX_RANK": "2"}, "number 2 of 2"),
        ({}, "does not say which node"),
    ],
)
def test_the_agent_refuses_what_cannot_be_right(environ, said):
    with pytest.raises(ValueError, match=said):
        agent.node_rank(environ, 2)


def test_the_agent_becomes_its_command():
    show = "import sys; print(sys.argv[1:])"
    command = [sys.executable, "-I", agent.__file__, "2", sys.executable, "-c", show, f"--node-rank={agent.NODE_RANK}"]
    run = subprocess.run([*command, "a b"], env={"PMI_RANK": "1"}, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "['--node-rank=1', 'a b']"
    run = subprocess.run(command, env={}, capture_output=True, text=True, check=False)
    assert run.returncode != 0
    assert "does not say which node" in run.stderr
