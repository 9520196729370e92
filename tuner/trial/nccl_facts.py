"""What a log of NCCL says, once all of it was read."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from .nccl_forms import LogState

_T = TypeVar("_T")
# In the order of src/include/nccl_common.h; PAT from 2.23.
_ALGORITHMS: Final = ("Tree", "Ring", "CollnetDirect", "CollnetChain", "NVLS", "NVLSTree", "PAT")
_PROTOCOLS: Final = ("LL", "LL128", "Simple")
_INTERNAL_NETWORKS: Final = frozenset({"IB", "Socket"})


@dataclass
class Communicator:
    """One communicator as its ranks' lines show it.

    Attributes:
        ranks: Rank to the host that its line came from, where the line says.
        complete: Ranks whose start-up ended.
        devices: Host to the CUDA devices seen there.
    """

    nranks: int
    ranks: dict[int, str | None] = field(default_factory=dict)
    complete: dict[int, None] = field(default_factory=dict)
    devices: dict[str, dict[int, None]] = field(default_factory=dict)


@dataclass(frozen=True)
class Choice:
    """What NCCL chose for one collective of one size.

    Attributes:
        function: ``AllReduce`` …; ``None`` up to 2.22, which does not say.
        algorithm: As the environment spells it (``NVLSTree``).
        protocol: As the environment spells it (``Simple``).
        channels: First and last channel, from 2.24.
    """

    function: str | None
    size_bytes: int
    algorithm: str
    protocol: str
    channels: tuple[int, int] | None


@dataclass(frozen=True)
class NcclLog:
    """The answer; ``None`` and empty mean that the log does not say.

    Attributes:
        lines: Lines that were parsed; 0 for an empty log.
        version: ``2.28.9``; ``None`` as well when lines of several versions are mixed.
        nnodes_basis: What the node count rests on.
        connections: ``"0->1"`` to its transport; several are joined by `` + ``.
        transports: Transport to the number of channel connections.
        echoed: Name to every value that was printed for it, sorted.
        choices: What was chosen by collective and size.
        init_complete_ranks: Ranks of the largest communicator whose start-up ended.
        ll128: Whether NCCL's own table gives LL128 a speed, where nothing restricts the choice.
        texts: Lines that name a setting or warn, without their prefix.
    """

    lines: int
    version: str | None
    cuda_build: str | None
    versions: tuple[str, ...]
    nranks: int | None
    nnodes: int | None
    nnodes_basis: str | None
    communicators: int | None
    communicator_ids: tuple[str, ...]
    connections: dict[str, str]
    transports: dict[str, int]
    echoed: dict[str, tuple[str, ...]]
    network: str | None
    ib_missing: tuple[str, ...]
    ib_devices: tuple[str, ...]
    socket_interfaces: tuple[str, ...]
    gdrdma: bool | None
    gdr_disabled: tuple[str, ...]
    net_plugin_external: bool | None
    net_plugin_path: str | None
    nvls_multicast: bool | None
    channels: int | None
    sockets: tuple[int, int] | None
    choices: tuple[Choice, ...]
    init_complete_ranks: int
    processes_seen: int
    hosts: int
    shared_memory_misfit: tuple[int, int] | None
    ll128: bool | None
    texts: tuple[str, ...]


def spelled_algorithm(word: str) -> str:
    """The environment's spelling of an algorithm that a log names by number or in capitals."""
    return _spelled(word, _ALGORITHMS)


def spelled_protocol(word: str) -> str:
    """The environment's spelling of a protocol that a log names by number or in capitals."""
    return _spelled(word, _PROTOCOLS)


def _spelled(word: str, names: tuple[str, ...]) -> str:
    if word.isdecimal():
        return names[int(word)] if int(word) < len(names) else word
    folded = {name.lower(): name for name in names}
    return folded.get(word.replace("_", "").lower(), word)


def summarise(state: LogState) -> NcclLog:
    """Turn what was read into the answer."""
    versions = list(state.versions) or [(version, "") for version in state.bare_versions]
    nranks = _nranks(state)
    nnodes, basis = _nnodes(state, nranks)
    connections, transports = _links(state)
    network = _network(state, transports)
    return NcclLog(
        lines=state.lines,
        version=_only({version for version, _ in versions}),
        cuda_build=_only({cuda for _, cuda in versions if cuda}),
        versions=tuple(dict.fromkeys(version for version, _ in versions)),
        nranks=nranks,
        nnodes=nnodes,
        nnodes_basis=basis,
        communicators=_count_communicators(state),
        communicator_ids=tuple(ident for ident in state.communicators if not ident.startswith("?")),
        connections=connections,
        transports=transports,
        echoed={name: tuple(sorted(values)) for name, values in state.echoed.items()},
        network=network,
        ib_missing=tuple(sorted(state.ib_missing)),
        ib_devices=tuple(state.ib_devices),
        socket_interfaces=tuple(state.interfaces),
        gdrdma=_gdrdma(state),
        gdr_disabled=tuple(state.gdr_disabled),
        net_plugin_external=_external(state, network),
        net_plugin_path=state.plugin_path,
        nvls_multicast=(False not in state.multicast) if state.multicast else None,
        channels=max(state.channels, default=None),
        sockets=_only(set(state.sockets)),
        choices=tuple(state.choices),
        init_complete_ranks=_complete(state, nranks),
        processes_seen=sum(len({pid for pid, _ in workers}) for workers in state.workers.values()),
        hosts=len(state.workers),
        shared_memory_misfit=state.shared_memory_misfit,
        ll128=None if state.is_restricted or not state.ll128_speeds else True in state.ll128_speeds,
        texts=tuple(state.texts),
    )


def _only(values: set[_T]) -> _T | None:
    return next(iter(values)) if len(values) == 1 else None


def _nranks(state: LogState) -> int | None:
    """Of the largest communicator; else the members of a ring, else the rows of nccl-tests' table."""
    sizes = {communicator.nranks for communicator in state.communicators.values()} | state.nodes_by_size.keys()
    if sizes:
        return max(sizes)
    if state.ring_sizes:
        return max(state.ring_sizes)
    ranks = state.table_ranks
    return len(ranks) if ranks and sorted(ranks) == list(range(len(ranks))) else None


def _count_communicators(state: LogState) -> int | None:
    named = [ident for ident in state.communicators if not ident.startswith("?")]
    if named:
        return len(named)
    if state.pointers:
        return max(len(pointers) for pointers in state.pointers.values())
    return state.ring_starts or None


def _complete(state: LogState, nranks: int | None) -> int:
    return max((len(each.complete) for each in state.communicators.values() if each.nranks == nranks), default=0)


def _nnodes(state: LogState, nranks: int | None) -> tuple[int | None, str | None]:
    world = [each for each in state.communicators.values() if each.nranks == nranks]
    if nranks in state.nodes_by_size:
        return max(state.nodes_by_size[nranks]), "NCCL's own count"
    counts = [count for each in world if (count := _hosts_of(each, state)) is not None]
    if counts:
        return max(counts), "host names that carry the ranks"
    if world:
        return None, None
    hosts = set(state.table_ranks.values())
    if hosts and len(state.table_ranks) == nranks:
        return len(hosts), "table of nccl-tests"
    seen = sum(max(len({pid for pid, _ in each}), len({dev for _, dev in each})) for each in state.workers.values())
    if state.workers and (seen >= nranks if nranks else seen > 1):
        return len(state.workers), "host names of the processes"
    return None, None


def _hosts_of(communicator: Communicator, state: LogState) -> int | None:
    """Hosts of one communicator (before 2.20.5 NCCL prints no count); ``None`` when the log may lack some."""
    hosts = {host for host in communicator.ranks.values() if host}
    if not hosts:
        return None
    if len(communicator.ranks) == communicator.nranks:
        return len(hosts)
    processes = sum(len({pid for pid, _ in state.workers.get(host, {})}) for host in hosts)
    if processes >= communicator.nranks:
        return len(hosts)
    # Not every rank is in the log: the number of devices in use on a host says whether further hosts are needed.
    local = 1 + max((device for devices in communicator.devices.values() for device in devices), default=0)
    return len(hosts) if len(hosts) > 1 and len(hosts) * local >= communicator.nranks else None


def _links(state: LogState) -> tuple[dict[str, str], dict[str, int]]:
    pairs: dict[str, dict[str, None]] = {}
    for _, kind, source, target in state.links:
        pairs.setdefault(f"{source}->{target}", {})[kind] = None
    connections = {pair: " + ".join(kinds) for pair, kinds in pairs.items()}
    return connections, dict(Counter(state.links.values()))


def _network(state: LogState, transports: dict[str, int]) -> str | None:
    if state.networks:
        return _only(set(state.networks))
    return _only({kind.removeprefix("NET/") for kind in transports if kind.startswith("NET/")})


def _gdrdma(state: LogState) -> bool | None:
    if state.net_links:
        return state.gdr_links > 0
    return False if state.gdr_disabled else None


def _external(state: LogState, network: str | None) -> bool | None:
    if network is not None:
        return network not in _INTERNAL_NETWORKS
    return True if state.external_plugins or state.plugin_path else None
