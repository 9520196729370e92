"""The facts of a machine, gathered without importing torch and without starting a process."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from ..records import Backend, Placement, Record
from .gpus import Gpu, read_gpus
from .inherited import Inherited, read_inherited
from .library import NcclFacts, TorchFacts, find_nccl, read_torch, torch_folder
from .limits import Cpu, in_container, memlock_bytes, read_cpu, shared_memory
from .loader import read_dynamic
from .nics import Nic, read_nics
from .topology import Topology, groups, is_nvlink

Links = Literal["nvlink", "pcie", "none"]

_VENDOR_WORDS = {"nvidia", "geforce", "quadro", "tesla", "graphics", "device"}
_BUILD_WORDS = re.compile(r"(?:hbm\d\w*|sxm\d?)\Z")


class Facts(Record):
    """What this machine is, as far as it can be read; what cannot is ``None`` or empty.

    Attributes:
        torch: The torch that workers will import.
        nccl: The NCCL that they are expected to load.
        gpus: Those that CUDA shows under the caller's ``CUDA_VISIBLE_DEVICES``.
        hidden: GPUs that this variable hides.
        invalid_visible: The first entry of that variable that names no GPU.
        gpu_error: Why the driver could not be asked.
        driver: Its version.
        cuda_driver: The newest CUDA it can run.
        links: ``nvlink`` when all visible GPUs reach each other over NVLink, ``none`` with fewer than two GPUs.
        nvswitch: Whether the NVLinks lead to switches.
        topology: Paths between the visible GPUs.
        nics: Interfaces and InfiniBand or RoCE ports.
        shm_bytes: Size of ``/dev/shm``.
        shm_free_bytes: What is free of it.
        memlock_bytes: How much memory a process may lock; ``limits.UNLIMITED`` for no limit.
        container: Whether something says that this is a container.
        inherited: What NCCL would see before a candidate is set.
    """

    torch: TorchFacts | None = None
    nccl: NcclFacts | None = None
    gpus: tuple[Gpu, ...] = ()
    hidden: int = 0
    invalid_visible: str | None = None
    gpu_error: str | None = None
    driver: str | None = None
    cuda_driver: tuple[int, int] | None = None
    links: Links = "none"
    nvswitch: bool | None = None
    topology: Topology | None = None
    nics: tuple[Nic, ...] = ()
    cpu: Cpu = Cpu()
    shm_bytes: int | None = None
    shm_free_bytes: int | None = None
    memlock_bytes: int | None = None
    container: bool = False
    inherited: Inherited = Inherited()

    @property
    def backend(self) -> Backend:
        """The process-group backend that workloads use here."""
        return "nccl" if self.gpus and self.torch is not None and self.torch.has_nccl else "gloo"

    @property
    def has_infiniband(self) -> bool:
        """Whether an InfiniBand or RoCE port is up."""
        return any(nic.kind == "ib" and nic.up for nic in self.nics)


def gather(environ: Mapping[str, str], *, nvml: Any = None, root: Path = Path("/")) -> Facts:
    """Read the facts of this machine.

    Args:
        environ: The caller's environment; workers will inherit it.
        nvml: The module that answers for the driver; ``pynvml`` where ``None``.
        root: Where ``/sys``, ``/proc`` and ``/etc`` are read.
    """
    torch = read_torch(torch_folder())
    nccl = find_nccl(torch, environ, root)
    reading = read_gpus(environ, nvml, root)
    shm_bytes, shm_free_bytes = shared_memory()
    return Facts(
        torch=torch,
        nccl=nccl,
        gpus=reading.gpus,
        hidden=reading.hidden,
        invalid_visible=reading.invalid,
        gpu_error=reading.error,
        driver=reading.driver,
        cuda_driver=reading.cuda_driver,
        links=link_kind(reading.topology, len(reading.gpus)),
        nvswitch=reading.nvswitch,
        topology=reading.topology,
        nics=read_nics(root),
        cpu=read_cpu(root),
        shm_bytes=shm_bytes,
        shm_free_bytes=shm_free_bytes,
        memlock_bytes=memlock_bytes(),
        container=in_container(environ, root),
        inherited=read_inherited(
            environ,
            nccl_version=nccl.version_tuple if nccl else None,
            names=nccl.names if nccl else (),
            library=read_dynamic(Path(nccl.library)) if nccl and nccl.library else None,
            root=root,
        ),
    )


def link_kind(topology: Topology | None, count: int) -> Links:
    """The kind of path that a ring over the first ``count`` GPUs can keep to.

    ``nvlink`` needs every GPU to be reached over NVLink: pairs joined by NVLink with PCIe between the pairs are as
    slow as PCIe. Without a known path it is ``pcie``, which every machine has.
    """
    if count < 2:
        return "none"
    if topology is None:
        return "pcie"
    first = topology.model_copy(update={"gpus": tuple(sorted(topology.gpus)[:count])})
    return "nvlink" if any(len(group) == count for group in groups(first)) else "pcie"


def fingerprint(facts: Facts) -> dict[str, str]:
    """What must be equal for two measurements to be compared; no host name, no UUID.

    Returns:
        Field to text; on gloo the processor stands in for GPU, driver and NCCL.
    """
    told: dict[str, str | None] = {
        "backend": facts.backend,
        "torch": facts.torch.version if facts.torch else None,
    }
    if facts.backend == "gloo":
        told["cpu"] = facts.cpu.model or facts.cpu.architecture
        told["cores"] = str(facts.cpu.cores_usable)
    else:
        names = Counter(gpu.name or "unknown" for gpu in facts.gpus)
        told["gpus"] = ", ".join(f"{count}x {name}" for name, count in sorted(names.items()))
        told["links"] = _link_words(facts)
        told["driver"] = facts.driver
        told["nccl"] = facts.nccl.version if facts.nccl else None
        told["mig"] = "yes" if any(gpu.mig for gpu in facts.gpus) else None
    return {name: text for name, text in told.items() if text}


def _link_words(facts: Facts) -> str:
    """The kind of links with the number of pairs behind each path word: ``nvlink (28 NV18)``."""
    words = Counter(facts.topology.links.values()) if facts.topology else Counter[str]()
    ordered = sorted(words.items(), key=lambda entry: (not is_nvlink(entry[0]), entry[0]))
    detail = ", ".join(f"{count} {word}" for word, count in ordered)
    return facts.links + (f" ({detail})" if detail else "") + (", nvswitch" if facts.nvswitch else "")


def differences(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Name the fields in which two fingerprints differ.

    Returns:
        For instance ``driver: 570.10 before, 580.20 now``, by field name; empty when they are equal.
    """
    return [
        f"{name}: {before.get(name, 'unknown')} before, {now.get(name, 'unknown')} now"
        for name in sorted({*before, *now})
        if before.get(name) != now.get(name)
    ]


def cluster_name(facts: Facts, placement: Placement) -> str:
    """Name the cluster after its hardware: ``2xh200-nvlink``, ``2xh200-nvlink-emulated2``, ``cpu-2core``.

    Never a host name; safe as the name of a folder. Further nodes stand in front: ``4x8xh100-nvlink``.
    """
    nodes = f"{placement.nnodes}x" if placement.nnodes > 1 else ""
    emulated = f"-emulated{placement.emulated_nodes}" if placement.emulated_nodes else ""
    if facts.backend == "gloo":
        return f"{nodes}cpu-{facts.cpu.cores_usable}core{emulated}"
    used = facts.gpus[: placement.nproc_per_node]
    models = Counter(_model(gpu.name) for gpu in used)
    hardware = "-".join(f"{count}x{model}" for model, count in sorted(models.items()))
    kind = link_kind(facts.topology, len(used))
    return f"{nodes}{hardware}{'' if kind == 'none' else '-' + kind}{emulated}"


def _model(name: str | None) -> str:
    """``NVIDIA A100-SXM4-80GB`` → ``a100-80gb``; letters, digits, dots and dashes only."""
    words = re.findall(r"[a-z0-9.]+", (name or "").lower())
    kept = [word.strip(".") for word in words if word not in _VENDOR_WORDS and not _BUILD_WORDS.match(word)]
    return "-".join(word for word in kept if word)[:48].strip("-.") or "gpu"
