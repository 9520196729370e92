import pytest

from nccltune.machine.describe import describe, size_text
from nccltune.machine.facts import Facts, cluster_name, differences, fingerprint, gather, link_kind
from nccltune.machine.faults import faults
from nccltune.machine.gpus import Gpu
from nccltune.machine.inherited import Inherited, Plugin
from nccltune.machine.library import NcclFacts, TorchFacts
from nccltune.machine.limits import UNLIMITED, Cpu
from nccltune.machine.nics import Nic
from nccltune.machine.topology import Topology
from nccltune.records import Placement

GIB = 2**30
TORCH = TorchFacts(version="2.14.1+cu130", path="/site/torch", cuda="13.0", has_nccl=True)
NCCL = NcclFacts(version="2.30.7", library="/site/libnccl.so.2", how="RPATH", names=("NCCL_ALPHA", "NCCL_TUNER_PLUGIN"))


def gpu(index, name="NVIDIA H200", **more):
    return Gpu(index=index, name=name, uuid=f"GPU-secret{index}", memory_bytes=141 * GIB, memory_used_bytes=0, **more)


def topology(count, word="NV18", p2p="OK"):
    pairs = [f"{one}-{other}" for one in range(count) for other in range(one + 1, count)]
    return Topology(gpus=tuple(range(count)), links=dict.fromkeys(pairs, word), p2p=dict.fromkeys(pairs, p2p))


def machine(count=2, word="NV18", **more):
    paths = topology(count, word) if count else None
    facts = Facts(
        torch=TORCH,
        nccl=NCCL,
        gpus=tuple(gpu(index) for index in range(count)),
        driver="580.20",
        cuda_driver=(13, 0),
        topology=paths,
        links=link_kind(paths, count),
        nvswitch=True,
        cpu=Cpu(model="Fast Chip", cores_usable=8, cores_online=8),
        shm_bytes=16 * GIB,
        shm_free_bytes=16 * GIB,
        memlock_bytes=UNLIMITED,
    )
    return facts.model_copy(update=more)


CPU_TORCH = TorchFacts(version="2.13.0+cpu", path="/site/torch")


def cpu_machine(**more):
    return machine(0, torch=CPU_TORCH, nccl=None, driver=None, **more)


def test_this_machine_can_be_read():
    facts = gather({"NCCL_ALPHA": "7", "PASSWORD": "hunter2"})
    assert facts.torch is not None
    assert facts.cpu.cores_usable >= 1
    assert facts.inherited.settings["NCCL_ALPHA"] == "7"
    assert facts.inherited.sources["NCCL_ALPHA"] == "environment"
    assert "hunter2" not in facts.model_dump_json()
    assert Facts.model_validate_json(facts.model_dump_json()) == facts


def test_backend_needs_gpus_and_a_torch_with_nccl():
    assert machine().backend == "nccl"
    assert machine(0).backend == "gloo"
    assert machine(torch=CPU_TORCH).backend == "gloo"
    assert machine(torch=None).backend == "gloo"


def test_fingerprint_names_hardware_and_software_only():
    told = fingerprint(machine())
    assert told == {
        "backend": "nccl",
        "torch": "2.14.1+cu130",
        "gpus": "2x NVIDIA H200",
        "links": "nvlink (1 NV18), nvswitch",
        "driver": "580.20",
        "nccl": "2.30.7",
    }
    assert fingerprint(cpu_machine()) == {
        "backend": "gloo",
        "torch": "2.13.0+cpu",
        "cpu": "Fast Chip",
        "cores": "8",
    }


def test_differences_name_the_field():
    before, now = fingerprint(machine()), fingerprint(machine(driver="590.1", nccl=None))
    assert differences(before, before) == []
    assert differences(before, now) == ["driver: 580.20 before, 590.1 now", "nccl: 2.30.7 before, unknown now"]


@pytest.mark.parametrize(
    ("facts", "placement", "name"),
    [
        (machine(), Placement(), "2xh200-nvlink"),
        (machine(), Placement(emulated_nodes=2), "2xh200-nvlink-emulated2"),
        (machine(word="SYS"), Placement(), "2xh200-pcie"),
        (machine(8), Placement(nproc_per_node=8, nnodes=4), "4x8xh200-nvlink"),
        (machine(8), Placement(nproc_per_node=1), "1xh200"),
        (cpu_machine(), Placement(), "cpu-8core"),
        (machine(gpus=(gpu(0, "NVIDIA A100-SXM4-80GB"), gpu(1, "NVIDIA H100 80GB HBM3"))), Placement(),
         "1xa100-80gb-1xh100-80gb-nvlink"),
        (machine(gpus=(gpu(0, "../../NVIDIA"), gpu(1, None))), Placement(), "2xgpu-nvlink"),
    ],
)  # fmt: skip
def test_cluster_names(facts, placement, name):
    assert cluster_name(facts, placement) == name


def test_pairs_of_nvlink_do_not_make_an_nvlink_machine():
    words = {"0-1": "NV4", "2-3": "NV4", "0-2": "SYS", "0-3": "SYS", "1-2": "SYS", "1-3": "SYS"}
    paths = Topology(gpus=(0, 1, 2, 3), links=words)
    assert link_kind(paths, 4) == "pcie"
    assert link_kind(paths, 2) == "nvlink"
    assert link_kind(paths, 1) == "none"
    ring = Topology(gpus=(0, 1, 2, 3), links={**words, "1-2": "NV2", "0-3": "NV2"})
    assert link_kind(ring, 4) == "nvlink"
    assert link_kind(None, 2) == "pcie"


def test_the_first_line_names_torch_nccl_and_the_library():
    assert describe(cpu_machine())[0] == (
        "torch 2.13.0+cpu (/site/torch), NCCL none: this torch is built without it; backend gloo"
    )
    assert describe(machine())[0] == (
        "torch 2.14.1+cu130 (/site/torch), NCCL 2.30.7 (/site/libnccl.so.2, by RPATH); backend nccl"
    )
    assert describe(machine(nccl=NcclFacts()))[0].endswith("no libnccl.so.2 for this torch; backend nccl")
    assert describe(Facts())[0].startswith("torch none")


def test_the_description_tells_what_is_inherited():
    inherited = Inherited(
        settings={"NCCL_ALPHA": "1", "NCCL_BETA": "x\r"},
        sources={"NCCL_ALPHA": "environment", "NCCL_BETA": "/etc/nccl.conf"},
        plugins=(Plugin(kind="net", path="/lib/libnccl-net.so", source="ldconfig"),),
    )
    nics = (
        Nic(kind="net", name="docker0", up=True, virtual=True),
        Nic(kind="net", name="eth0", up=True, virtual=False, speed_mbit=25000),
        Nic(kind="ib", name="mlx5_0", up=True, virtual=False, speed_mbit=400000, link_layer="InfiniBand"),
        Nic(kind="ib", name="mlx5_1", up=False, virtual=False),
    )
    lines = describe(machine(inherited=inherited, nics=nics, hidden=6))
    assert lines[1] == (
        "GPUs 2x NVIDIA H200 141 GiB; links nvlink (1 NV18), nvswitch; driver 580.20, CUDA 13.0; "
        "6 hidden by CUDA_VISIBLE_DEVICES"
    )
    assert "network eth0 25 Gbit/s, mlx5_0 InfiniBand 400 Gbit/s" in lines
    assert "inherited NCCL_ALPHA=1 (environment)" in lines
    assert "inherited NCCL_BETA='x\\r' (/etc/nccl.conf)" in lines
    assert "net plugin /lib/libnccl-net.so (ldconfig)" in lines


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (64 * 2**20, "64 MiB"), (1000 * 2**20, "1000 MiB"), (int(1.5 * GIB), "1.5 GiB")],
)
def test_sizes(size, text):
    assert size_text(size) == text


def test_a_healthy_machine_has_no_faults():
    assert faults(machine()) == []
    assert faults(cpu_machine()) == []


SMALL_SHM = {"shm_bytes": 64 * 2**20, "shm_free_bytes": 64 * 2**20}
IB = (Nic(kind="ib", name="mlx5_0", up=True),)


@pytest.mark.parametrize(
    ("facts", "name", "fatal"),
    [
        (machine(torch=None), "torch_missing", True),
        (machine(torch=TORCH.model_copy(update={"version": "2.5.1"})), "torch_too_old", True),
        (machine(torch=CPU_TORCH, nccl=None), "torch_without_nccl", True),
        (machine(nccl=NcclFacts()), "nccl_library_missing", False),
        (machine(cuda_driver=(12, 8)), "driver_too_old", True),
        (machine(0, gpu_error="Driver/library version mismatch"), "driver_unusable", True),
        (machine(invalid_visible="9", hidden=1), "visible_devices_invalid", True),
        (machine(hidden=6), "gpus_hidden", False),
        (machine(gpus=(gpu(0), gpu(1, "NVIDIA L4"))), "gpus_mixed", False),
        (machine(gpus=(gpu(0, mig=True),)), "mig", False),
        (machine(gpus=(gpu(0, throttle=("hardware power brake",)),)), "gpu_throttled", False),
        (machine(gpus=(gpu(0, processes=(7,)),)), "gpu_busy", False),
        (machine(gpus=(gpu(0).model_copy(update={"memory_used_bytes": 60 * GIB}),)), "gpu_busy", False),
        (machine(**SMALL_SHM), "shm_too_small", False),
        (machine(topology=topology(2, "SYS", "TNS"), **SMALL_SHM), "shm_too_small", True),
        (machine(shm_free_bytes=2**20), "shm_full", False),
        (machine(nics=IB, memlock_bytes=65536), "memlock_low", False),
        (machine(inherited=Inherited(missing_file="/x")), "conf_file_missing", False),
        (machine(inherited=Inherited(plugins=(Plugin(kind="tuner", path="/x", source="s"),))), "tuner_plugin", False),
        (machine(inherited=Inherited(plugins=(Plugin(kind="env", path="/x", source="s"),))), "env_plugin", False),
        (machine(inherited=Inherited(settings={"NCCL_ALPHA": "1 "})), "blank_in_setting", False),
        (machine(inherited=Inherited(settings={"NCCL_ALPHAA": "1"})), "unknown_setting", False),
        (cpu_machine(cpu=Cpu(cores_usable=4, cores_online=4, load_1min=3.5)), "cpu_busy", False),
    ],
)
def test_each_fault_alone_with_what_to_do(facts, name, fatal):
    found = faults(facts)
    assert [(fault.name, fault.fatal) for fault in found] == [(name, fatal)]
    assert found[0].do
    assert "\n" not in found[0].what + found[0].do


@pytest.mark.parametrize(
    "facts",
    [
        machine(1, **SMALL_SHM),
        machine(cuda_driver=(13, 0), torch=TORCH.model_copy(update={"cuda": "13.9"})),
        machine(0, gpu_error="NVML Shared Library Not Found"),
        machine(nics=IB, memlock_bytes=UNLIMITED),
        machine(memlock_bytes=65536),
        machine(inherited=Inherited(plugins=(Plugin(kind="net", path="/x", source="s"),))),
        machine(inherited=Inherited(settings={"TORCH_NCCL_X": "1", "NCCL_ALPHA": ""})),
        machine(nccl=NCCL.model_copy(update={"names": ()}), inherited=Inherited(settings={"NCCL_ANYTHING": "1"})),
    ],
)
def test_what_is_no_fault(facts):
    assert faults(facts) == []


def test_a_misspelt_name_gets_the_nearest_one():
    fault = faults(machine(inherited=Inherited(settings={"NCCL_ALFA": "1"})))[0]
    assert "NCCL_ALPHA" in fault.do


def test_inherited_debugging_variables_by_names_or_by_a_function():
    facts = machine(inherited=Inherited(settings={"NCCL_ALPHA": "1"}, sources={"NCCL_ALPHA": "/etc/nccl.conf"}))
    for debugging in (["NCCL_ALPHA"], lambda name: name.endswith("ALPHA")):
        (fault,) = faults(facts, debugging)
        assert fault.name == "inherited_debugging"
        assert "NCCL_ALPHA=1" in fault.what
        assert "/etc/nccl.conf" in fault.what
    assert faults(facts, ["NCCL_OTHER"]) == []


def test_fatal_faults_come_first():
    facts = machine(hidden=2, torch=None)
    assert [fault.fatal for fault in faults(facts)] == [True, False]
