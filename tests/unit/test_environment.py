import re
from types import SimpleNamespace

import pytest
from fakes import request
from hypothesis import given
from hypothesis import strategies as st

from nccltune.errors import EnvironmentFault, UsageError
from nccltune.records import Placement
from nccltune.trial import environment as env
from nccltune.trial.paths import launch_paths

CALLER = {
    "PATH": "/usr/bin",
    "PYTHONPATH": "/mine",
    "CUDA_VISIBLE_DEVICES": "0,1",
    "API_KEY": "secret-of-the-caller",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_DEBUG": "VERSION",
    "NCCL_DEBUG_FILE": "/var/log/nccl",
    "NCCL_CONF_FILE": "/home/me/nccl.conf",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
}


def launch(tmp_path, environ=CALLER, **fields):
    """The environment of a launch as the runner makes it: request, text, the child's mapping."""
    asked = request(backend="nccl", **fields)
    paths = launch_paths(tmp_path, asked.launch_id)
    asked = env.in_folder(asked, paths, environ)
    text = env.render(env.settings(asked, paths, environ))
    return asked, text, env.child(text, environ, asked.placement)


def nccl_of(mapping):
    return {name: value for name, value in mapping.items() if name.startswith("NCCL_")}


def test_the_child_sees_exactly_the_nccl_settings_that_the_request_names(tmp_path):
    asked, _, child = launch(tmp_path, settings={"NCCL_ALGO": "allreduce:ring", "OMP_NUM_THREADS": "4"})
    assert nccl_of(child) == nccl_of(asked.environment)
    assert asked.environment.keys() - nccl_of(child).keys() == {"OMP_NUM_THREADS"}
    assert child["NCCL_ALGO"] == "allreduce:ring"
    assert child["OMP_NUM_THREADS"] == "4"
    assert child["NCCL_NVLS_ENABLE"] == "0"
    assert child["TORCH_SYMM_MEM_DISABLE_MULTICAST"] == "1"


def test_the_child_keeps_what_is_the_callers_own(tmp_path):
    child = launch(tmp_path)[2]
    for name in ("PATH", "PYTHONPATH", "CUDA_VISIBLE_DEVICES", "API_KEY"):
        assert child[name] == CALLER[name]


def test_the_text_holds_no_secret_of_the_caller(tmp_path):
    text = launch(tmp_path)[1]
    assert "secret-of-the-caller" not in text
    assert "/mine" not in text


def test_nccl_reads_no_file_and_logs_into_the_launchs_folder(tmp_path):
    folder = tmp_path / "100% mine"
    child = launch(folder)[2]
    assert child["NCCL_CONF_FILE"] == "/dev/null"
    assert child["NCCL_DEBUG"] == "INFO"
    assert "TUNING" not in child["NCCL_DEBUG_SUBSYS"]
    # NCCL expands %h, %p and %% (src/debug.cc)
    expanded = re.sub("%(.)", lambda m: {"h": "host", "p": "1", "%": "%"}[m[1]], child["NCCL_DEBUG_FILE"])
    assert expanded == f"{folder}/launches/0000-search/nccl/host.1.log"


def test_gloo_gets_no_settings_of_nccl_beyond_the_inherited(tmp_path):
    asked = request(backend="gloo")
    paths = launch_paths(tmp_path, asked.launch_id)
    assert env.expected(asked, paths, CALLER) == {"NCCL_NVLS_ENABLE": "0"}


def test_what_a_launch_replaces_is_known():
    assert env.replaced(CALLER) == {
        "NCCL_CONF_FILE": "/home/me/nccl.conf",
        "NCCL_DEBUG": "VERSION",
        "NCCL_DEBUG_FILE": "/var/log/nccl",
    }


@pytest.mark.parametrize(
    "leftover",
    ["PET_NPROC_PER_NODE", "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID",
     "GROUP_RANK", "ROLE_NAME", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "PYTHON_EXEC", "PYTHONINSPECT",
     "SLURM_PROCID", "SLURM_NTASKS"],
)  # fmt: skip
def test_other_launchers_leftovers_are_dropped(tmp_path, leftover):
    assert leftover not in launch(tmp_path, {**CALLER, leftover: "3"})[2]


def test_slurm_keeps_its_variables_under_a_launch_prefix(tmp_path):
    caller = {**CALLER, "SLURM_PROCID": "0", "SLURM_JOB_ID": "7", "RANK": "0"}
    child = launch(tmp_path, caller, placement=Placement(nnodes=2, launch_prefix=("srun", "-N2")))[2]
    assert child["SLURM_PROCID"] == "0"
    assert "RANK" not in child
    assert "GLOO_SOCKET_IFNAME" not in child, "loopback does not reach the other node"
    assert launch(tmp_path, caller)[2]["SLURM_JOB_ID"] == "7"


def test_what_torchrun_would_choose_is_chosen_here_unless_the_caller_did(tmp_path):
    child = launch(tmp_path)[2]
    assert (child["OMP_NUM_THREADS"], child["TORCH_NCCL_ASYNC_ERROR_HANDLING"]) == ("1", "1")
    child = launch(tmp_path, {**CALLER, "OMP_NUM_THREADS": "8", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"})[2]
    assert (child["OMP_NUM_THREADS"], child["TORCH_NCCL_ASYNC_ERROR_HANDLING"]) == ("8", "3")
    assert "OMP_NUM_THREADS" not in launch(tmp_path, placement=Placement(nproc_per_node=1))[2]


def test_the_users_own_modules_cannot_shadow_the_standard_library(tmp_path):
    child = launch(tmp_path, {**CALLER, "PYTHONSAFEPATH": ""})[2]
    assert child["PYTHONSAFEPATH"] == "1"


def test_completing_makes_settings_from_files_explicit(tmp_path):
    inherited = SimpleNamespace(settings={"NCCL_BUFFSIZE": "1", "NCCL_DEBUG": "VERSION", "UCX_TLS": "tcp"})
    completed = env.complete(request(backend="nccl", settings={"NCCL_ALGO": "ring"}), inherited, CALLER)
    assert completed.environment == {
        "NCCL_ALGO": "ring",
        "NCCL_BUFFSIZE": "1",
        "NCCL_NVLS_ENABLE": "0",
        "UCX_TLS": "tcp",
    }
    paths = launch_paths(tmp_path, completed.launch_id)
    once = env.in_folder(completed, paths, CALLER)
    assert once.environment["UCX_TLS"] == "tcp"
    assert env.in_folder(once, paths, CALLER) == once


def test_the_candidate_wins_over_what_is_inherited(tmp_path):
    caller = {**CALLER, "NCCL_BUFFSIZE": "1", "OMP_NUM_THREADS": "2"}
    asked, _, child = launch(tmp_path, caller, settings={"NCCL_BUFFSIZE": "2", "OMP_NUM_THREADS": "3"})
    assert child["NCCL_BUFFSIZE"] == asked.environment["NCCL_BUFFSIZE"] == "2"
    assert child["OMP_NUM_THREADS"] == asked.environment["OMP_NUM_THREADS"] == "3"


def test_emulated_nodes_split_the_ranks_evenly_and_in_order():
    per_rank = env.per_rank(Placement(nproc_per_node=4, emulated_nodes=2))
    hosts = [per_rank[str(rank)]["NCCL_HOSTID"] for rank in range(4)]
    assert hosts[0] == hosts[1] != hosts[2] == hosts[3]
    assert {settings["NCCL_SOCKET_IFNAME"] for settings in per_rank.values()} == {"lo"}
    assert env.per_rank(Placement()) == {}


@pytest.mark.parametrize(
    "placement", [Placement(nproc_per_node=3, emulated_nodes=2), Placement(nnodes=2, emulated_nodes=2)]
)
def test_nodes_that_cannot_be_emulated_are_refused(placement):
    with pytest.raises(UsageError):
        env.per_rank(placement)


names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,20}", fullmatch=True)
values = st.text(st.characters(min_codepoint=32, exclude_categories=("Cs", "Cc", "Zl", "Zp")), max_size=40)


@given(settings=st.dictionaries(names, values), comments=st.lists(st.text(max_size=30)))
def test_parsing_gives_back_exactly_what_was_rendered(settings, comments):
    assert env.parse(env.render(settings, comments)) == settings


@pytest.mark.parametrize("value", ["a\nb", "a\rb", "\0", "a\x1b[0m", "\udc80"])
def test_a_value_that_the_file_cannot_hold_is_refused(value):
    with pytest.raises(EnvironmentFault, match="NCCL_X"):
        env.render({"NCCL_X": value})


@pytest.mark.parametrize("line", ["NCCL_ALGO", "export NCCL_ALGO=ring", " NCCL_ALGO=ring", "NCCL_ALGO =ring", "=x"])
def test_a_line_that_is_no_setting_is_refused_with_its_number(line):
    with pytest.raises(UsageError, match="line 2 "):
        env.parse(f"# fine\n{line}\n")


def test_values_are_taken_as_they_stand():
    assert env.parse('A="x" # y\nB==\nC=\n') == {"A": '"x" # y', "B": "=", "C": ""}
