"""A machine's facts as lines of text for a person; pure."""

from __future__ import annotations

from collections import Counter

from .facts import Facts, fingerprint
from .limits import SHM, UNLIMITED
from .nics import Nic

_SIZES = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
_MOST_NICS = 12


def describe(facts: Facts) -> list[str]:
    """Say what was found, one fact a line; the first names torch, NCCL and the library that workers load."""
    return [
        _stack(facts),
        _gpus(facts),
        _cpu(facts),
        _network(facts),
        _limits(facts),
        *(
            f"inherited {name}={value!r} ({facts.inherited.sources.get(name, 'environment')})"
            if value != value.strip() or not value.isprintable()
            else f"inherited {name}={value} ({facts.inherited.sources.get(name, 'environment')})"
            for name, value in facts.inherited.settings.items()
        ),
        *(f"{plugin.kind} plugin {plugin.path} ({plugin.source})" for plugin in facts.inherited.plugins),
    ]


def _stack(facts: Facts) -> str:
    if facts.torch is None:
        return f"torch none: Python finds no such package, NCCL none; backend {facts.backend}"
    if not facts.torch.has_nccl:
        nccl = "NCCL none: this torch is built without it"
    elif facts.nccl is None or facts.nccl.library is None:
        nccl = "NCCL not found: the loader has no libnccl.so.2 for this torch"
    else:
        how = f", by {facts.nccl.how}" if facts.nccl.how else ""
        nccl = f"NCCL {facts.nccl.version or 'of unknown version'} ({facts.nccl.library}{how})"
    return f"torch {facts.torch.version} ({facts.torch.path}), {nccl}; backend {facts.backend}"


def _gpus(facts: Facts) -> str:
    hidden = f"; {facts.hidden} hidden by CUDA_VISIBLE_DEVICES" if facts.hidden else ""
    if not facts.gpus:
        return f"GPUs none{f' ({facts.gpu_error})' if facts.gpu_error else ''}{hidden}"
    names = Counter(
        f"{gpu.name or 'unknown GPU'}{f' {size_text(gpu.memory_bytes)}' if gpu.memory_bytes else ''}"
        for gpu in facts.gpus
    )
    cuda = f", CUDA {facts.cuda_driver[0]}.{facts.cuda_driver[1]}" if facts.cuda_driver else ""
    # The words of the fingerprint, also where torch has no use for these GPUs.
    links = fingerprint(facts).get("links", facts.links)
    models = ", ".join(f"{count}x {name}" for name, count in sorted(names.items()))
    return f"GPUs {models}; links {links}; driver {facts.driver or 'unknown'}{cuda}{hidden}"


def _cpu(facts: Facts) -> str:
    cpu = facts.cpu
    nodes = f", {cpu.numa_nodes} NUMA node{'s' if cpu.numa_nodes != 1 else ''}" if cpu.numa_nodes else ""
    online = f" of {cpu.cores_online}" if cpu.cores_online and cpu.cores_online != cpu.cores_usable else ""
    return f"CPU {cpu.model or cpu.architecture or 'unknown'}, {cpu.cores_usable}{online} cores usable{nodes}"


def _network(facts: Facts) -> str:
    useful = [nic for nic in facts.nics if nic.up and not nic.virtual]
    shown = ", ".join(_nic(nic) for nic in useful[:_MOST_NICS])
    more = f" and {len(useful) - _MOST_NICS} more" if len(useful) > _MOST_NICS else ""
    return f"network {shown}{more}" if useful else "network none but virtual or idle interfaces"


def _nic(nic: Nic) -> str:
    words = [nic.name, nic.link_layer or "", f"{nic.speed_mbit / 1000:g} Gbit/s" if nic.speed_mbit else ""]
    return " ".join(word for word in words if word)


def _limits(facts: Facts) -> str:
    locked = facts.memlock_bytes
    lock = "unknown" if locked is None else "unlimited" if locked == UNLIMITED else size_text(locked)
    shared = "unknown" if facts.shm_bytes is None else size_text(facts.shm_bytes)
    return f"{SHM} {shared}, locked memory {lock}, {'container' if facts.container else 'no container'}"


def size_text(size: int) -> str:
    """Write a number of bytes with a binary unit: ``23.6 GiB``."""
    for unit, name in _SIZES:
        if size >= unit:
            return f"{size / unit:.3g} {name}" if size / unit < 1000 else f"{size / unit:.0f} {name}"
    return f"{size} B"
