"""GPUs, their links and their state, from the driver's management library (nvidia-ml-py)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..records import Record
from .nvml import THROTTLES, Library, connect
from .topology import Topology, pair

VISIBLE = "CUDA_VISIBLE_DEVICES"

_MAX_LINKS = 36  # NVLinks a GPU may have; the driver refuses numbers beyond its own
# nvmlGpuTopologyLevel_t in the words of nvidia-smi
_ANCESTORS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
# nvmlGpuP2PStatus_t in the words of `nvidia-smi topo -p2p`
_P2P = {0: "OK", 1: "CNS", 2: "GNS", 3: "TNS", 4: "DR", 5: "NS"}
_P2P_READ, _P2P_WRITE, _P2P_NVLINK = 0, 1, 2
_REMOTE_SWITCH = 2  # NVML_NVLINK_DEVICE_TYPE_SWITCH
_CLOCK_SM = 1  # NVML_CLOCK_SM


class Gpu(Record):
    """One GPU that CUDA would show to a worker.

    Attributes:
        index: As CUDA counts it, after ``CUDA_VISIBLE_DEVICES``.
        driver_index: As the driver and nvidia-smi count it.
        pci_bus_id: Lower case, four-digit domain: ``0000:1b:00.0``.
        numa_node: Of the host's memory nearest to it.
        nvlinks: Active NVLinks, wherever they lead.
        sm_clock_mhz: Now.
        sm_clock_max_mhz: The most it can do.
        throttle: Why it is slower than it should be right now, if it is.
        processes: Ids of the processes that compute on it, as the driver sees them.
        mig: Whether it is cut into instances.
    """

    index: int
    driver_index: int | None = None
    name: str | None = None
    uuid: str | None = None
    memory_bytes: int | None = None
    memory_used_bytes: int | None = None
    compute_capability: tuple[int, int] | None = None
    pci_bus_id: str | None = None
    numa_node: int | None = None
    nvlinks: int | None = None
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    throttle: tuple[str, ...] = ()
    processes: tuple[int, ...] = ()
    mig: bool | None = None


@dataclass(frozen=True)
class GpuReading:
    """What the driver says.

    Attributes:
        gpus: The visible ones, in CUDA's order.
        hidden: GPUs that ``CUDA_VISIBLE_DEVICES`` hides.
        invalid: The first entry of that variable that names no GPU; CUDA ignores it and all after it.
        driver: Version of the driver.
        cuda_driver: The newest CUDA that the driver can run.
        nvswitch: Whether the NVLinks lead to switches; ``None`` where the driver does not say.
        topology: Links between the visible GPUs, by ``Gpu.index``.
        error: Why the driver could not be asked; ``None`` when it was.
    """

    gpus: tuple[Gpu, ...] = ()
    hidden: int = 0
    invalid: str | None = None
    driver: str | None = None
    cuda_driver: tuple[int, int] | None = None
    nvswitch: bool | None = None
    topology: Topology | None = None
    error: str | None = None


@dataclass(frozen=True)
class _Device:
    handle: Any
    gpu: Gpu
    remotes: tuple[str | None, ...] = ()  # bus id at the far end of each active NVLink
    switched: bool | None = None


def read_gpus(environ: Mapping[str, str], nvml: Any = None, root: Path = Path("/")) -> GpuReading:
    """Ask the driver for the GPUs that CUDA would show under ``environ``.

    Args:
        environ: Of the workers.
        nvml: The module to ask; ``pynvml`` where ``None``.
        root: Where ``/sys`` is.
    """
    library = connect(nvml)
    if isinstance(library, str):
        return GpuReading(error=library)
    try:
        return _read(library, environ, root)
    finally:
        library.ask("nvmlShutdown")


def _read(library: Library, environ: Mapping[str, str], root: Path) -> GpuReading:
    count = library.ask("nvmlDeviceGetCount") or 0
    handles = [library.ask("nvmlDeviceGetHandleByIndex", index) for index in range(count)]
    uuids = [library.ask("nvmlDeviceGetUUID", handle) if handle is not None else None for handle in handles]
    chosen, invalid = visible(environ.get(VISIBLE), uuids, _mig_uuids(library, handles))
    seen = [number for number in chosen if handles[number] is not None]
    devices = [_device(library, handles[number], index, number, root) for index, number in enumerate(seen)]
    cuda = library.ask("nvmlSystemGetCudaDriverVersion")
    switched = [device.switched for device in devices if device.switched is not None]
    return GpuReading(
        gpus=tuple(device.gpu for device in devices),
        hidden=count - len(set(chosen)),
        invalid=invalid,
        driver=library.ask("nvmlSystemGetDriverVersion"),
        cuda_driver=(cuda // 1000, cuda % 1000 // 10) if cuda else None,
        nvswitch=any(switched) if switched else None,
        topology=_topology(library, devices) if devices else None,
    )


def visible(
    value: str | None, uuids: Sequence[str | None], mig_uuids: Mapping[str, int] | None = None
) -> tuple[tuple[int, ...], str | None]:
    """Apply ``CUDA_VISIBLE_DEVICES`` as CUDA does.

    Numbers are read as ``strtoul`` reads them (``1gpu`` is 1), a UUID may be cut short while it stays unique, the
    first entry that names nothing ends the list, and a GPU named twice empties it. Source: the CUDA programming guide,
    and ``torch/cuda/__init__.py`` (``_parse_visible_devices``, ``_transform_uuid_to_ordinals``), which imitates it.

    Args:
        value: Of the variable; ``None`` when it is unset.
        uuids: Of all GPUs, in the driver's order.
        mig_uuids: UUIDs of MIG instances to the number of their GPU; CUDA shows one instance only.

    Returns:
        The driver's numbers of the visible GPUs, and the first entry that could not be used.
    """
    if value is None:
        return tuple(range(len(uuids))), None
    entries = value.split(",")
    prefix = next((prefix for prefix in ("GPU-", "MIG-") if value.startswith(prefix)), "")
    known = dict(mig_uuids or {}) if prefix == "MIG-" else {uuid: at for at, uuid in enumerate(uuids) if uuid}
    chosen: list[int] = []
    for entry in entries:
        number = _by_uuid(entry.strip(), prefix, known) if prefix else _by_number(entry.strip(), len(uuids))
        if number is None:
            wanted = entry.strip()
            return tuple(chosen), None if wanted in ("", "-1", "NoDevFiles", "none", "void") else wanted
        if number in chosen:
            return (), entry.strip()
        chosen.append(number)
        if prefix == "MIG-":
            break
    return tuple(chosen), None


def _by_number(entry: str, count: int) -> int | None:
    match = re.match(r"\+?([0-9]{1,6})", entry)
    return int(match[1]) if match and int(match[1]) < count else None


def _by_uuid(entry: str, prefix: str, known: Mapping[str, int]) -> int | None:
    if not entry.startswith(prefix):
        return None
    fitting = [number for uuid, number in known.items() if uuid.startswith(entry)]
    return fitting[0] if len(fitting) == 1 else None


def _mig_uuids(library: Library, handles: Sequence[Any]) -> dict[str, int]:
    found: dict[str, int] = {}
    for number, handle in enumerate(handles):
        if handle is None or not library.is_mig(handle):
            continue
        for at in range(library.ask("nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
            instance = library.ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, at)
            uuid = library.ask("nvmlDeviceGetUUID", instance) if instance is not None else None
            if uuid:
                found[uuid] = number
    return found


def _device(library: Library, handle: Any, index: int, number: int, root: Path) -> _Device:
    memory = library.ask("nvmlDeviceGetMemoryInfo", handle)
    pci = library.ask("nvmlDeviceGetPciInfo", handle)
    bus_id = _bus_id(pci.busId) if pci is not None else None
    capability = library.ask("nvmlDeviceGetCudaComputeCapability", handle)
    remotes, switched = _nvlinks(library, handle)
    reasons = library.clock_reasons(handle)
    gpu = Gpu(
        index=index,
        driver_index=number,
        name=library.ask("nvmlDeviceGetName", handle),
        uuid=library.ask("nvmlDeviceGetUUID", handle),
        memory_bytes=None if memory is None else int(memory.total),
        memory_used_bytes=None if memory is None else int(memory.used),
        compute_capability=None if capability is None else (int(capability[0]), int(capability[1])),
        pci_bus_id=bus_id,
        numa_node=_numa_node(root, bus_id),
        nvlinks=None if remotes is None else len(remotes),
        sm_clock_mhz=library.ask("nvmlDeviceGetClockInfo", handle, _CLOCK_SM),
        sm_clock_max_mhz=library.ask("nvmlDeviceGetMaxClockInfo", handle, _CLOCK_SM),
        throttle=tuple(text for bit, text in THROTTLES.items() if (reasons or 0) & bit),
        processes=tuple(
            sorted({int(process.pid) for process in library.ask("nvmlDeviceGetComputeRunningProcesses", handle) or ()})
        ),
        mig=library.is_mig(handle),
    )
    return _Device(handle, gpu, remotes or (), switched)


def _bus_id(text: str | bytes) -> str:
    """Bring ``00000000:1B:00.0`` to the kernel's spelling ``0000:1b:00.0``."""
    plain = text.decode(errors="replace") if isinstance(text, bytes) else str(text)
    domain, _, rest = plain.strip("\0 ").lower().partition(":")
    return f"{domain[-4:].zfill(4)}:{rest}"


def _numa_node(root: Path, bus_id: str | None) -> int | None:
    try:
        node = int((root / "sys/bus/pci/devices" / (bus_id or "") / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def _nvlinks(library: Library, handle: Any) -> tuple[tuple[str | None, ...] | None, bool | None]:
    """The far ends of the active NVLinks, and whether they are switches."""
    remotes: list[str | None] = []
    switched: bool | None = None
    for link in range(_MAX_LINKS):
        state = library.ask("nvmlDeviceGetNvLinkState", handle, link)
        if state is None:
            if link == 0:
                return None, None
            break
        if state != 1:
            continue
        remote = library.ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
        remotes.append(None if remote is None else _bus_id(remote.busId))
        if switched is None:
            kind = library.ask("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
            switched = kind == _REMOTE_SWITCH if kind in (0, 1, _REMOTE_SWITCH) else None
    return tuple(remotes), switched


def _topology(library: Library, devices: Sequence[_Device]) -> Topology:
    links: dict[str, str] = {}
    p2p: dict[str, str] = {}
    for at, one in enumerate(devices):
        for other in devices[at + 1 :]:
            name = pair(one.gpu.index, other.gpu.index)
            if word := _link(library, one, other):
                links[name] = word
            if status := _peer_access(library, one, other):
                p2p[name] = status
    nodes = {str(device.gpu.index): device.gpu.numa_node for device in devices}
    return Topology(
        gpus=tuple(device.gpu.index for device in devices),
        links=links,
        numa_affinity={index: str(node) for index, node in nodes.items() if node is not None},
        p2p=p2p,
        mig=any(device.gpu.mig for device in devices),
        source="driver",
    )


def _link(library: Library, one: _Device, other: _Device) -> str | None:
    """The path word between two GPUs, as ``nvidia-smi topo -m`` would print it."""
    direct = sum(remote == other.gpu.pci_bus_id for remote in one.remotes if remote is not None)
    if direct:
        return f"NV{direct}"
    if library.ask("nvmlDeviceGetP2PStatus", one.handle, other.handle, _P2P_NVLINK) == 0:
        # Through switches: every link of either leads to the other.
        width = min(len(one.remotes), len(other.remotes))
        return f"NV{width}" if width else "NV"
    ancestor = library.ask("nvmlDeviceGetTopologyCommonAncestor", one.handle, other.handle)
    return None if ancestor is None else _ANCESTORS.get(int(ancestor))


def _peer_access(library: Library, one: _Device, other: _Device) -> str | None:
    """``OK`` when both reading and writing work, else the driver's word for why not."""
    told = [library.ask("nvmlDeviceGetP2PStatus", one.handle, other.handle, what) for what in (_P2P_READ, _P2P_WRITE)]
    words = [_P2P.get(int(status)) for status in told if status is not None]
    return next((word for word in words if word != "OK"), words[0] if words else None)
