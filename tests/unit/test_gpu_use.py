"""Who else is on the GPUs, and what holds their clocks down: a driver that is made up, sample by sample."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from nccltune.machine import gpu_use
from nccltune.machine.gpu_use import GpuProcess, GpuSample, GpuState, judge

MIB = 1 << 20
SMALL = GpuState(reasons=0, used_bytes=3 * MIB, is_exact=True, processes=())


def samples(*states, second=None):
    """Samples of GPU 0, and of GPU 1 where there is one: before the launch, in each second of it, after it."""
    return [
        GpuSample(at_s, {0: state} | ({} if second is None else {1: second[at]}))
        for at, (at_s, state) in enumerate(zip([0.0, 0.3, *range(1, 99)], states, strict=False))
    ]


def state(*processes, reasons=0, used_mib=3, is_exact=True):
    return GpuState(reasons=reasons, used_bytes=used_mib * MIB, is_exact=is_exact, processes=processes)


RANK = GpuProcess(100, "python", 2000 * MIB, is_ours=True)
OTHER = GpuProcess(7, "jupyter", 3000 * MIB, is_ours=False)
UNSEEN = GpuProcess(9, "", 500 * MIB, is_ours=None)


# ---- users


def test_the_launch_itself_disturbs_nobody():
    use = judge(samples(SMALL, SMALL, state(RANK, used_mib=5000), state(RANK, used_mib=5000), SMALL))
    assert use.seen == ()
    assert use.unknown == ()
    assert use.power_capped == 0


def test_a_process_that_was_there_before_is_named_with_its_memory_and_work():
    (found,) = judge(
        samples(state(OTHER), state(OTHER), state(OTHER, RANK), state(OTHER)), lambda index, pid: 0.3 + index
    ).seen
    assert (found.kind, found.share) == ("gpu-user", 0.3)
    assert found.text == "jupyter (pid 7) is on GPU 0 too, 3,000 MiB, busy 30 % of the time"


def test_a_process_that_comes_during_the_launch_is_named():
    (found,) = judge(samples(SMALL, SMALL, state(RANK), state(OTHER, RANK), SMALL)).seen
    assert found.text.startswith("jupyter (pid 7) is on GPU 0 too")
    assert found.share is None


def test_ids_that_are_not_this_machines_accuse_nobody_who_came_later():
    """In a container the driver may show the host's ids, and ours among them as strangers."""
    stranger = GpuProcess(4711, "bash", 2000 * MIB, is_ours=False)
    assert judge(samples(SMALL, SMALL, state(stranger, UNSEEN), state(stranger, UNSEEN), SMALL)).seen == ()


def test_an_id_that_is_not_this_machines_has_no_name():
    (found,) = judge(samples(state(OTHER), state(OTHER), state(OTHER), state(OTHER))).seen
    assert found.text.startswith("another process (pid 7) is on GPU 0 too")


def test_a_process_of_the_launch_before_that_is_just_going_is_nobody():
    assert judge(samples(state(OTHER), SMALL, state(RANK), SMALL)).seen == ()


def test_the_server_that_shares_a_gpu_out_is_no_user():
    server = GpuProcess(8, "nvidia-cuda-mps", 30 * MIB, is_ours=False)
    assert judge(samples(state(server), state(server), state(server, RANK), state(server))).seen == ()


@pytest.mark.parametrize(
    ("first", "second", "is_exact", "expected"),
    [(3000, 3000, True, True), (3000, 3, True, False), (600, 600, False, False), (3000, 3000, False, True)],
    ids=["held", "freed soon", "reserved by the driver", "held, and reserved"],
)
def test_memory_that_nobody_is_seen_to_hold(first, second, is_exact, expected):
    early = [state(used_mib=used, is_exact=is_exact) for used in (first, second)]
    later = state(RANK, used_mib=9000, is_exact=is_exact)
    found = judge(samples(*early, later, later, early[1])).seen
    assert [each.text for each in found] == (
        ["somebody else holds 3,000 MiB of GPU 0's memory; no process is visible here"] if expected else []
    )


# ---- clocks


@pytest.mark.parametrize(
    ("bits", "words"),
    [
        (0x20, "software thermal slowdown"),
        (0x40 | 0x08, "hardware thermal slowdown"),
        (0x80 | 0x08, "hardware power brake"),
        (0x08, "hardware slowdown"),
    ],
)
def test_what_holds_the_clocks_down_is_named_with_its_share(bits, words):
    during = [state(reasons=bits), *[state(reasons=0)] * 3]
    (found,) = judge(samples(SMALL, *during, SMALL)).seen
    assert (found.kind, found.share) == ("gpu-clock", 0.25)
    assert found.text == f"{words} held the clocks of GPU 0 down in 25 % of 4 samples"


def test_the_power_limit_and_idle_clocks_are_how_a_healthy_gpu_lives():
    use = judge(samples(SMALL, state(reasons=0x04), state(reasons=0x01), SMALL))
    assert use.seen == ()
    assert use.power_capped == 0.5


def test_samples_from_before_and_after_the_launch_say_nothing_of_its_clocks():
    hot = state(reasons=0x40)
    assert judge(samples(hot, SMALL, SMALL, hot)).seen == ()


def test_the_worst_gpu_stands_for_all_that_were_held_down():
    cool, hot = state(), state(reasons=0x20)
    (found,) = judge(samples(cool, hot, cool, cool, second=[cool, hot, hot, cool])).seen
    assert found.text == "software thermal slowdown held the clocks of GPU 1 down in 100 % of 2 samples (2 GPUs in all)"


def test_one_sample_of_many_is_no_slowdown():
    assert judge(samples(SMALL, state(reasons=0x20), *[state()] * 30, SMALL)).seen == ()


def test_what_the_driver_does_not_say_is_not_known():
    use = judge(samples(*[GpuState()] * 4))
    assert use == gpu_use.GpuUse(unknown=("other users of the GPUs", "GPU clocks"))
    assert judge([]).unknown == ("GPUs",)


# ---- the driver


class Refused(Exception):
    """What the fake driver raises for everything that it does not support."""


class FakeNvml:
    """A driver with two GPUs; what is not a method here is refused."""

    NVMLError = Refused
    nvmlMemory_v2 = 2

    def __init__(self, pids=(), mig=0, reserved_mib=500, has_v2=True):
        self.pids, self.mig, self.reserved_mib, self.has_v2 = pids, mig, reserved_mib, has_v2
        self.asked_since = None

    def __getattr__(self, name):
        if name.startswith("nvml"):
            return self._refuse
        raise AttributeError(name)

    def _refuse(self, *arguments):
        raise Refused("Not Supported")

    def nvmlInit(self):
        pass

    def nvmlDeviceGetCount(self):
        return 2

    def nvmlDeviceGetHandleByIndex(self, index):
        return f"gpu{index}"

    def nvmlDeviceGetMigMode(self, handle):
        return [self.mig, 0]

    def nvmlDeviceGetMemoryInfo(self, handle, version=None):
        if version and not self.has_v2:
            raise Refused("Function Not Found")
        return SimpleNamespace(used=(3 if version else 3 + self.reserved_mib) * MIB)

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle):
        return 0x40 if handle == "gpu1" else 0

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        return [SimpleNamespace(pid=pid, usedGpuMemory=None) for pid in self.pids]

    def nvmlDeviceGetProcessUtilization(self, handle, since):
        self.asked_since = since
        return [SimpleNamespace(pid=7, smUtil=20), SimpleNamespace(pid=7, smUtil=40), SimpleNamespace(pid=8, smUtil=99)]


def proc(folder, parents):
    """A ``/proc`` of processes with these parents."""
    for pid, parent in parents.items():
        (folder / str(pid)).mkdir()
        (folder / str(pid) / "stat").write_text(f"{pid} (p{pid}) S {parent} 1 1 0 -1 0 0 0 0 0 5 5 0 0 20 0 1")
    return folder


def test_the_gpus_are_those_that_the_ranks_use(tmp_path):
    gpus = gpu_use.find({"CUDA_VISIBLE_DEVICES": "1,0"}, 1, FakeNvml(), tmp_path)
    assert gpus is not None
    assert gpus.states() == {0: GpuState(reasons=0x40, used_bytes=3 * MIB, is_exact=True, processes=())}


def test_a_driver_that_counts_its_own_memory_is_known_as_such(tmp_path):
    gpus = gpu_use.find({}, 2, FakeNvml(has_v2=False), tmp_path)
    assert gpus is not None
    assert [(each.used_bytes, each.is_exact) for each in gpus.states().values()] == [(503 * MIB, False)] * 2


def test_how_busy_a_process_keeps_a_gpu(tmp_path):
    nvml = FakeNvml()
    gpus = gpu_use.find({}, 2, nvml, tmp_path)
    assert gpus is not None
    assert gpus.busy(0, 7, since=1000.5) == pytest.approx(0.3)
    assert nvml.asked_since == 1_000_500_000
    assert gpus.busy(0, 6, since=0.0) is None


@pytest.mark.parametrize(
    ("environ", "nvml"),
    [({}, FakeNvml(mig=1)), ({"CUDA_VISIBLE_DEVICES": ""}, FakeNvml())],
    ids=["instances", "none visible"],
)
def test_gpus_whose_state_says_nothing_of_the_launch_are_not_watched(environ, nvml, tmp_path):
    assert gpu_use.find(environ, 2, nvml, tmp_path) is None


def test_a_machine_without_a_driver_has_nothing_to_watch(tmp_path):
    broken = FakeNvml()
    broken.nvmlInit = broken._refuse
    assert gpu_use.find({}, 2, broken, tmp_path) is None


def test_whose_process_it_is(tmp_path):
    found = proc(tmp_path, {20: 10, 30: 20, 40: 1, 1: 0, 50: 51})
    assert gpu_use.lineage(30, found, own=10) == ("p30", True)
    assert gpu_use.lineage(40, found, own=10) == ("p40", False)
    assert gpu_use.lineage(50, found, own=10) == ("p50", False)
    assert gpu_use.lineage(99, found, own=10) == ("", None)


def test_a_circle_of_parents_comes_to_an_end(tmp_path):
    assert gpu_use.lineage(2, proc(tmp_path, {2: 3, 3: 2}), own=10) == ("p2", False)
