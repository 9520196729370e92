"""Does this machine have what a setting needs? One small answer for each need; an unknown counts as there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import combinations
from typing import Final, TypeAlias

from ..machine.facts import Facts, Links, link_kind
from ..machine.topology import is_nvlink
from ..records import Placement
from .catalogue import Need, Nodes

Answer: TypeAlias = Callable[[Facts, Placement], str | None]

HOPPER: Final = (9, 0)
BLACKWELL: Final = (10, 0)


def ranks_per_node(placement: Placement) -> int:
    """The most ranks that one node, as NCCL counts them, can hold."""
    return -(-placement.world_size // placement.nccl_nodes)


def gpus_by_node(facts: Facts, placement: Placement) -> tuple[tuple[int, ...], ...]:
    """The GPUs that the ranks of this machine use, by node as NCCL counts nodes; rank k of a machine uses GPU k.

    Returns:
        A group for each emulated node, else one; empty where the GPUs are not known.
    """
    each = ranks_per_node(placement)
    used = sorted(facts.topology.gpus)[: placement.nproc_per_node] if facts.topology else []
    return tuple(tuple(used[start : start + each]) for start in range(0, len(used), each))


def pairs_in_use(facts: Facts, placement: Placement) -> tuple[tuple[int, int], ...]:
    """The pairs of GPUs that can talk without the network: those whose ranks are on one node."""
    return tuple(pair for group in gpus_by_node(facts, placement) for pair in combinations(group, 2))


def links_in_use(facts: Facts, placement: Placement) -> Links:
    """The kind of path that a ring inside each node can keep to; not that of GPUs which no rank uses."""
    if facts.topology is None:
        return facts.links
    kinds = {
        link_kind(facts.topology.model_copy(update={"gpus": group}), len(group))
        for group in gpus_by_node(facts, placement)
    }
    return kinds.pop() if len(kinds) == 1 else "pcie"


def why_not_on(nodes: Iterable[Nodes], placement: Placement) -> str | None:
    """Say why a setting that acts inside a node, between nodes, or both has nothing to act on."""
    inside, between = ranks_per_node(placement) > 1, placement.nccl_nodes > 1
    if ("one" in nodes and inside) or ("several" in nodes and between):
        return None
    if not (inside or between):
        return "there is one rank only"
    return "all ranks are on one node" if inside else "each node has one rank"


def why_not_here(needs: Iterable[Need], facts: Facts, placement: Placement) -> str | None:
    """Say what this machine lacks, or ``None``."""
    for need in needs:
        why = _ANSWERS[need](facts, placement) if need in _ANSWERS else None
        if why:
            return why
    return None


def _nvlink(facts: Facts, placement: Placement) -> str | None:
    if facts.topology is None:
        return None if facts.links == "nvlink" or len(facts.gpus) > 1 else "no GPUs are joined by NVLink"
    if any(is_nvlink(facts.topology.link(*pair)) for pair in pairs_in_use(facts, placement)):
        return None
    return "no GPUs are joined by NVLink"


def _pcie(facts: Facts, placement: Placement) -> str | None:
    return "all GPUs are joined by NVLink" if links_in_use(facts, placement) == "nvlink" else None


def _nvswitch(facts: Facts, _: Placement) -> str | None:
    return None if facts.nvswitch else "there is no NVSwitch"


def _multicast(facts: Facts, placement: Placement) -> str | None:
    """NVLS needs several GPUs of a node, up to 2.27 three (``src/transport/nvls.cc`` ``ncclNvlsInit``)."""
    version = facts.nccl.version_tuple if facts.nccl else None
    least = 3 if version and version < (2, 28) else 2
    few = ranks_per_node(placement) < least
    return _nvswitch(facts, placement) or (f"NVLS needs {least} ranks a node or more here" if few else None)


def _capability(least: tuple[int, int], name: str) -> Answer:
    def answer(facts: Facts, _: Placement) -> str | None:
        known = [gpu.compute_capability for gpu in facts.gpus if gpu.compute_capability]
        return f"needs GPUs from {name} on" if known and min(known) < least else None

    return answer


def _sockets(_: Facts, placement: Placement) -> str | None:
    return "all ranks are on one node, which needs no sockets" if placement.nccl_nodes == 1 else None


def _infiniband(facts: Facts, placement: Placement) -> str | None:
    if placement.emulated_nodes:
        return "emulated nodes talk over loopback sockets"
    return None if facts.has_infiniband else "no InfiniBand or RoCE port is up"


def _several_nics(facts: Facts, placement: Placement) -> str | None:
    if placement.emulated_nodes:
        return "emulated nodes talk over loopback sockets"
    count = max(
        sum(nic.kind == kind and nic.up is True and not nic.virtual for nic in facts.nics) for kind in ("net", "ib")
    )
    return None if count > 1 else "there is one network card at most"


def _collnet(facts: Facts, _: Placement) -> str | None:
    has_plugin = any(plugin.kind == "net" for plugin in facts.inherited.plugins)
    return None if has_plugin else "no network plugin that could bring CollNet is installed"


def _grace(facts: Facts, _: Placement) -> str | None:
    return None if facts.cpu.architecture in ("aarch64", "arm64", "") else "the CPU is no Grace"


def _one_process(_: Facts, __: Placement) -> str | None:
    return "torchrun starts one process for each GPU"


_ANSWERS: Final[Mapping[Need, Answer]] = {
    "nvlink": _nvlink,
    "pcie": _pcie,
    "nvswitch": _nvswitch,
    "multicast": _multicast,
    "hopper": _capability(HOPPER, "Hopper"),
    "blackwell": _capability(BLACKWELL, "Blackwell"),
    "sockets": _sockets,
    "infiniband": _infiniband,
    "gpudirect": _infiniband,
    "several_nics": _several_nics,
    "collnet": _collnet,
    "grace": _grace,
    "one_process": _one_process,
}
"""What facts can settle; the other needs depend on the workload and are left to the evidence."""
