"""The doctor on machines that this one is not: what is fatal, what is only said, and what to do."""

import json
import subprocess
import sys

import pytest
from fakes import failure

from nccltune import cli, doctor, probe_faults
from nccltune.machine import facts as machine_facts
from nccltune.machine.facts import Facts, link_kind
from nccltune.machine.gpus import Gpu
from nccltune.machine.inherited import Inherited, Plugin
from nccltune.machine.library import NcclFacts, TorchFacts
from nccltune.machine.limits import UNLIMITED, Cpu
from nccltune.machine.nics import Nic
from nccltune.machine.topology import Topology
from nccltune.probe import Part, Probe, pairs_of, read_report
from nccltune.records import Placement
from nccltune.space.catalogue import load_catalogue
from nccltune.trial.nccl_log import parse_text

GIB, MIB = 2**30, 2**20
TORCH = TorchFacts(version="2.13.0+cu130", path="/site/torch", cuda="13.0", has_nccl=True)
CPU_TORCH = TorchFacts(version="2.13.0+cpu", path="/site/torch")
CATALOGUE = load_catalogue()
NAMES = (*(name for name in CATALOGUE.knobs if name.startswith("NCCL_")), "NCCL_DEBUG", "NCCL_IB_GID_INDEX")
NCCL = NcclFacts(version="2.28.9", library="/site/libnccl.so.2", how="RPATH", names=NAMES)
IB = tuple(Nic(kind="ib", name=f"mlx5_{number}", up=True, virtual=False) for number in range(8))


def machine(count=8, word="NV18", **more):
    pairs = [f"{one}-{other}" for one in range(count) for other in range(one + 1, count)]
    paths = Topology(gpus=tuple(range(count)), links=dict.fromkeys(pairs, word), p2p=dict.fromkeys(pairs, "OK"))
    gpus = tuple(Gpu(index=index, name="NVIDIA H100", uuid=f"GPU-{index}", memory_bytes=80 * GIB, memory_used_bytes=0)
                 for index in range(count))  # fmt: skip
    facts = Facts(
        torch=TORCH if count else CPU_TORCH,
        nccl=NCCL if count else None,
        gpus=gpus,
        driver="580.20" if count else None,
        cuda_driver=(13, 0) if count else None,
        topology=paths if count else None,
        links=link_kind(paths, count),
        nvswitch=bool(count),
        cpu=Cpu(model="Fast Chip", cores_usable=8, cores_online=8),
        shm_bytes=16 * GIB,
        shm_free_bytes=16 * GIB,
        memlock_bytes=UNLIMITED,
    )
    return facts.model_copy(update=more)


def inheriting(facts=None, **settings):
    return (facts or machine()).model_copy(update={"inherited": Inherited(settings=settings)})


def judged(facts, **more):
    return doctor.report(facts, CATALOGUE, **more)


def names(report):
    return [fault.name for fault in report.faults]


def answers(report):
    return {each.question: each.answer for each in report.checklist}


# ---- facts and faults


def test_a_healthy_machine_is_fit_and_only_a_launch_can_answer_the_rest():
    report = judged(machine(nics=IB))
    assert report.fit
    assert names(report) == []
    assert answers(report) == {
        "CUDA is there": "yes",
        "all GPUs are seen": "yes",
        "NCCL is known": "yes",
        "the topology is known": "yes",
        "the network interface is known": "unknown",
        "a process group comes up and adds correctly": "unknown",
    }
    assert list(doctor.lines(report))[-1] == "fit to be tuned"


def test_a_machine_without_gpu_is_fit_for_what_can_be_tuned_there():
    report = judged(machine(0))
    assert report.fit
    assert answers(report)["CUDA is there"] == "no"
    assert answers(report)["NCCL is known"] == "no"


def test_hidden_gpus_are_named():
    report = judged(machine(2, hidden=6))
    assert report.fit
    assert names(report) == ["gpus_hidden"]
    assert answers(report)["all GPUs are seen"] == "no"
    assert "2 of 8" in "\n".join(doctor.lines(report))


def test_docker_s_shared_memory_is_fatal_where_peers_do_not_reach_each_other():
    far = machine(2, "SYS", shm_bytes=64 * MIB, shm_free_bytes=64 * MIB)
    paths = far.topology.model_copy(update={"p2p": {"0-1": "NS"}})
    report = judged(far.model_copy(update={"topology": paths}))
    assert not report.fit
    assert names(report) == ["shm_too_small"]
    assert "--shm-size" in report.faults[0].do


def test_torch_without_nccl_is_fatal_and_comes_first():
    report = judged(inheriting(machine(2, torch=CPU_TORCH, nccl=None), NCCL_DEBUG="INFO"))
    assert not report.fit
    assert names(report)[0] == "torch_without_nccl"
    text = list(doctor.lines(report))
    assert text[-1].startswith("not fit")
    assert [line.split()[0] for line in text if line.startswith(("FATAL", "note"))] == ["FATAL", "note"]


# ---- what is inherited


def test_what_an_image_says_of_itself_is_no_fault():
    quiet = judged(inheriting())

    assert judged(inheriting(NCCL_VERSION="2.28.3-1", NCCL_HOME="/usr")).faults == quiet.faults


@pytest.mark.parametrize(
    ("setting", "value", "name", "said"),
    [
        ("NCCL_DEBUG", "INFO", "inherited_debugging", "costs time"),
        ("NCCL_DEBUG_SUBSYS", "ALL", "inherited_debugging", "NCCL_DEBUG_SUBSYS=ALL"),
        ("NCCL_P2P_LEVEL", "LOC", "inherited_debugging", "NCCL_P2P_LEVEL=LOC"),
        ("NCCL_NSOCK_PERTHREAD", "4", "misspelt_setting", "no name that NCCL knows"),
        ("NCCL_PRIVATE_THING", "4", "unknown_setting", "NCCL_PRIVATE_THING"),
        ("NCCL_TREE_THRESHOLD", "0", "setting_without_effect", "dropped in NCCL 2.5"),
        ("NCCL_P2P_LEVEL", "loc", "bad_setting", "NCCL_P2P_LEVEL=loc (the environment) is written LOC"),
        ("NCCL_BUFFSIZE", "4M", "bad_setting", "NCCL would read 4"),
        ("NCCL_NTHREADS", "word", "bad_setting", "NCCL would read 0"),
        ("NCCL_SOCKET_NTHREADS", "32", "bad_setting", "outside"),
        ("NCCL_IB_DISABLE", "true", "bad_setting", "NCCL would read 0"),
        ("NCCL_ALGO", "rong", "bad_setting", "'rong'"),
        ("NCCL_PROTO", "allreduce:simple;fft:ll", "bad_setting", "'fft'"),
        ("NCCL_BUFFSIZE", "", "bad_setting", "is empty"),
    ],
)
def test_an_inherited_setting_that_is_not_what_it_seems(setting, value, name, said):
    report = judged(inheriting(**{setting: value}))
    found = [fault for fault in report.faults if fault.name == name]
    assert len(found) == 1
    assert said in found[0].what
    assert found[0].do
    lines = [fault for fault in report.faults if setting in fault.what]
    assert len([fault for fault in lines if fault.name != "inherited_debugging"]) <= 1, "one setting, one complaint"


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("NCCL_DEBUG", "WARN"),
        ("NCCL_DEBUG", "version"),
        ("NCCL_SOCKET_NTHREADS", "4"),
        ("NCCL_SOCKET_NTHREADS", "0x4"),
        ("NCCL_SOCKET_IFNAME", "=eth0"),
        ("NCCL_IB_HCA", "mlx5_0,mlx5_1"),
        ("NCCL_IB_GID_INDEX", "3"),
    ],
)
def test_what_nccl_reads_as_it_is_meant_is_no_fault(setting, value):
    assert names(judged(inheriting(**{setting: value}))) == []


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("NCCL_ALGO", "Ring"),
        ("NCCL_ALGO", "allreduce:tree;allgather:ring"),
        ("NCCL_PROTO", "^LL128"),
        ("NCCL_P2P_LEVEL", "2"),
    ],
)
def test_other_spellings_that_nccl_reads_are_no_bad_settings(setting, value):
    assert names(judged(inheriting(**{setting: value}))) == ["inherited_debugging"]


def test_an_unknown_algorithm_ends_every_start_since_2_24_only():
    assert not judged(inheriting(NCCL_ALGO="rong")).fit
    old = machine(nccl=NCCL.model_copy(update={"version": "2.20.5"}))
    report = judged(inheriting(old, NCCL_ALGO="rong"))
    assert report.fit
    assert "bad_setting" in names(report)
    assert "from 2.24" in judged(inheriting(old, NCCL_ALGO="allreduce:ring")).faults[0].what


def test_a_name_is_not_called_misspelt_for_looking_like_others():
    """Without the library's names the catalogue is all there is, and it does not hold every name."""
    report = judged(inheriting(machine(0), NCCL_IB_GID_INDEX="3", NCCL_NSOCK_PERTHREAD="4"))
    assert names(report) == ["misspelt_setting"]
    assert "NCCL_NSOCKS_PERTHREAD" in report.faults[0].do


def test_a_name_that_came_later_or_is_not_in_the_library_does_nothing():
    old = machine(nccl=NcclFacts(version="2.18.3", library="/l", names=("NCCL_ALGO",)))
    report = judged(inheriting(old, NCCL_CUMEM_HOST_ENABLE="1"))
    assert "setting_without_effect" in names(report)
    without = machine(nccl=NCCL.model_copy(update={"names": ("NCCL_ALGO",)}))
    report = judged(inheriting(without, NCCL_SOCKET_NTHREADS="4"))
    assert names(report) == ["setting_without_effect"]
    assert "2.28.9" in report.faults[0].what


def test_profiles_plugins_and_sockets_by_choice():
    inherited = Inherited(
        settings={"NCCL_SOCKET_NTHREADS": "4", "NCCL_NET": "Socket"},
        sources={"NCCL_SOCKET_NTHREADS": "/etc/nccl.conf", "NCCL_NET": "environment"},
        files=("/etc/nccl.conf",),
        plugins=(Plugin(kind="tuner", path="/opt/libnccl-tuner.so", source="ldconfig"),),
    )
    report = judged(machine(nics=IB, inherited=inherited))
    assert set(names(report)) == {"vendor_profile", "tuner_plugin", "sockets_chosen"}
    assert report.fit


# ---- what a probe tells


def part(name, state="right", speed=None, detail=""):
    return Part(name=name, state=state, gbytes_per_s=speed, detail=detail)


def probed(*parts, log="", **more):
    return Probe(parts=(part("world", speed=400.0), *parts), log=parse_text(log) if log else None, **more)


def with_probe(probe, facts=None, placement=None):
    return judged(facts or machine(4), placement=placement or Placement(nproc_per_node=4), probe=probe)


def test_a_sound_probe_answers_the_checklist():
    log = "h:1:1 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [RO]; OOB eth0:10.0.0.1<0>\n" \
          "h:1:1 [0] NCCL INFO Using network IB\nh:1:1 [0] NCCL INFO NCCL version 2.28.9+cuda13.0\n"  # fmt: skip
    report = with_probe(probed(part("0-1", speed=300.0), log=log, libraries=("/site/libnccl.so.2",)))
    assert report.fit
    assert names(report) == []
    assert answers(report)["a process group comes up and adds correctly"] == "yes"
    assert answers(report)["the network interface is known"] == "yes"
    assert "IB mlx5_0" in "\n".join(doctor.lines(report))


@pytest.mark.parametrize(
    ("state", "name"), [("hangs", "pair_hangs"), ("wrong", "pair_wrong_data"), ("failed", "pair_fails")]
)
def test_a_broken_pair_is_named_with_the_advice_for_its_kind_of_path(state, name):
    probe = probed(part("0-1", speed=300.0), part("0-3", state, detail="no answer within 30 s"))
    report = with_probe(probe, machine(4, "PHB"))
    assert not report.fit
    assert names(report) == [name]
    assert report.faults[0].what.startswith("GPUs 0 and 3 (PHB) ")
    assert "ACS" in report.faults[0].do
    assert answers(report)["a process group comes up and adds correctly"] == "no"
    assert "nvlink" in with_probe(probe).faults[0].do
    assert with_probe(probe, machine(0)).faults[0].what.startswith("Ranks 0 and 3 ")


def test_a_slow_link_is_told_from_paths_that_are_slow_by_nature():
    even = [part(name, speed=300.0) for name in ("0-1", "0-2", "1-2", "1-3", "2-3")]
    report = with_probe(probed(*even, part("0-3", speed=20.0)))
    assert names(report) == ["pair_slow"]
    assert "GPUs 0 and 3 (NV18) reach 20 GB/s" in report.faults[0].what
    assert report.fit
    mixed = machine(4)
    links = mixed.topology.links | {"0-3": "SYS"}
    mixed = mixed.model_copy(update={"topology": mixed.topology.model_copy(update={"links": links})})
    assert names(with_probe(probed(*even, part("0-3", speed=20.0)), mixed)) == []
    emulated = Placement(nproc_per_node=4, emulated_nodes=2)
    across = [part(name, speed=5.0) for name in ("0-2", "0-3", "1-2", "1-3")]
    assert names(with_probe(probed(part("0-1", speed=300.0), *across), placement=emulated)) == []


FALLBACK = "h:1:1 [0] NCCL INFO NET/IB : No device found.\nh:1:1 [0] NCCL INFO Using network Socket\n"
NO_GDR = (
    "h:1:1 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>\n"
    "h:1:1 [0] NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'\n"
    "h:1:1 [0] NCCL INFO Using network IB\n"
)


@pytest.mark.parametrize(
    ("log", "nics", "expected"),
    [
        (FALLBACK, IB, ["socket_fallback"]),
        (FALLBACK, (), []),
        ("h:1:1 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.\n" + FALLBACK, IB, []),
        (NO_GDR, IB, ["gpudirect_off", "one_nic"]),
        (NO_GDR, IB[:1], ["gpudirect_off"]),
    ],
)
def test_the_network_that_nccl_took(log, nics, expected):
    report = with_probe(probed(part("0-1", speed=300.0), log=log), machine(4, nics=nics))
    assert names(report) == expected


def test_nvlink_that_carries_nothing_is_named():
    """As seen with peer access switched off: right sums, 27 GB/s in the place of 258."""
    shared, peer = (
        f"h:1:1 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via {way}\n" for way in ("SHM/direct/direct", "P2P/IPC")
    )

    report = with_probe(probed(part("0-1", speed=27.0), log=shared))

    assert names(report) == ["nvlink_unused"]
    assert "SHM" in report.faults[0].what
    assert names(with_probe(probed(part("0-1", speed=258.0), log=peer))) == []
    assert names(with_probe(probed(part("0-1", speed=27.0), log=shared), machine(4, "PHB"))) == []
    emulated = Placement(nproc_per_node=2, emulated_nodes=2)
    assert names(with_probe(probed(part("0-1", speed=3.0), log=shared), placement=emulated)) == []


def test_another_library_than_expected_is_named():
    probe = probed(part("0-1", speed=3.0), libraries=("/opt/libnccl.so.2",))
    assert names(with_probe(probe)) == ["nccl_mismatch"]


def test_a_probe_that_never_started_carries_the_launch_s_own_advice():
    probe = Probe(
        parts=(part("world", "untried"), part("0-1", "untried")),
        failure=failure("shm_too_small", "environment", message="No space left on device", advice="Raise it"),
    )
    report = with_probe(probe)
    assert names(report) == ["probe_failed"]
    assert not report.fit
    assert report.faults[0].do == "Raise it"
    assert answers(report)["a process group comes up and adds correctly"] == "no"


def test_a_group_that_hangs_points_at_the_pairs():
    probe = Probe(parts=(part("world", "hangs"), part("0-1", "hangs"), part("0-2")))
    report = with_probe(probe)
    assert names(report) == ["group_hangs", "pair_hangs"]
    assert "pairs" in report.faults[0].do


def test_all_pairs_of_a_node_and_the_neighbours_of_several():
    assert pairs_of(Placement(nproc_per_node=3)) == [(0, 1), (0, 2), (1, 2)]
    assert len(pairs_of(Placement(nproc_per_node=8))) == 28
    assert pairs_of(Placement(nnodes=3, nproc_per_node=2)) == [(0, 1), (2, 3), (4, 5), (0, 2), (2, 4)]


def test_a_report_that_breaks_off_names_the_part_it_broke_off_in(tmp_path):
    path = tmp_path / "probe.jsonl"
    lines = [
        {"part": "world", "state": "begun"},
        {"part": "world", "state": "right", "gbytes_per_s": 3.0},
        {"part": "0-1", "state": "begun"},
        {"part": "0-1", "state": "wrong", "detail": "7 of 8"},
        {"part": "0-2", "state": "begun"},
    ]
    path.write_text("\n".join(map(json.dumps, lines)) + '\n{"part": "0-')
    states = {each.name: each.state for each in read_report(path, failure("hang_timeout"))}
    assert states == {"world": "right", "0-1": "wrong", "0-2": "hangs"}
    assert read_report(path, failure("cuda_error"))[-1].state == "failed"
    assert read_report(tmp_path / "none", failure("cuda_error")) == []


# ---- the command


def test_a_lone_gpu_is_not_fit_but_for_a_cluster(monkeypatch, capsys):
    monkeypatch.setattr(machine_facts, "gather", lambda environ: machine(1))
    assert cli.run(["doctor"]) == 1
    assert "FATAL too_few_ranks" in capsys.readouterr().out
    assert cli.run(["doctor", "--launch-prefix", "srun -N2"]) == 0


def test_json_holds_the_report_and_no_other_variable(monkeypatch, capsys):
    monkeypatch.setenv("SOME_SECRET", "hunter2")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    assert cli.run(["doctor", "--json"]) in (0, 1)
    text = capsys.readouterr().out
    found = json.loads(text)
    assert {"facts", "faults", "fit", "fingerprint"} <= set(found)
    assert found["fit"] is not None
    assert {"name", "what", "do", "fatal"} == set(found["faults"][0])
    assert "inherited_debugging" in [fault["name"] for fault in found["faults"]]
    assert "hunter2" not in text


def test_the_probe_runs_only_when_asked_for(monkeypatch):
    monkeypatch.setattr(machine_facts, "gather", lambda environ: machine(4))
    calls = []

    def run(facts, placement, environ, stop):
        calls.append(placement.world_size)
        return probed(part("0-1", "hangs"))

    assert doctor.examine(doctor.Options(), {}, run_probe=run).probe is None
    report = doctor.examine(doctor.Options(probe=True, nproc=2), {}, run_probe=run)
    assert calls == [2]
    assert names(report) == ["pair_hangs"]
    assert json.loads(json.dumps(doctor.as_data(report)))["probe"]["parts"][1]["state"] == "hangs"


@pytest.mark.parametrize("argv", [["doctor"], ["knobs"], ["knobs", "OMP_NUM_THREADS"]])
def test_torch_stays_out_of_our_own_process(argv):
    code = (
        "import sys\n"
        "from nccltune import cli\n"
        f"assert cli.run({argv!r}) in (0, 1)\n"
        "heavy = {'torch', 'optuna', 'mlflow', 'pandas', 'scipy', 'plotly'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr


def test_every_fault_says_what_to_do():
    bad = probed(part("0-1", "hangs"), part("0-2", "wrong"), part("0-3", "failed"), log=NO_GDR)
    found = probe_faults.faults(bad, machine(4, nics=IB), Placement(nproc_per_node=4))
    assert len(found) == 5
    assert all(fault.do and not fault.do.endswith(".") and not fault.what.endswith(".") for fault in found)
