import os
from pathlib import Path

import pytest

from nccltune.machine import limits
from nccltune.machine.limits import in_container, memlock_bytes, quota_cores, read_cpu, shared_memory
from nccltune.machine.nics import read_nics


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_quota_of_version_2_is_the_tightest_level(tmp_path):
    put(tmp_path / "proc/self/cgroup", "0::/pod/box\n")
    put(tmp_path / "sys/fs/cgroup/cpu.max", "max 100000\n")
    assert quota_cores(tmp_path) is None
    put(tmp_path / "sys/fs/cgroup/pod/cpu.max", "150000 100000\n")
    put(tmp_path / "sys/fs/cgroup/pod/box/cpu.max", "800000 100000\n")
    assert quota_cores(tmp_path) == 1.5


def test_quota_of_version_1(tmp_path):
    put(tmp_path / "proc/self/cgroup", "5:memory:/m\n4:cpu,cpuacct:/docker/abc\n")
    put(tmp_path / "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "400000\n")
    put(tmp_path / "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n")
    put(tmp_path / "sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us", "-1\n")
    assert quota_cores(tmp_path) == 4


def test_cores_are_what_this_process_may_use(tmp_path):
    assert read_cpu(tmp_path).cores_usable == len(os.sched_getaffinity(0))
    put(tmp_path / "sys/fs/cgroup/cpu.max", "20000 100000")
    assert read_cpu(tmp_path).cores_usable == 1


def test_processor(tmp_path):
    put(tmp_path / "proc/cpuinfo", "processor\t: 0\nmodel name\t: Fast  Chip 9000\nprocessor\t: 1\n")
    put(tmp_path / "proc/loadavg", "3.25 1 1 1/2 3\n")
    for number, package in enumerate("0101"):
        put(tmp_path / f"sys/devices/system/cpu/cpu{number}/topology/physical_package_id", package + "\n")
    for number in range(4):
        put(tmp_path / f"sys/devices/system/node/node{number}/cpulist", "")
    cpu = read_cpu(tmp_path)
    assert (cpu.model, cpu.sockets, cpu.numa_nodes, cpu.load_1min) == ("Fast Chip 9000", 2, 4, 3.25)


def test_what_the_kernel_does_not_say_is_none(tmp_path):
    cpu = read_cpu(tmp_path)
    assert (cpu.model, cpu.sockets, cpu.numa_nodes, cpu.load_1min) == (None, None, None, None)
    assert shared_memory(tmp_path / "missing") == (None, None)


def test_shared_memory_is_the_file_system_s_size(tmp_path):
    told = os.statvfs(tmp_path)
    size, free = shared_memory(tmp_path)
    assert size == told.f_blocks * told.f_frsize
    assert 0 <= free <= size


def test_locked_memory(monkeypatch):
    monkeypatch.setattr(limits.resource, "getrlimit", lambda _: (65536, 2**30))
    assert memlock_bytes() == 65536
    monkeypatch.setattr(limits.resource, "getrlimit", lambda _: (limits.resource.RLIM_INFINITY, 0))
    assert memlock_bytes() == limits.UNLIMITED


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (".dockerenv", ""),
        ("run/.containerenv", ""),
        ("proc/1/cgroup", "12:cpu:/kubepods/burstable/pod1\n"),
        ("proc/self/cgroup", "0::/system.slice/containerd.service\n"),
    ],
)
def test_marks_of_a_container(tmp_path, file, text):
    assert not in_container({}, tmp_path)
    put(tmp_path / file, text)
    assert in_container({}, tmp_path)


def test_the_environment_tells_of_a_container(tmp_path):
    assert in_container({"container": "podman"}, tmp_path)
    assert in_container({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, tmp_path)


def test_nics(tmp_path):
    net = tmp_path / "sys/class/net"
    for name, place, state, speed in (("eth7", "pci0000:00", "up", "25000"), ("veth1", "virtual", "down", "10000")):
        device = tmp_path / f"sys/devices/{place}/net/{name}"
        put(device / "operstate", state)
        put(device / "speed", speed)
        net.mkdir(parents=True, exist_ok=True)
        (net / name).symlink_to(device)
    put(tmp_path / "sys/devices/pci0000:00/net/eth7/device/numa_node", "1\n")
    lo = tmp_path / "sys/devices/virtual/net/lo"
    put(lo / "operstate", "unknown")
    put(lo / "carrier", "1")
    (net / "lo").symlink_to(lo)
    port = tmp_path / "sys/class/infiniband/mlx5_4/ports/1"
    put(port / "state", "4: ACTIVE\n")
    put(port / "rate", "400 Gb/sec (4X NDR)\n")
    put(port / "link_layer", "InfiniBand\n")
    put(tmp_path / "sys/class/infiniband/mlx5_5/ports/1/state", "1: DOWN\n")
    eth, loopback, veth, fast, idle = read_nics(tmp_path)
    assert (eth.name, eth.kind, eth.up, eth.virtual, eth.speed_mbit, eth.numa_node) == (
        "eth7", "net", True, False, 25000, 1,
    )  # fmt: skip
    assert (loopback.name, loopback.up, loopback.virtual, loopback.speed_mbit) == ("lo", True, True, None)
    assert (veth.up, veth.virtual) == (False, True)
    assert (fast.name, fast.kind, fast.up, fast.speed_mbit, fast.link_layer) == (
        "mlx5_4", "ib", True, 400000, "InfiniBand",
    )  # fmt: skip
    assert (idle.up, idle.speed_mbit, idle.link_layer) == (False, None, None)


def test_a_machine_without_network(tmp_path):
    assert read_nics(tmp_path) == ()
