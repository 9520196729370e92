"""Enter and leave the process group; nothing here waits for torch's ten or thirty minutes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from .control import Control
from .request import Request

if TYPE_CHECKING:
    import torch

LEAVE_S = 5.0


@dataclass(frozen=True)
class Group:
    """This rank's place in the launch.

    Attributes:
        device: The selected GPU, or the CPU.
        control: The channel beside the communicator.
        hosts_store: Whether the store lives in this process, so that it must leave last.
    """

    rank: int
    local_rank: int
    world_size: int
    device: torch.device
    control: Control
    hosts_store: bool


def join(request: Request) -> Group:
    """Form the process group and select the device.

    Torchrun's store is opened twice: a read of a ``TCPStore`` blocks all users of the same connection
    (``torch/csrc/distributed/c10d/TCPStore.cpp``, ``activeOpLock_``), and NCCL's watchdog is one of them.

    Args:
        request: The request; ``limits.startup_s`` bounds every wait of the group.

    Returns:
        This rank's place.

    Raises:
        RuntimeError: Torch could not form the group.
    """
    import torch

    distributed = _distributed()
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local_rank = int(os.environ["LOCAL_RANK"])
    timeout = timedelta(seconds=request.limits.startup_s)
    device = torch.device("cuda", local_rank) if request.backend == "nccl" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    own, groups = _open_store(timeout), _open_store(timeout)
    distributed.init_process_group(
        request.backend,
        store=distributed.PrefixStore("group", groups),
        rank=rank,
        world_size=world_size,
        timeout=timeout,
        device_id=device if device.type == "cuda" else None,
    )
    control = Control(distributed.PrefixStore("control", own), rank, world_size, request.limits.no_progress_s)
    hosts_store = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    return Group(rank, local_rank, world_size, device, control, hosts_store)


def beside(request: Request) -> Group:
    """Take a place beside the process group that a script has formed for itself.

    Args:
        request: The request.

    Returns:
        This rank's place, as torchrun has given it.

    Raises:
        RuntimeError: Torchrun's store cannot be reached.
    """
    import torch

    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    on_gpu = request.backend == "nccl"
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    own = _open_store(timedelta(seconds=request.limits.startup_s))
    control = Control(_distributed().PrefixStore("nccltune", own), rank, world_size, request.limits.no_progress_s)
    hosts_store = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    return Group(rank, int(os.environ["LOCAL_RANK"]), world_size, device, control, hosts_store)


def leave(group: Group) -> None:
    """Destroy the process group, but wait no longer than ``LEAVE_S`` for it.

    A candidate that hangs in NCCL's own shutdown has given its result already.

    Args:
        group: What ``join`` returned.
    """
    group.control.announce("leaving")
    _bounded(lambda: _destroy(group.device))
    # The host of the store goes last: the others' threads may still look into it.
    if group.rank or group.hosts_store:
        _bounded(lambda: group.control.gather("left", True))


def _destroy(device: torch.device) -> None:
    import torch

    if device.type == "cuda":
        torch.cuda.set_device(device)  # a thread begins with GPU 0, where this rank has no business
    if _distributed().is_initialized():  # a script may have done so itself
        _distributed().destroy_process_group()


def _distributed() -> Any:
    """Give ``torch.distributed``, whose stubs differ from release to release in what they export."""
    from torch import distributed

    return distributed


def _open_store(timeout: timedelta) -> Any:
    store, _, _ = next(iter(_distributed().rendezvous("env://", timeout=timeout)))
    return store


def _bounded(action: Callable[[], object]) -> None:
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    thread.join(LEAVE_S)
