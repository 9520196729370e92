"""What others take from this machine's processors and memory while a launch runs: the kernel's counters, twice.

All of it is read from ``/proc`` and the control groups' ``cpu.stat``; what the kernel does not give is ``None``.
"""

from __future__ import annotations

import os
import re
import resource
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..quantities import format_percent
from ..records import Disturbance
from .limits import control_groups

BUSY_LEAST = 0.10
"""Share of the usable cores' time from which it is said that others use it."""
STOLEN_LEAST = 0.02
"""Share of the usable cores' time from which it is said that the hypervisor keeps it."""
THROTTLED_LEAST = 0.05
"""Share of a control group's periods in which its CPU limit held it up."""
STALLED_LEAST = 0.05
"""Share of the time in which some process waited for memory."""
SWAPPED_LEAST_BYTES = 16 << 20

_MOST_PROCESSES = 1000  # reading more of them twice a launch could cost more than 1 % of a core
_NAMED = 3
_NAMED_LEAST = 0.05  # cores
_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class CpuTimes:
    """CPU time of some cores since the machine started, in seconds.

    Attributes:
        used_s: In processes, whoever's. Interrupts are left out: they serve whoever asked for them.
        stolen_s: Taken by the hypervisor.
        total_s: Everything, idle time too.
    """

    used_s: float
    stolen_s: float
    total_s: float


@dataclass(frozen=True)
class Process:
    """A process and its CPU time so far."""

    name: str
    used_s: float


@dataclass(frozen=True)
class HostReading:
    """The counters at one moment.

    Attributes:
        at_s: On the monotonic clock.
        cores: Over which the CPU times go.
        own_s: CPU time of this process and of all that it started and that has ended since.
        limits: Control-group folder to its periods and those in which its CPU limit held it up.
        stalled_s: Time in which some process waited for memory.
        swapped_bytes: Into and out of swap space.
        processes: By id; ``None`` where there are too many to read.
    """

    at_s: float
    cores: int
    cpu: CpuTimes | None = None
    own_s: float = 0.0
    limits: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    stalled_s: float | None = None
    swapped_bytes: int | None = None
    processes: Mapping[int, Process] | None = None


@dataclass(frozen=True)
class HostUse:
    """What others took between two readings.

    Attributes:
        seen: What is worth saying, in plain words.
        unknown: What the kernel does not tell.
        cpu_others: Share of the usable cores' time that other processes used.
    """

    seen: tuple[Disturbance, ...] = ()
    unknown: tuple[str, ...] = ()
    cpu_others: float | None = None


def own_cpu_s() -> float:
    """CPU time of this process and of its children that have ended, their own ended children included."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def read_host(root: Path = Path("/"), own_s: Callable[[], float] = own_cpu_s) -> HostReading:
    """Read the counters.

    Args:
        root: Where ``/proc`` and ``/sys`` are.
        own_s: CPU time that is ours.
    """
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    limits = ((str(folder), parse_limit(_text(folder / "cpu.stat"))) for folder in control_groups(root, "cpu"))
    return HostReading(
        at_s=time.monotonic(),
        cores=len(usable) if usable else os.cpu_count() or 1,
        cpu=parse_stat(_text(root / "proc/stat"), usable),
        own_s=own_s(),
        limits={folder: found for folder, found in limits if found is not None},
        stalled_s=parse_pressure(_text(root / "proc/pressure/memory")),
        swapped_bytes=parse_swap(_text(root / "proc/vmstat")),
        processes=_processes(root / "proc"),
    )


def compare(before: HostReading, after: HostReading, *, ours_known: bool = True) -> HostUse:
    """Say what others took in between.

    Args:
        before: At the start, before anything of ours was started.
        after: At the end, when all of it has ended.
        ours_known: Whether all that was started in between descends from this process.
    """
    wall_s = after.at_s - before.at_s
    if wall_s <= 0:
        return HostUse(unknown=("CPU time of others",))
    others = _others(before, after) if ours_known else None
    stolen = _stolen(before, after)
    found = [
        _busy(before, after, others, wall_s),
        _share("cpu", "the hypervisor kept {} of the CPU time from this machine", stolen, STOLEN_LEAST),
        _share("cpu-limit", "the control group's CPU limit held it up in {} of its periods",
               _throttled(before, after), THROTTLED_LEAST),
        _memory(before, after, wall_s),
    ]  # fmt: skip
    unknown = {
        "CPU time of others": others is None,
        "memory pressure": before.stalled_s is None or after.stalled_s is None,
    }
    return HostUse(
        seen=tuple(each for each in found if each is not None),
        unknown=tuple(name for name, missing in unknown.items() if missing),
        cpu_others=None if others is None else round(others, 4),
    )


# ---- the kernel's files


def parse_stat(text: str, cores: set[int] | None = None) -> CpuTimes | None:
    """Read ``/proc/stat`` (proc(5): ticks of user, nice, system, idle, iowait, irq, softirq, steal).

    Args:
        text: Of the file.
        cores: Which to add up; all where ``None``.

    Returns:
        ``None`` where the kernel does not count, which some sandboxes answer with zeros.
    """
    sums = [0] * 8
    for line in re.findall(r"^cpu([0-9]+) +([0-9 ]+)$", text, re.MULTILINE | re.ASCII):
        if cores is None or int(line[0]) in cores:
            # User time holds guest time already; kernels before 2.6.11 know no steal.
            ticks = [int(word) for word in line[1].split()][:8]
            sums = [total + each for total, each in zip(sums, ticks + [0] * 8, strict=False)]
    if not sum(sums):
        return None
    return CpuTimes(used_s=sum(sums[:3]) * _TICK_S, stolen_s=sums[7] * _TICK_S, total_s=sum(sums) * _TICK_S)


def parse_pressure(text: str) -> float | None:
    """Read ``/proc/pressure/memory``: seconds in which some process waited for memory."""
    found = re.search(r"^some .*\btotal=([0-9]+)", text, re.MULTILINE | re.ASCII)
    return int(found[1]) / 1e6 if found else None


def parse_limit(text: str) -> tuple[int, int] | None:
    """Read a control group's ``cpu.stat``: its periods, and those in which its limit held it up."""
    found = dict(re.findall(r"^(nr_periods|nr_throttled) ([0-9]+)$", text, re.MULTILINE | re.ASCII))
    return (int(found["nr_periods"]), int(found["nr_throttled"])) if len(found) == 2 else None


def parse_swap(text: str) -> int | None:
    """Read ``/proc/vmstat``: bytes that went into and out of swap space."""
    pages = re.findall(r"^pswp(?:in|out) ([0-9]+)$", text, re.MULTILINE | re.ASCII)
    return sum(map(int, pages)) * os.sysconf("SC_PAGE_SIZE") if pages else None


def parse_process(text: str) -> tuple[Process, int] | None:
    """Read ``/proc/<pid>/stat``: name and CPU time, and the parent's id. The name may hold anything, ``)`` too."""
    name, closing, rest = text.partition("(")[2].rpartition(")")
    words = rest.split()
    if not closing or len(words) < 13 or not all(words[at].isascii() and words[at].isdigit() for at in (1, 11, 12)):
        return None
    if not name.isprintable():
        name = "".join(each if each.isprintable() else "?" for each in name)
    return Process(name, (int(words[11]) + int(words[12])) * _TICK_S), int(words[1])


def _processes(proc: Path) -> dict[int, Process] | None:
    try:
        pids = [name for name in os.listdir(proc) if name.isdecimal()]  # noqa: PTH208 - half the time of iterdir
    except OSError:
        return None
    if len(pids) > _MOST_PROCESSES:
        return None
    folder = str(proc)
    read = ((int(pid), parse_process(_text(f"{folder}/{pid}/stat"))) for pid in pids)
    return {pid: found[0] for pid, found in read if found is not None}


def _text(path: Path | str) -> str:
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - a third of what a Path costs, for each process
            return file.read().decode(errors="replace")
    except OSError:
        return ""


# ---- what became of them


def _others(before: HostReading, after: HostReading) -> float | None:
    """Share of the cores' time that processes other than ours used."""
    total_s = _total(before, after)
    if before.cpu is None or after.cpu is None or not total_s:
        return None
    used_s, own_s = after.cpu.used_s - before.cpu.used_s, after.own_s - before.own_s
    if used_s < 0 or own_s > 2 * used_s + 1.0:
        return None  # what the kernel counts is not this machine
    return min(1.0, max(0.0, used_s - own_s) / total_s)


def _stolen(before: HostReading, after: HostReading) -> float | None:
    total_s = _total(before, after)
    if before.cpu is None or after.cpu is None or not total_s:
        return None
    return min(1.0, max(0.0, after.cpu.stolen_s - before.cpu.stolen_s) / total_s)


def _total(before: HostReading, after: HostReading) -> float:
    return after.cpu.total_s - before.cpu.total_s if before.cpu and after.cpu else 0.0


def _busy(before: HostReading, after: HostReading, others: float | None, wall_s: float) -> Disturbance | None:
    if others is None or others < BUSY_LEAST:
        return None
    who = _busiest(before, after, wall_s)
    named = f": {', '.join(who)}" if who else ""
    text = f"other processes used {others * after.cores:.1f} of {after.cores} cores{named}"
    return Disturbance(kind="cpu", text=text, share=round(others, 4))


def _busiest(before: HostReading, after: HostReading, wall_s: float) -> list[str]:
    """Name who used most; those that ended in between cannot be named."""
    if before.processes is None or after.processes is None:
        return []
    cores = {}
    for pid, process in after.processes.items():
        old = before.processes.get(pid)
        known = old is not None and old.name == process.name and old.used_s <= process.used_s
        cores[pid] = (process.used_s - (old.used_s if old and known else 0.0)) / wall_s
    cores.pop(os.getpid(), None)
    most = sorted(cores, key=lambda pid: -cores[pid])[:_NAMED]
    return [f"{after.processes[pid].name} (pid {pid}) {cores[pid]:.1f}" for pid in most if cores[pid] >= _NAMED_LEAST]


def _throttled(before: HostReading, after: HostReading) -> float | None:
    """Largest share of periods, over the control groups, in which the CPU limit held us up."""
    shares = [
        (after.limits[folder][1] - throttled) / (after.limits[folder][0] - periods)
        for folder, (periods, throttled) in before.limits.items()
        if folder in after.limits and after.limits[folder][0] > periods
    ]
    return max(shares, default=None)


def _memory(before: HostReading, after: HostReading, wall_s: float) -> Disturbance | None:
    stalled = 0.0
    if before.stalled_s is not None and after.stalled_s is not None:
        stalled = min(1.0, (after.stalled_s - before.stalled_s) / wall_s)
    swapped = (after.swapped_bytes or 0) - (before.swapped_bytes or 0)
    parts = []
    if stalled >= STALLED_LEAST:
        parts.append(f"processes waited for memory in {format_percent(stalled)} of the time")
    if swapped >= SWAPPED_LEAST_BYTES:
        parts.append(f"{swapped >> 20} MiB were swapped")
    return Disturbance(kind="memory", text=", ".join(parts), share=round(stalled, 4)) if parts else None


def _share(kind: str, text: str, share: float | None, least: float) -> Disturbance | None:
    if share is None or share < least:
        return None
    return Disturbance.model_validate(
        {"kind": kind, "text": text.format(format_percent(share)), "share": round(share, 4)}
    )
