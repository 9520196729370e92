"""What the operating system allows: shared memory, locked memory, cores, container, disk."""

from __future__ import annotations

import os
import platform
import re
import resource
from collections.abc import Iterator, Mapping
from pathlib import Path

from ..records import Record

#: Stands for "no limit", so that comparisons work.
UNLIMITED = 2**63 - 1

SHM = "/dev/shm"  # noqa: S108 (where NCCL's shared memory is; nothing is written there)

_CONTAINER = re.compile(r"docker|kubepods|containerd|libpod|lxc|garden|crio", re.IGNORECASE)


class Cpu(Record):
    """The processor, as far as this process may use it.

    Attributes:
        model: ``None`` where the kernel does not say (most ARM servers).
        architecture: For instance ``x86_64``.
        cores_usable: Logical CPUs by affinity and control-group quota; 1 at least.
        cores_online: Logical CPUs of the machine.
        sockets: Physical packages.
        numa_nodes: NUMA nodes that have CPUs or memory.
        load_1min: Load average of the last minute.
    """

    model: str | None = None
    architecture: str = ""
    cores_usable: int = 1
    cores_online: int | None = None
    sockets: int | None = None
    numa_nodes: int | None = None
    load_1min: float | None = None


def read_cpu(root: Path = Path("/")) -> Cpu:
    """Read the processor's facts from ``/proc``, ``/sys`` and the affinity of this process."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = quota_cores(root)
    usable = affinity if quota is None else min(affinity, max(1, int(quota)))
    info = _read(root / "proc/cpuinfo")
    model = re.search(r"^(?:model name|Model)\s*:\s*(\S.*?)\s*$", info, re.MULTILINE)
    packages = {
        _read(path).strip() for path in root.glob("sys/devices/system/cpu/cpu[0-9]*/topology/physical_package_id")
    }
    nodes = [path for path in root.glob("sys/devices/system/node/node*") if path.name[4:].isdigit()]
    load = re.match(r"[0-9.]+", _read(root / "proc/loadavg"))
    return Cpu(
        model=" ".join(model[1].split()) if model else None,
        architecture=platform.machine(),
        cores_usable=usable,
        cores_online=os.cpu_count(),
        sockets=len(packages - {"", "-1"}) or None,
        numa_nodes=len(nodes) or None,
        load_1min=float(load[0]) if load else None,
    )


def quota_cores(root: Path = Path("/")) -> float | None:
    """The control group's CPU quota in cores, the tightest of all levels; ``None`` without one."""
    quotas = [quota for folder in control_groups(root, "cpu") if (quota := _quota(folder)) is not None]
    return min(quotas, default=None)


def control_groups(root: Path, controller: str) -> Iterator[Path]:
    """The control-group folders of this process, from its own up to the top, for version 2 and 1."""
    for line in _read(root / "proc/self/cgroup").splitlines() or ["0::/"]:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0":
            top = root / "sys/fs/cgroup"
        elif controller in controllers.split(","):
            top = root / "sys/fs/cgroup" / controllers
            top = top if top.is_dir() else root / "sys/fs/cgroup" / controller
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        yield from (top.joinpath(*parts[:length]) for length in range(len(parts), -1, -1))


def _quota(folder: Path) -> float | None:
    words = _read(folder / "cpu.max").split() or [
        _read(folder / "cpu.cfs_quota_us").strip(),
        _read(folder / "cpu.cfs_period_us").strip(),
    ]
    if len(words) == 2 and all(word.isdigit() for word in words) and int(words[1]) > 0:
        return int(words[0]) / int(words[1])
    return None


def shared_memory(folder: Path = Path(SHM)) -> tuple[int | None, int | None]:
    """Size of ``/dev/shm`` and what is free of it, in bytes."""
    try:
        told = os.statvfs(folder)
    except OSError:
        return None, None
    return told.f_blocks * told.f_frsize, told.f_bavail * told.f_frsize


def memlock_bytes() -> int | None:
    """How much memory this process may lock, in bytes; ``UNLIMITED`` for no limit."""
    try:
        soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    except (OSError, ValueError):
        return None
    return UNLIMITED if soft == resource.RLIM_INFINITY else soft


def in_container(environ: Mapping[str, str], root: Path = Path("/")) -> bool:
    """Whether something says that this is a container."""
    marks = (root / ".dockerenv", root / "run/.containerenv", root / ".singularity.d")
    if any(mark.exists() for mark in marks):
        return True
    if environ.get("container") or "KUBERNETES_SERVICE_HOST" in environ:
        return True
    return any(_CONTAINER.search(_read(root / f"proc/{process}/cgroup")) for process in ("self", "1"))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
