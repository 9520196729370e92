"""The forms of NCCL's log lines, and what each adds to what was read so far.

The forms are those of NVIDIA/nccl's sources (``src/init.cc``, ``src/transport/*.cc``, ``src/graph/*.cc``,
``src/enqueue.cc``) by tag; where a form changed, the version stands beside the pattern.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from .nccl_facts import Choice, Communicator, spelled_algorithm, spelled_protocol

MOST_TEXTS: Final = 2000
"""Most lines that are kept as they stand, and most records that wait for their second half."""


@dataclass
class Where:
    """Who wrote a line; ``None`` where its prefix does not say."""

    host: str | None = None
    pid: int | None = None
    tid: int | None = None
    dev: int | None = None


@dataclass
class LogState:
    """What was read so far; ``nccl_facts.summarise`` turns it into the answer."""

    lines: int = 0
    bare: int = 0
    authors: dict[str, Where] = field(default_factory=dict)
    where: Where = field(default_factory=Where)
    versions: dict[tuple[str, str], None] = field(default_factory=dict)
    bare_versions: dict[str, None] = field(default_factory=dict)
    communicators: dict[str, Communicator] = field(default_factory=dict)
    nodes_by_size: dict[int, dict[int, None]] = field(default_factory=dict)
    pointers: dict[tuple[str | None, int | None, int | None], dict[str, None]] = field(default_factory=dict)
    ring_sizes: dict[int, None] = field(default_factory=dict)
    ring_starts: int = 0
    table_ranks: dict[int, str] = field(default_factory=dict)
    workers: dict[str, dict[tuple[int | None, int | None], None]] = field(default_factory=dict)
    links: dict[tuple[str, str, int, int], str] = field(default_factory=dict)
    gdr_links: int = 0
    net_links: int = 0
    gdr_disabled: dict[str, None] = field(default_factory=dict)
    echoed: dict[str, dict[str, None]] = field(default_factory=dict)
    networks: dict[str, None] = field(default_factory=dict)
    ib_missing: dict[str, None] = field(default_factory=dict)
    ib_devices: dict[str, None] = field(default_factory=dict)
    interfaces: dict[str, None] = field(default_factory=dict)
    plugin_path: str | None = None
    external_plugins: dict[str, None] = field(default_factory=dict)
    multicast: dict[bool, None] = field(default_factory=dict)
    channels: dict[int, None] = field(default_factory=dict)
    sockets: dict[tuple[int, int], None] = field(default_factory=dict)
    choices: dict[Choice, None] = field(default_factory=dict)
    pending: dict[tuple[str | None, int | None, int | None], tuple[str, int]] = field(default_factory=dict)
    texts: dict[str, None] = field(default_factory=dict)
    shared_memory_misfit: tuple[int, int] | None = None
    ll128_speeds: dict[bool, None] = field(default_factory=dict)
    is_restricted: bool = False


Handler: TypeAlias = Callable[[LogState, re.Match[str]], None]
Rule: TypeAlias = tuple[re.Pattern[str], Handler]


def _comm_line(state: LogState, found: re.Match[str]) -> None:
    ident = found["id"]
    pointer, rank, nranks = found["pointer"], int(found["rank"]), int(found["nranks"])
    state.pointers.setdefault((state.where.host, state.where.pid, rank), {})[pointer] = None
    communicator = state.communicators.setdefault(ident or f"?{nranks}", Communicator(nranks=nranks))
    communicator.ranks.setdefault(rank, state.where.host)
    device = found["dev"]
    if state.where.host and device:
        communicator.devices.setdefault(state.where.host, {})[int(device)] = None
    if found["end"] == "COMPLETE":
        communicator.complete[rank] = None


def _nodes_line(state: LogState, found: re.Match[str]) -> None:
    nranks, nnodes = int(found["nranks"]), int(found["nnodes"])
    state.pointers.setdefault((state.where.host, state.where.pid, int(found["rank"])), {})[found["pointer"]] = None
    state.nodes_by_size.setdefault(nranks, {})[nnodes] = None


def _ring_line(state: LogState, found: re.Match[str]) -> None:
    members = [int(word) for word in found["ring"].split()]
    if sorted(members) == list(range(len(members))):
        state.ring_sizes[len(members)] = None
        state.ring_starts += int(found["channel"]) == 0


def _link_line(state: LogState, found: re.Match[str]) -> None:
    kind, gdr = transport(found["via"])
    state.links.setdefault((found["channel"], kind, int(found["src"]), int(found["dst"])), kind)
    if kind.startswith("NET/"):
        state.net_links += 1
        state.gdr_links += gdr


def _echo(state: LogState, found: re.Match[str]) -> None:
    value = found["value"]
    number = re.fullmatch(r"(-?\d+)\.", value)
    state.echoed.setdefault(found["name"], {})[number[1] if number else value] = None


def _version(state: LogState, found: re.Match[str]) -> None:
    state.versions[found["version"], found["cuda"]] = None


def _network(state: LogState, found: re.Match[str]) -> None:
    state.networks[found["name"].strip()] = None


def _no_ib(state: LogState, found: re.Match[str]) -> None:
    state.ib_missing[found[0]] = None


def _net_using(state: LogState, found: re.Match[str]) -> None:
    target = state.interfaces if found["net"] == "Socket" else state.ib_devices
    for device in re.findall(r"\[\d+\]([^\s:]+):", found["devices"].split("; OOB")[0]):
        target[device] = None


def _gdr_disabled(state: LogState, found: re.Match[str]) -> None:
    state.gdr_disabled[found["device"]] = None


def _plugin_path(state: LogState, found: re.Match[str]) -> None:
    state.plugin_path = state.plugin_path or found["path"]


def _external(state: LogState, found: re.Match[str]) -> None:
    state.external_plugins[found["name"].strip()] = None


def _multicast(state: LogState, found: re.Match[str]) -> None:
    state.multicast[not found["off"]] = None


def _channels(state: LogState, found: re.Match[str]) -> None:
    state.channels[int(found["channels"])] = None


def _sockets(state: LogState, found: re.Match[str]) -> None:
    state.sockets[int(found["threads"]), int(found["sockets"])] = None


def _choice(state: LogState, found: re.Match[str]) -> None:
    first, last = found["first"], found["last"]
    choice = Choice(
        function=found["function"],
        size_bytes=int(found["bytes"]),
        algorithm=spelled_algorithm(found["algorithm"]),
        protocol=spelled_protocol(found["protocol"]),
        channels=(int(first), int(last)) if first and last else None,
    )
    state.choices[choice] = None


def _asked(state: LogState, found: re.Match[str]) -> None:
    if len(state.pending) < MOST_TEXTS:
        state.pending[state.where.host, state.where.pid, state.where.tid] = (found["function"], int(found["bytes"]))


def _best(state: LogState, found: re.Match[str]) -> None:
    asked = state.pending.pop((state.where.host, state.where.pid, state.where.tid), None)
    if asked is None:
        return
    count = int(found["channels"])
    state.choices[
        Choice(
            function=asked[0],
            size_bytes=asked[1],
            algorithm=spelled_algorithm(found["algorithm"]),
            protocol=spelled_protocol(found["protocol"]),
            channels=(0, count - 1) if count > 0 else None,
        )
    ] = None


def _misfit(state: LogState, found: re.Match[str]) -> None:
    state.shared_memory_misfit = (int(found["needs"]), int(found["has"]))


def _model_row(state: LogState, found: re.Match[str]) -> None:
    """A row of the tuning table, ``latency/ bandwidth`` for LL, LL128, Simple of each algorithm; 0 and -1 are off."""
    speeds = [float(cell.rpartition("/")[2]) for cell in found["cells"].split("|")[:-1]]
    state.ll128_speeds[any(speed > 0 for speed in speeds[1::3])] = None


def _restricted(state: LogState, _: re.Match[str]) -> None:
    state.is_restricted = True


def transport(via: str) -> tuple[str, bool]:
    """Name a transport by what follows ``via``, without device numbers and modes.

    Returns:
        For instance ``("P2P/CUMEM", False)``, ``("SHM/direct", False)`` or ``("NET/AWS Libfabric", True)``; the second
        says whether GPUDirect RDMA is in use.
    """
    via = via.strip()
    if via == "direct shared memory":  # up to 2.12.7
        return "SHM/direct", False
    parts = via.split("/")
    if parts[0] in ("NET", "COLLNET"):
        # NET/<name>/<device>[(proxy rank)][/GDRDMA][/Shared]: the name may hold blanks.
        return "/".join(parts[:2]), any(part.startswith("GDRDMA") for part in parts[2:])
    return "/".join(parts[:2]), False


def _rule(pattern: str, handler: Handler) -> Rule:
    return re.compile(pattern), handler


_FUNCTIONS = "AllReduce AllGatherV AllGather ReduceScatter Broadcast Reduce SendRecv Send Recv AlltoAll Gather Scatter"
_FUNCTION = f"(?P<function>{_FUNCTIONS.replace(' ', '|')})"

# First character of the text after "NCCL INFO " to the patterns that may match there.
BY_FIRST_LETTER: Final[dict[str, list[Rule]]] = {
    "N": [
        _rule(r"NCCL version (?P<version>\d+\.\d+(?:\.\d+)?)\S*?\+cuda(?P<cuda>\d+\.\d+)", _version),
        _rule(r"(?P<name>NCCL_[A-Z0-9_]+) set (?:by environment )?to (?P<value>\S.*)", _echo),
        # "Using [0]dev:1/IB [1]…"; with no device in the list nothing is in use.
        _rule(r"NET/(?P<net>IB|Socket) ?: Using (?P<devices>\[.*)", _net_using),
        _rule(r"NET/IB ?: No device found", _no_ib),
        _rule(r"NET/\S+ ?: GPU Direct RDMA Disabled for HCA \d+ '(?P<device>[^']*)'", _gdr_disabled),
        _rule(r"NET/Socket: Using (?P<threads>\d+) threads and (?P<sockets>\d+) sockets per thread", _sockets),
        _rule(r"NET/Plugin: Loaded net plugin (?P<name>.+?) \(v\d+\)", _external),
        _rule(r"NVLS multicast support is (?P<off>not )?available on dev", _multicast),
    ],
    "C": [
        # Up to 2.12 the connection has no index and the bracket holds a bus id; from 2.18.3 the NVML device.
        _rule(
            r"Channel (?P<channel>\d+(?:/\d+)?) : (?P<src>\d+)\[[0-9a-fA-F]+\] -> (?P<dst>\d+)\[[0-9a-fA-F]+\]"
            r"(?: \[(?:send|receive)\])? via (?P<via>\S.*)",
            _link_line,
        ),
        _rule(r"Channel (?P<channel>\d+)/\d+ :(?P<ring>(?: +\d+)+) *$", _ring_line),
        _rule(r"Comm config \w+ reset to (?P<name>NCCL_[A-Z0-9_]+)=(?P<value>\S+)", _echo),
    ],
    "n": [
        _rule(r"ncclMaxSharedMem (?P<needs>\d+) exceeds device/fn maxSharedMem (?P<has>\d+)", _misfit),
    ],
    "c": [
        _rule(
            r"comm (?P<pointer>0x[0-9a-f]+) rank (?P<rank>\d+) nRanks (?P<nranks>\d+) nNodes (?P<nnodes>\d+) local",
            _nodes_line,
        ),
    ],
    "E": [_rule(r"Enabled NCCL Func/Proto/Algo Matrix", _restricted)],
    "U": [_rule(r"Using network (?P<name>\S.*)", _network)],
    "A": [_rule(r"Assigned NET plugin (?P<name>\S.*?) to comm", _network)],
    "F": [
        _rule(r"Failed to initialize NET plugin IB", _no_ib),
        _rule(r"Failed to open libibverbs", _no_ib),
    ],
    "P": [
        _rule(r"Plugin Path ?: (?P<path>\S+)", _plugin_path),
        _rule(r"Parsed environment variable (?P<name>NCCL_[A-Z0-9_]+)=(?P<value>\S.*)", _echo),
    ],
    "S": [_rule(r"Successfully loaded external (?:network|net) plugin (?P<name>\S+)", _external)],
    "B": [
        _rule(
            r"Best tuning \{.*?\.algo = (?P<algorithm>\w+), \.proto = (?P<protocol>\w+),"
            r".*?nChannels = (?P<channels>-?\d+)",
            _best,
        ),
    ],
    "I": [_rule(r"Input: \{.*?\.func = (?:ncclFunc)?(?P<function>\w+),.*?\.nBytes = (?P<bytes>\d+)", _asked)],
}
# Forms that begin with a word of their own: tried on every line of interest that no rule above took.
ANYWHERE: Final[list[Rule]] = [
    # "function comm … commId … - Init COMPLETE": the function from 2.21.5, commId from 2.16.2, "[Rank r]" from 2.29.7.
    _rule(
        r"(?:\[Rank \d+\] )?(?:nccl\w+ )?comm (?P<pointer>0x[0-9a-f]+) rank (?P<rank>\d+) nranks (?P<nranks>\d+)"
        r" cudaDev (?P<dev>\d+)"
        r"(?:.*? commId (?P<id>0x[0-9a-f]+))?.*? Init (?P<end>START|COMPLETE)",
        _comm_line,
    ),
    _rule(r"(?P<channels>\d+) coll channels", _channels),
    _rule(_FUNCTION + r" *\|(?P<cells>(?: *-?\d+\.\d+/ *-?\d+\.\d+ *\|)+)", _model_row),
    # Without the function up to 2.22.3; numbers up to 2.23.4; names with the channels from 2.24.3.
    _rule(
        r"(?:" + _FUNCTION + r": )?(?P<bytes>\d+) Bytes -> Algo (?P<algorithm>\w+) proto (?P<protocol>\w+)"
        r"(?: channel\{Lo\.\.Hi\}=\{(?P<first>\d+)\.\.(?P<last>\d+)\})?",
        _choice,
    ),
]
IN_WARNINGS: Final[list[Rule]] = [_rule(r"Failed to open libibverbs", _no_ib)]
# No line of interest begins otherwise; the last ones are warnings that some versions print as information.
STARTS: Final = frozenset("".join(BY_FIRST_LETTER) + "[0123456789ABGIRSTUm")
