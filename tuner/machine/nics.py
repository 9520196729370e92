"""Network devices, from ``/sys/class/net`` and ``/sys/class/infiniband``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from ..records import Record


class Nic(Record):
    """A network interface of the kernel, or a port of an InfiniBand or RoCE device.

    Attributes:
        kind: ``net`` for an interface (``eth0``), ``ib`` for a device of the verbs library (``mlx5_0``).
        name: As NCCL names it.
        up: Whether it can carry data; ``None`` where unknown.
        speed_mbit: Nominal speed in Mbit/s.
        virtual: Whether no hardware stands behind it (bridges, loopback, container pairs).
        link_layer: Of an ``ib`` device: ``InfiniBand`` or ``Ethernet`` (RoCE).
        port: Of an ``ib`` device.
        numa_node: Where it is attached.
    """

    kind: Literal["net", "ib"]
    name: str
    up: bool | None = None
    speed_mbit: int | None = None
    virtual: bool | None = None
    link_layer: str | None = None
    port: int | None = None
    numa_node: int | None = None


def read_nics(root: Path = Path("/")) -> tuple[Nic, ...]:
    """All network devices that this process can see, interfaces first, each kind by name."""
    interfaces = [_interface(folder) for folder in _folders(root / "sys/class/net")]
    devices = [
        _port(device, port)
        for device in _folders(root / "sys/class/infiniband")
        for port in _folders(device / "ports")
        if port.name.isdigit()
    ]
    return (*interfaces, *devices)


def _interface(folder: Path) -> Nic:
    state = _read(folder / "operstate")
    speed = _number(folder / "speed")
    # The loopback's and some tunnels' state is "unknown" although they work; the carrier says.
    carrier = _read(folder / "carrier")
    up = {"up": True, "down": False, "lowerlayerdown": False, "notpresent": False, "dormant": False}.get(state or "")
    if up is None and carrier in ("0", "1"):
        up = carrier == "1"
    try:
        virtual = "/devices/virtual/" in str(folder.resolve(strict=True)) + "/"
    except OSError:
        virtual = None
    return Nic(
        kind="net",
        name=folder.name,
        up=up,
        speed_mbit=speed if speed is not None and speed > 0 else None,
        virtual=virtual,
        numa_node=_node(folder / "device/numa_node"),
    )


def _port(device: Path, port: Path) -> Nic:
    state = _read(port / "state")  # "4: ACTIVE"
    rate = (_read(port / "rate") or "").split()  # "400 Gb/sec (4X NDR)"
    try:
        speed = int(float(rate[0]) * 1000) if rate else None
    except (ValueError, OverflowError):
        speed = None
    return Nic(
        kind="ib",
        name=device.name,
        up=None if state is None else "ACTIVE" in state,
        speed_mbit=speed,
        virtual=False,
        link_layer=_read(port / "link_layer"),
        port=int(port.name),
        numa_node=_node(device / "device/numa_node"),
    )


def _node(path: Path) -> int | None:
    node = _number(path)
    return node if node is not None and node >= 0 else None


def _number(path: Path) -> int | None:
    try:
        return int(_read(path) or "")
    except ValueError:
        return None


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(entry for entry in folder.iterdir() if entry.is_dir())
    except OSError:
        return []


def _read(path: Path) -> str | None:
    """The text of a small kernel file without its line end; reading ``speed`` of a dead link is an error."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None
