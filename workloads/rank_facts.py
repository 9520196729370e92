"""What one rank says of itself: device, versions, and the library that is really mapped."""

from __future__ import annotations

import os
import platform
import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .group import Group

_LIBRARY = re.compile(r"(/\S*libnccl\.so\S*)(?: \(deleted\))?$", re.MULTILINE)


def report(group: Group, echo: dict[str, str], median_step_us: float | None) -> dict[str, Any]:
    """Gather the facts of this rank.

    Args:
        group: Its place.
        echo: The variables that it saw before torch was imported.
        median_step_us: Of this rank alone.

    Returns:
        Fields of ``records.RankReport``.
    """
    import torch

    on_gpu = group.device.type == "cuda"
    return {
        "rank": group.rank,
        "local_rank": group.local_rank,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "device": torch.cuda.get_device_name(group.device) if on_gpu else processor(),
        "torch_version": str(torch.__version__),
        "nccl_version": nccl_version() if on_gpu else None,
        "nccl_library": mapped_library(_read(Path("/proc/self/maps"))) if on_gpu else None,
        "echo": echo,
        "peak_memory_bytes": torch.cuda.max_memory_allocated(group.device) if on_gpu else None,
        "median_step_us": median_step_us,
    }


def nccl_version() -> str | None:
    """Ask the loaded library for its version.

    Returns:
        For instance ``2.28.9``; ``None`` where torch has no NCCL.
    """
    import torch

    try:
        version: Any = torch.cuda.nccl.version  # calls ncclGetVersion of the library that is loaded
        found = version()
    except (AttributeError, RuntimeError):
        return None
    return ".".join(str(part) for part in found) if isinstance(found, tuple) else str(found)


def mapped_library(maps: str) -> str | None:
    """Find NCCL among the mapped files of a process.

    Args:
        maps: Text of ``/proc/PID/maps``.

    Returns:
        Path of the library; ``None`` where it is linked statically or absent.
    """
    found = _LIBRARY.search(maps)
    return found.group(1) if found else None


def processor() -> str:
    """Name the processor.

    Returns:
        The model's name, or the architecture where Linux does not say.
    """
    found = re.search(r"^model name\s*:\s*(.+)$", _read(Path("/proc/cpuinfo")), re.MULTILINE)
    return found.group(1).strip() if found else platform.machine()


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
