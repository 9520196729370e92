"""What would be searched here, and one knob explained."""

import json

import pytest

from nccltune import cli, plan
from nccltune.machine import facts as machine_facts
from nccltune.machine.facts import Facts, link_kind
from nccltune.machine.gpus import Gpu
from nccltune.machine.inherited import Inherited
from nccltune.machine.library import NcclFacts, TorchFacts
from nccltune.machine.limits import Cpu
from nccltune.machine.topology import Topology
from nccltune.space.catalogue import load_catalogue

LINKS = {"0-1": "NV18"}


@pytest.fixture
def two_gpus(monkeypatch):
    """A machine with two GPUs on NVLink, whose NCCL knows every name of the catalogue."""
    paths = Topology(gpus=(0, 1), links=LINKS, p2p={"0-1": "OK"})
    facts = Facts(
        torch=TorchFacts(version="2.13.0+cu130", path="/t", cuda="13.0", has_nccl=True),
        nccl=NcclFacts(version="2.28.9", library="/l", names=tuple(load_catalogue().knobs)),
        gpus=tuple(Gpu(index=index, name="NVIDIA H200", compute_capability=(9, 0)) for index in (0, 1)),
        topology=paths,
        links=link_kind(paths, 2),
        nvswitch=True,
        cpu=Cpu(cores_usable=16),
    )
    made = {"facts": facts}
    monkeypatch.setattr(machine_facts, "gather", lambda environ: made["facts"])
    return made


def table(capsys, *argv):
    assert cli.run(["knobs", "--json", *argv]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_cpu_space_is_said_with_its_reasons(capsys, monkeypatch):
    facts = Facts(torch=TorchFacts(version="2.13.0+cpu", path="/t"), cpu=Cpu(cores_usable=4))
    monkeypatch.setattr(machine_facts, "gather", lambda environ: facts)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert cli.run(["knobs"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("space cpu: ")
    assert "OMP_NUM_THREADS" in text
    assert "4 cores are usable" in text


def test_the_count_is_the_main_job_s(two_gpus, capsys):
    found = table(capsys)
    expected = plan.prepare(plan.Options(workload="allreduce"), {})
    assert found["space"] == "nvlink"
    assert found["candidates"] == expected.count(expected.space).legal
    assert [knob["name"] for knob in found["searched"]] == [knob.name for knob in expected.space.dimensions]
    assert found["exact"] is True
    searched = {knob["name"]: knob["values"] for knob in found["searched"]}
    assert None in searched["NCCL_ALGO"], "unset is null"


def test_emulated_nodes_bring_the_socket_knobs(two_gpus, capsys):
    one, two = table(capsys), table(capsys, "--emulate-nodes", "2")
    assert two["space"] == "tcp"
    assert "NCCL_SOCKET_NTHREADS" in [knob["name"] for knob in two["searched"]]
    assert "NCCL_SOCKET_NTHREADS" not in [knob["name"] for knob in one["searched"]]
    forced = table(capsys, "--space", "tcp")
    assert "one node" in forced["removed"]["NCCL_SOCKET_NTHREADS"]


def test_an_inherited_name_and_a_class_that_is_not_allowed_are_removed_with_the_reason(two_gpus, capsys):
    assert "NCCL_ALGO" not in table(capsys, "--allow", "debugging")["removed"]
    removed = table(capsys, "--allow", "system")["removed"]
    assert "debugging" in removed["NCCL_ALGO"]
    inherited = Inherited(settings={"NCCL_ALGO": "allreduce:ring"}, sources={"NCCL_ALGO": "environment"})
    two_gpus["facts"] = two_gpus["facts"].model_copy(update={"inherited": inherited})
    assert "inherited from the environment" in table(capsys)["removed"]["NCCL_ALGO"]


def test_the_table_names_the_knobs_that_do_not_stay(two_gpus, capsys):
    assert cli.run(["knobs", "--space", "tcp"]) == 0
    text = capsys.readouterr().out
    assert "not searched here" in text
    assert "  NCCL_SOCKET_NTHREADS" in text
    assert max(map(len, text.splitlines())) <= 140


def test_one_knob_is_explained_with_what_becomes_of_it_here(two_gpus, capsys):
    assert cli.run(["knobs", "NCCL_ALGO"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("NCCL_ALGO: ")
    assert "here          searched over unset, allreduce:" in text
    assert cli.run(["knobs", "NCCL_ALGO", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["docs"] == "debugging"
    assert found["here"].startswith("searched over")
    assert cli.run(["knobs", "NCCL_SOCKET_NTHREADS", "--space", "tcp"]) == 0
    assert "here          not searched: " in capsys.readouterr().out


def test_a_knob_is_explained_also_where_nothing_can_be_tuned(two_gpus, capsys):
    two_gpus["facts"] = Facts()
    assert cli.run(["knobs", "NCCL_ALGO"]) == 0
    assert "  here " not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["knobs", "NCCL_NSOCK_PERTHREAD"], "Did you mean 'NCCL_NSOCKS_PERTHREAD'"),
        (["knobs", "NCCL_TREE_THRESHOLD"], "dropped in NCCL 2.5"),
        (["knobs", "nonsense"], "'nccltune knobs' lists what there is"),
        (["knobs", "--space", "tpc"], "Did you mean 'tcp'"),
        (["knobs", "--allow", "sytem"], "Did you mean 'system'"),
        (["knobs", "--jsn"], "Did you mean '--json'"),
    ],
)
def test_mistakes_get_the_nearest_name(two_gpus, argv, message, capsys):
    assert cli.run(argv) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
