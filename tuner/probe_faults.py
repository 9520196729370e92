"""What a probe shows to be wrong with a machine, each with what to do; pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path

from .machine.facts import Facts
from .machine.faults import Fault
from .machine.topology import is_nvlink
from .probe import Part, Probe, ranks_of
from .records import Placement
from .trial import evidence
from .trial.nccl_facts import NcclLog

SLOW_SHARE = 0.5
"""Of the median of comparable pairs; below it a link is called slow."""

_PEERS = (
    "Switch off ACS on the PCIe switches and the IOMMU (or put it into pass-through, iommu=pt); "
    "until then no candidate that uses peer access can be trusted"
)
_NVLINK = "Look at 'nvidia-smi nvlink -e' and at the fabric manager's log, and have the link repaired"
_ON_CPU = "Look at the loopback interface, firewall rules and memory of this machine"


def faults(probe: Probe, facts: Facts, placement: Placement) -> list[Fault]:
    """Find what the probe shows to be wrong."""
    found = [
        *_launch(probe),
        *_world(probe, facts, placement),
        *_pairs(probe, facts, placement),
        *_slow(probe, facts, placement),
    ]
    if probe.log:
        found += [*_network(probe.log, facts, placement), *_unused(probe.log, facts, placement)]
    return found + list(_library(probe, facts))


def _launch(probe: Probe) -> Iterator[Fault]:
    if probe.failure:
        yield Fault(
            name="probe_failed",
            what=f"The probe's launch failed ({probe.failure.name}): {probe.failure.message}",
            do=probe.failure.advice,
            fatal=True,
        )


def _world(probe: Probe, facts: Facts, placement: Placement) -> Iterator[Fault]:
    state, detail = probe.world.state, probe.world.detail
    words = {
        "wrong": ("group_wrong_data", "gives wrong sums"),
        "hangs": ("group_hangs", "does not come back"),
        "failed": ("group_fails", "fails"),
    }
    if state in words and not (probe.failure and state == "failed"):
        name, said = words[state]
        bad = any(part.state in ("wrong", "hangs") for part in probe.pairs)
        yield Fault(
            name=name,
            what=f"An all-reduce over all ranks {said}{f': {detail}' if detail else ''}",
            do=_what_pairs_say(probe, facts, placement)
            if bad
            else "Run the job with NCCL_DEBUG=INFO and give its log to 'nccltune explain'",
            fatal=True,
        )


def _what_pairs_say(probe: Probe, facts: Facts, placement: Placement) -> str:
    """Name the one rank that all bad pairs have in common, where other pairs are right."""
    bad = [set(ranks_of(part.name)) for part in probe.pairs if part.state in ("wrong", "hangs", "failed")]
    common = set.intersection(*bad)
    if len(bad) < 2 or len(common) != 1 or not any(part.state == "right" for part in probe.pairs):
        return "See the pairs that are named here"
    one = "GPU" if _are_gpus(facts, placement) else "Rank"
    return f"{one} {common.pop()} is in every pair that is named here: leave it out, and look at it and its links"


def _pairs(probe: Probe, facts: Facts, placement: Placement) -> Iterator[Fault]:
    words = {
        "wrong": ("pair_wrong_data", "give each other wrong data"),
        "hangs": ("pair_hangs", "hang when they talk to each other"),
        "failed": ("pair_fails", "cannot talk to each other"),
    }
    for part in probe.pairs:
        if part.state in words:
            name, said = words[part.state]
            yield Fault(
                name=name,
                what=f"{_who(part, facts, placement)} {said}{f': {part.detail}' if part.detail else ''}",
                do=_advice(part, facts, placement),
                fatal=True,
            )


def _slow(probe: Probe, facts: Facts, placement: Placement) -> Iterator[Fault]:
    """Pairs far below the median of the others that have the same kind of path.

    Ranks on the CPUs of one machine have no links of their own: there the scheduler makes the difference.
    """
    for part in probe.pairs if facts.backend == "nccl" or placement.nnodes > 1 else ():
        kind = _kind(part, facts, placement)
        others = [
            other.gbytes_per_s
            for other in probe.pairs
            if other is not part and other.gbytes_per_s is not None and _kind(other, facts, placement) == kind
        ]
        if part.gbytes_per_s is None or len(others) < 2:
            continue
        median = statistics.median(others)
        if part.gbytes_per_s < SLOW_SHARE * median:
            yield Fault(
                name="pair_slow",
                what=f"{_who(part, facts, placement)} reach {part.gbytes_per_s:.3g} GB/s, "
                f"other pairs {kind} {median:.3g} GB/s",
                do=_NVLINK
                if is_nvlink(_link(part, facts, placement))
                else "Look at the width and speed of the link, and at other work on it",
            )


def _network(log: NcclLog, facts: Facts, placement: Placement) -> Iterator[Fault]:
    if placement.emulated_nodes:
        return
    chosen = evidence.load_log_patterns().sockets_by_choice
    on_purpose = any(value in chosen.get(name, ()) for name, values in log.echoed.items() for value in values)
    if log.network == "Socket" and facts.has_infiniband and not on_purpose:
        yield Fault(
            name="socket_fallback",
            what="NCCL takes TCP sockets although an InfiniBand or RoCE port is up",
            do="Install libibverbs and the user-space driver into the image, and give the container /dev/infiniband",
        )
    if log.network in (None, "Socket"):
        return
    if log.gdrdma is False:
        on = f" for {', '.join(log.gdr_disabled)}" if log.gdr_disabled else ""
        yield Fault(
            name="gpudirect_off",
            what=f"GPUDirect RDMA is off{on}: data between nodes go through host memory",
            do="Load nvidia-peermem (or a kernel and driver with DMA-BUF), and look whether this NCCL knows its name",
        )
    ports = {nic.name for nic in facts.nics if nic.kind == "ib" and nic.up}
    if len(log.ib_devices) == 1 and len(ports) > 1:
        yield Fault(
            name="one_nic",
            what=f"One network card ({log.ib_devices[0]}) serves all ranks although {len(ports)} are up",
            do="Look at inherited settings that choose it, and at the devices that the container is given",
        )


def _unused(log: NcclLog, facts: Facts, placement: Placement) -> Iterator[Fault]:
    """NVLink that carries nothing: right sums, a tenth of the speed, and nobody notices."""
    if placement.nccl_nodes > 1 or facts.topology is None or not log.transports:
        return
    joined = [pair for pair in facts.topology.pairs() if is_nvlink(facts.topology.link(*pair))]
    if joined and not any(transport.startswith("P2P") for transport in log.transports):
        yield Fault(
            name="nvlink_unused",
            what=f"NVLink joins the GPUs, but NCCL carries their data over {', '.join(sorted(log.transports))}",
            do="Look at the inherited settings named here, then at ACS and the IOMMU, which can forbid peer access",
        )


def _library(probe: Probe, facts: Facts) -> Iterator[Fault]:
    expected = facts.nccl.library if facts.nccl else None
    seen = [path for path in probe.libraries if expected and not _same_file(path, expected)]
    if seen:
        yield Fault(
            name="nccl_mismatch",
            what=f"The ranks loaded {seen[0]}, where {expected} was expected",
            do="Look at LD_LIBRARY_PATH and LD_PRELOAD; what is known here of NCCL's names and version may not hold",
        )


def _same_file(one: str, other: str) -> bool:
    return Path(one).resolve() == Path(other).resolve()


def _are_gpus(facts: Facts, placement: Placement) -> bool:
    """Whether the number of a rank is that of its GPU."""
    return facts.backend == "nccl" and placement.nnodes == 1


def _link(part: Part, facts: Facts, placement: Placement) -> str | None:
    """The path word between the GPUs of a pair, where it is known."""
    if not _are_gpus(facts, placement) or facts.topology is None:
        return None
    one, other = ranks_of(part.name)
    return facts.topology.link(one, other)


def _kind(part: Part, facts: Facts, placement: Placement) -> str:
    """What pairs are compared by: the path word, and whether both ranks are on one node as NCCL counts them."""
    each = placement.world_size // placement.nccl_nodes
    one, other = (rank // each for rank in ranks_of(part.name))
    if one != other:
        return "between nodes"
    link = _link(part, facts, placement)
    return f"over {link}" if link else "inside a node"


def _who(part: Part, facts: Facts, placement: Placement) -> str:
    one, other = ranks_of(part.name)
    link = _link(part, facts, placement)
    return f"{'GPUs' if _are_gpus(facts, placement) else 'Ranks'} {one} and {other}{f' ({link})' if link else ''}"


def _advice(part: Part, facts: Facts, placement: Placement) -> str:
    if facts.backend == "gloo":
        return _ON_CPU
    return _NVLINK if is_nvlink(_link(part, facts, placement)) else _PEERS
