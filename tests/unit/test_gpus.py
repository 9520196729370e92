from types import SimpleNamespace

import pytest

from nccltune.machine.gpus import read_gpus, visible

UUIDS = ["GPU-aa11", "GPU-aa22", "GPU-bb33", "GPU-cc44"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, ((0, 1, 2, 3), None)),
        ("", ((), None)),
        ("0,1", ((0, 1), None)),
        ("3,1", ((3, 1), None)),
        (" 2 , 0 ", ((2, 0), None)),
        ("1gpu,2", ((1, 2), None)),
        ("0,7,1", ((0,), "7")),
        ("0,-1,1", ((0,), None)),
        ("-1", ((), None)),
        ("0,one,1", ((0,), "one")),
        ("1,2,1", ((), "1")),
        ("GPU-bb33,GPU-aa11", ((2, 0), None)),
        ("GPU-b", ((2,), None)),
        ("GPU-aa", ((), "GPU-aa")),
        ("GPU-cc,0", ((3,), "0")),
        ("0,GPU-bb33", ((0,), "GPU-bb33")),
        ("GPU-bb33,GPU-b", ((), "GPU-b")),
        ("9" * 5000, ((), "9" * 5000)),
    ],
)
def test_visible_devices_as_cuda_reads_them(value, expected):
    assert visible(value, UUIDS) == expected


def test_one_mig_instance_is_shown():
    instances = {"MIG-1": 1, "MIG-2": 1}
    assert visible("MIG-2,MIG-1", UUIDS, instances) == ((1,), None)
    assert visible("MIG-9", UUIDS, instances) == ((), "MIG-9")


class Refused(Exception):
    """What the fake driver raises for everything that it does not support."""


class FakeNvml:
    """A driver with ``count`` equal GPUs; ``links[a][b]`` is the number of direct NVLinks, or switches join all."""

    NVMLError = Refused

    def __init__(self, count=2, links=None, switched=0, ancestor=50, **more):
        self.count, self.links, self.switched, self.ancestor = count, links or {}, switched, ancestor
        self.more = {"mig": [0, 0], "reasons": 1, "peers": 0, "pids": {}, **more}
        self.is_open = False

    def __getattr__(self, name):
        if name.startswith("nvml"):
            return self._refuse
        raise AttributeError(name)

    def _refuse(self, *arguments):
        raise Refused("Not Supported")

    def nvmlInit(self):
        self.is_open = True

    def nvmlShutdown(self):
        self.is_open = False

    def nvmlDeviceGetCount(self):
        return self.count

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetUUID(self, handle):
        return UUIDS[handle].encode()

    def nvmlDeviceGetName(self, handle):
        return "NVIDIA Z100"

    def nvmlDeviceGetPciInfo(self, handle):
        return SimpleNamespace(busId=f"0000000{handle}:1B:00.0".encode())

    def nvmlDeviceGetMemoryInfo(self, handle):
        return SimpleNamespace(total=80 * 2**30, used=2**29)

    def nvmlDeviceGetCudaComputeCapability(self, handle):
        return (9, 0)

    def nvmlDeviceGetMigMode(self, handle):
        return self.more["mig"]

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle):
        return self.more["reasons"]

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        return [SimpleNamespace(pid=pid) for pid in self.more["pids"].get(handle, [])]

    def nvmlSystemGetDriverVersion(self):
        return "777.10"

    def nvmlSystemGetCudaDriverVersion(self):
        return 13020

    def _ends(self, handle):
        if self.switched:
            return [("switch", number) for number in range(self.switched)]
        return [other for other, number in self.links.get(handle, {}).items() for _ in range(number)]

    def nvmlDeviceGetNvLinkState(self, handle, link):
        if link >= 18:
            raise Refused("Invalid Argument")
        return int(link < len(self._ends(handle)))

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle, link):
        end = self._ends(handle)[link]
        bus = f"000000FF:{end[1]:02X}:00.0" if self.switched else f"0000000{end}:1B:00.0"
        return SimpleNamespace(busId=bus.encode())

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle, link):
        return 2 if self.switched else 0

    def nvmlDeviceGetP2PStatus(self, one, other, what):
        if what == 2:
            return 0 if self.switched or self.links.get(one, {}).get(other) else 5
        return self.more["peers"]

    def nvmlDeviceGetTopologyCommonAncestor(self, one, other):
        return self.ancestor


def test_gpus_on_switches():
    nvml = FakeNvml(4, switched=18)
    reading = read_gpus({}, nvml)
    assert [gpu.index for gpu in reading.gpus] == [0, 1, 2, 3]
    first = reading.gpus[1]
    assert (first.name, first.uuid, first.pci_bus_id) == ("NVIDIA Z100", "GPU-aa22", "0001:1b:00.0")
    assert (first.memory_bytes, first.compute_capability, first.nvlinks) == (80 * 2**30, (9, 0), 18)
    assert (reading.driver, reading.cuda_driver, reading.nvswitch) == ("777.10", (13, 2), True)
    assert set(reading.topology.links.values()) == {"NV18"}
    assert len(reading.topology.links) == 6
    assert set(reading.topology.p2p.values()) == {"OK"}
    assert not nvml.is_open


def test_direct_links_and_the_path_of_the_rest():
    links = {0: {1: 4}, 1: {0: 4}, 2: {3: 2}, 3: {2: 2}}
    reading = read_gpus({}, FakeNvml(4, links=links, ancestor=40))
    assert reading.nvswitch is False
    told = reading.topology.links
    assert (told["0-1"], told["2-3"], told["0-2"], told["1-3"]) == ("NV4", "NV2", "NODE", "NODE")


def test_what_the_driver_does_not_say_is_none():
    reading = read_gpus({}, FakeNvml(2, peers=2, ancestor=20))
    assert reading.nvswitch is None
    assert reading.topology.links == {"0-1": "PXB"}
    assert reading.topology.p2p == {"0-1": "GNS"}
    gpu = reading.gpus[0]
    assert (gpu.sm_clock_mhz, gpu.sm_clock_max_mhz, gpu.numa_node) == (None, None, None)
    assert gpu.nvlinks == 0


def test_visible_gpus_are_counted_as_cuda_counts_them():
    reading = read_gpus({"CUDA_VISIBLE_DEVICES": "3,1"}, FakeNvml(4, links={1: {3: 6}, 3: {1: 6}}, pids={3: [7, 5, 7]}))
    assert [(gpu.index, gpu.driver_index) for gpu in reading.gpus] == [(0, 3), (1, 1)]
    assert reading.hidden == 2
    assert reading.topology.links == {"0-1": "NV6"}
    assert reading.gpus[0].processes == (5, 7)
    assert read_gpus({"CUDA_VISIBLE_DEVICES": ""}, FakeNvml(4)).hidden == 4


def test_an_entry_that_names_nothing_is_kept_for_the_message():
    reading = read_gpus({"CUDA_VISIBLE_DEVICES": "0,9"}, FakeNvml(2))
    assert (len(reading.gpus), reading.hidden, reading.invalid) == (1, 1, "9")


def test_throttling_and_mig():
    reading = read_gpus({}, FakeNvml(1, reasons=0x40 | 0x01 | 0x04, mig=[1, 1]))
    assert reading.gpus[0].throttle == ("hardware thermal slowdown",)
    assert reading.gpus[0].mig is True
    assert reading.topology.mig


def test_numa_node_comes_from_the_kernel(tmp_path):
    folder = tmp_path / "sys/bus/pci/devices/0000:1b:00.0"
    folder.mkdir(parents=True)
    (folder / "numa_node").write_text("1\n")
    reading = read_gpus({}, FakeNvml(2), tmp_path)
    assert [gpu.numa_node for gpu in reading.gpus] == [1, None]
    assert reading.topology.numa_affinity == {"0": "1"}


def test_no_driver_is_no_gpu():
    nvml = FakeNvml()
    nvml.nvmlInit = nvml._refuse
    reading = read_gpus({}, nvml)
    assert (reading.gpus, reading.error, reading.topology) == ((), "Not Supported", None)
