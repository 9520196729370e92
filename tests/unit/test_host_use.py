"""What others take from the processors and the memory: the kernel's files, and what two readings of them say."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nccltune.machine import host_use
from nccltune.machine.host_use import CpuTimes, HostReading, Process, compare

TICK_S = 1 / os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
counts = st.integers(0, 2**63)


def kernel(proc, *, stat="", pressure="", vmstat="", processes=None):
    """A ``/proc`` with these files."""
    for name, text in {"stat": stat, "pressure/memory": pressure, "vmstat": vmstat}.items():
        (proc / name).parent.mkdir(parents=True, exist_ok=True)
        (proc / name).write_text(text)
    for pid, text in (processes or {}).items():
        (proc / str(pid)).mkdir()
        (proc / str(pid) / "stat").write_text(text)


def process_line(pid, name, parent=1, user=0, system=0):
    return f"{pid} ({name}) S {parent} 1 1 0 -1 4194560 9 9 0 0 {user} {system} 0 0 20 0 1 0 5 6 7"


# ---- the kernel's files


@settings(deadline=None)
@given(st.lists(st.lists(counts, min_size=8, max_size=10), min_size=1, max_size=4), st.data())
def test_the_times_of_the_cores_in_use_are_added_up(cores, data):
    chosen = data.draw(st.sets(st.integers(0, len(cores) - 1), min_size=1))
    lines = [f"cpu{number} {' '.join(map(str, ticks))}" for number, ticks in enumerate(cores)]
    text = "\n".join(["cpu  9 9 9 9 9 9 9 9 9 9", *lines, "intr 7 7", "ctxt 5"])
    used = sum(sum(cores[number][:3]) for number in chosen)
    total = sum(sum(cores[number][:8]) for number in chosen)
    found = host_use.parse_stat(text, chosen)
    if not total:
        assert found is None
    else:
        assert found is not None
        assert found.used_s == pytest.approx(used * TICK_S)
        assert found.total_s == pytest.approx(total * TICK_S)
        assert found.stolen_s == pytest.approx(sum(cores[number][7] for number in chosen) * TICK_S)


def test_a_kernel_that_counts_nothing_is_not_known():
    assert host_use.parse_stat("cpu  0 0 0 0\ncpu0 0 0 0 0 0 0 0 0\n") is None


def test_an_old_kernel_knows_no_stolen_time():
    found = host_use.parse_stat("cpu0 100 0 50 50\n")
    assert found == CpuTimes(used_s=150 * TICK_S, stolen_s=0.0, total_s=200 * TICK_S)


@settings(deadline=None)
@given(st.integers(1, 2**22), st.text(min_size=1, max_size=15), st.integers(0, 2**22), counts, counts)
def test_the_name_of_a_process_may_hold_anything(pid, name, parent, user, system):
    found = host_use.parse_process(process_line(pid, name, parent, user, system))
    assert found is not None
    process, seen = found
    assert seen == parent
    assert process.used_s == pytest.approx((user + system) * TICK_S)
    assert process.name.isprintable()
    assert process.name == name or not name.isprintable()


@settings(deadline=None)
@given(counts, counts)
def test_a_limit_and_its_periods(periods, throttled):
    text = f"usage_usec 5\nnr_periods {periods}\nnr_throttled {throttled}\nthrottled_usec 7\n"
    assert host_use.parse_limit(text) == (periods, throttled)


@settings(deadline=None)
@given(counts, counts)
def test_pages_swapped_in_and_out_are_added(into, out):
    text = f"nr_free_pages 1\npswpin {into}\npswpout {out}\n"
    assert host_use.parse_swap(text) == (into + out) * PAGE_BYTES


@settings(deadline=None)
@given(counts)
def test_the_time_in_which_somebody_waits_for_memory(total):
    text = f"some avg10=0.00 avg60=0.00 avg300=0.00 total={total}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=1\n"
    assert host_use.parse_pressure(text) == pytest.approx(total / 1e6)


@pytest.mark.parametrize("name", ["parse_stat", "parse_process", "parse_limit", "parse_swap", "parse_pressure"])
@settings(deadline=None)
@given(text=st.text())
def test_a_file_that_is_something_else_is_not_known(name, text):
    assert getattr(host_use, name)(text) is None


# ---- read


def test_the_files_are_read(tmp_path):
    cores = "".join(f"cpu{number} 100 0 0 100 0 0 0 0\n" for number in range(256))
    kernel(
        tmp_path / "proc", stat=cores, pressure="some avg10=0 total=2000000\n", vmstat="pswpin 1\npswpout 2\n",
        processes={7: process_line(7, "a (b) c", user=300)},
    )  # fmt: skip
    (tmp_path / "proc/self").mkdir()
    (tmp_path / "proc/self/cgroup").write_text("0::/mine/inner\n")
    (tmp_path / "sys/fs/cgroup/mine").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/mine/cpu.stat").write_text("nr_periods 10\nnr_throttled 3\n")
    found = host_use.read_host(tmp_path, own_s=lambda: 5.0)
    assert found.cpu is not None
    assert found.cpu.used_s == pytest.approx(found.cores * 100 * TICK_S)
    assert (found.own_s, found.stalled_s, found.swapped_bytes) == (5.0, 2.0, 3 * PAGE_BYTES)
    assert list(found.limits.values()) == [(10, 3)]
    assert found.processes == {7: Process("a (b) c", 300 * TICK_S)}


def test_where_the_kernel_says_nothing_nothing_is_known(tmp_path):
    found = host_use.read_host(tmp_path)
    assert (found.cpu, found.limits, found.stalled_s, found.swapped_bytes, found.processes) == (
        None, {}, None, None, None,
    )  # fmt: skip
    use = compare(found, replace(found, at_s=found.at_s + 10))
    assert use.seen == ()
    assert use.unknown == ("CPU time of others", "memory pressure")
    assert use.cpu_others is None


# ---- compared


BEFORE = HostReading(
    at_s=0.0, cores=2, cpu=CpuTimes(100.0, 1.0, 1000.0), own_s=50.0, limits={"/g": (100, 5), "/": (0, 0)},
    stalled_s=1.0, swapped_bytes=0, processes={3: Process("trainer", 40.0), 4: Process("gone", 9.0)},
)  # fmt: skip


def after(used_s=0.0, own_s=0.0, **changes):
    """The reading ten seconds later on two cores."""
    cpu = CpuTimes(100.0 + used_s, changes.pop("stolen_s", 1.0), 1020.0)
    return replace(BEFORE, at_s=10.0, cpu=cpu, own_s=50.0 + own_s, **changes)


def test_what_we_use_ourselves_disturbs_nobody():
    use = compare(BEFORE, after(used_s=19.5, own_s=19.0))
    assert use.seen == ()
    assert use.unknown == ()
    assert use.cpu_others == pytest.approx(0.025)


def test_what_others_use_is_said_with_their_names():
    processes = {3: Process("trainer", 46.0), 5: Process("new", 2.0), 6: Process("idle", 0.01)}
    (found,) = compare(BEFORE, after(used_s=18.0, own_s=10.0, processes=processes)).seen
    assert (found.kind, found.share) == ("cpu", 0.4)
    assert found.text == "other processes used 0.8 of 2 cores: trainer (pid 3) 0.6, new (pid 5) 0.2"


def test_another_process_under_an_old_id_is_not_taken_for_the_old_one():
    (found,) = compare(BEFORE, after(used_s=18.0, own_s=10.0, processes={4: Process("other", 5.0)})).seen
    assert found.text.endswith("other (pid 4) 0.5")


@pytest.mark.parametrize(("used_s", "own_s"), [(-5.0, 1.0), (1.0, 15.0)])
def test_a_kernel_that_counts_another_machine_is_not_known(used_s, own_s):
    use = compare(BEFORE, after(used_s=used_s, own_s=own_s))
    assert use.cpu_others is None
    assert use.unknown == ("CPU time of others",)


def test_what_does_not_descend_from_us_cannot_be_told_from_others():
    use = compare(BEFORE, after(used_s=18.0), ours_known=False)
    assert use.seen == ()
    assert use.unknown == ("CPU time of others",)


@pytest.mark.parametrize(
    ("changes", "kind", "text", "share"),
    [
        ({"stolen_s": 3.0}, "cpu", "the hypervisor kept 10 % of the CPU time from this machine", 0.1),
        ({"limits": {"/g": (200, 39)}}, "cpu-limit",
         "the control group's CPU limit held it up in 34 % of its periods", 0.34),
        ({"stalled_s": 3.0}, "memory", "processes waited for memory in 20 % of the time", 0.2),
        ({"swapped_bytes": 64 << 20}, "memory", "64 MiB were swapped", 0.0),
    ],
    ids=["stolen", "limit", "stalled", "swapped"],
)  # fmt: skip
def test_what_holds_a_launch_up_is_said_with_numbers(changes, kind, text, share):
    (found,) = compare(BEFORE, after(**changes)).seen
    assert (found.kind, found.text, found.share) == (kind, text, pytest.approx(share))


@pytest.mark.parametrize(
    "changes",
    [{"stolen_s": 1.2}, {"limits": {"/g": (200, 8)}}, {"stalled_s": 1.3}, {"swapped_bytes": 1 << 20}, {"limits": {}}],
    ids=["stolen", "limit", "stalled", "swapped", "moved"],
)
def test_a_little_of_it_is_not_worth_a_word(changes):
    assert compare(BEFORE, after(used_s=1.0, own_s=0.0, **changes)).seen == ()


def test_the_time_of_processes_that_have_ended_is_ours():
    before = host_use.own_cpu_s()
    grandchild = "import time\nwhile time.process_time() < 0.4: pass"
    child = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {grandchild!r}])"
    subprocess.run([sys.executable, "-c", child], check=True)
    assert host_use.own_cpu_s() - before >= 0.4
