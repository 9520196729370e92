"""Starts the probe and judges it: one checked collective over all ranks, and one for each pair of them."""

from __future__ import annotations

import json
import logging
import secrets
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any, Literal, TypeAlias

from .machine.facts import Facts
from .machine.faults import Fault
from .machine.topology import is_nvlink
from .records import Failure, Limits, Measurement, Outcome, Placement, Record, Request, Steps
from .trial import environment, evidence
from .trial.nccl_facts import NcclLog
from .trial.paths import launch_paths
from .trial.runner import LaunchRunner, Runner

logger = logging.getLogger(__name__)

State: TypeAlias = Literal["right", "wrong", "hangs", "failed", "untried"]

WORLD = "world"
PATIENCE_S = 30.0
"""How long one part may take; a healthy one takes about a second, most of it for NCCL's connections."""
MOST_LAUNCHES = 4
"""A part that hangs ends its launch, and the parts after it need another one."""
SLOW_SHARE = 0.5
"""Of the median of comparable pairs; below it a link is called slow."""

_HANGS = ("hang_timeout", "startup_timeout", "total_timeout")
_PEERS = (
    "Switch off ACS on the PCIe switches and the IOMMU (or put it into pass-through, iommu=pt); "
    "until then no candidate that uses peer access can be trusted"
)
_NVLINK = "Look at 'nvidia-smi nvlink -e' and at the fabric manager's log, and have the link repaired"
_ON_CPU = "Look at the loopback interface, firewall rules and memory of this machine"


class Part(Record):
    """What came of one part of the probe.

    Attributes:
        name: ``world`` or the two ranks, ``0-3``.
        gbytes_per_s: Bus bandwidth of a large all-reduce.
        detail: What was wrong.
    """

    name: str
    state: State
    gbytes_per_s: float | None = None
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class Probe:
    """What came of the probe.

    Attributes:
        failure: Why a launch gave nothing, where that was not a part that hangs.
        log: What NCCL's logs say.
        libraries: The NCCL libraries that the ranks had mapped.
    """

    parts: tuple[Part, ...]
    failure: Failure | None = None
    log: NcclLog | None = None
    libraries: tuple[str, ...] = ()

    @property
    def world(self) -> Part:
        """The part over all ranks."""
        return next(part for part in self.parts if part.name == WORLD)

    @property
    def pairs(self) -> tuple[Part, ...]:
        """The parts over two ranks."""
        return tuple(part for part in self.parts if part.name != WORLD)

    def as_data(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "parts": [part.model_dump(mode="json") for part in self.parts],
            "failure": self.failure.model_dump(mode="json", exclude={"evidence", "log_tail"}) if self.failure else None,
            "network": self.log.network if self.log else None,
            "nccl_libraries": list(self.libraries),
        }


def pairs_of(placement: Placement) -> list[tuple[int, int]]:
    """The pairs to try: all of one node; of several nodes those inside each, and the first ranks of neighbours."""
    each = placement.nproc_per_node
    starts = range(0, placement.world_size, each)
    inside = [pair for start in starts for pair in combinations(range(start, start + each), 2)]
    return inside + list(pairwise(starts))


def run(
    facts: Facts,
    placement: Placement,
    environ: Mapping[str, str],
    stop: Callable[[], bool],
    *,
    make_runner: Callable[[Path], Runner] | None = None,
    patience_s: float = PATIENCE_S,
) -> Probe:
    """Launch the probe in a temporary folder; again without what hung, a few times at most.

    Args:
        facts: Of the machine.
        placement: Where the ranks run.
        environ: The caller's environment.
        stop: Asked often; true ends the launch.
        make_runner: From a folder to the runner; the real one by default.
        patience_s: How long one part may take.

    Raises:
        Interrupted: Somebody asked to stop.
        StorageError: There is no room for a temporary folder.
    """
    # The agents of other nodes need to see the folder, which /tmp rarely is.
    where = Path.cwd() if placement.launch_prefix else None
    with tempfile.TemporaryDirectory(prefix="nccltune-probe-", dir=where, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        runner = make_runner(folder) if make_runner else LaunchRunner(folder, stop, environ=environ)
        return _Course(facts, placement, environ, folder, runner, patience_s).run()


class _Course:
    """The launches of one probe."""

    def __init__(
        self,
        facts: Facts,
        placement: Placement,
        environ: Mapping[str, str],
        folder: Path,
        runner: Runner,
        patience_s: float,
    ) -> None:
        self._facts, self._placement, self._environ = facts, placement, environ
        self._folder, self._runner, self._patience_s = folder, runner, patience_s
        self._names = [WORLD, *(f"{one}-{other}" for one, other in pairs_of(placement))]
        self._done: dict[str, Part] = {}
        self._logs: list[Path] = []
        self._libraries: tuple[str, ...] = ()

    def run(self) -> Probe:
        failure: Failure | None = None
        for number in range(MOST_LAUNCHES):
            left = [name for name in self._names if name not in self._done]
            if not left:
                break
            request = self._request(f"{number:04d}-probe", left)
            outcome = self._runner.run(request)
            paths = launch_paths(self._folder, request.launch_id)
            self._logs += paths.nccl_logs()
            found = read_report(paths.folder / "probe.jsonl", outcome)
            self._done |= {part.name: part for part in found}
            if isinstance(outcome, Measurement):
                self._libraries = tuple(sorted({rank.nccl_library for rank in outcome.ranks if rank.nccl_library}))
            elif not found or (outcome.stop and outcome.name not in _HANGS):
                failure = outcome  # nothing was begun, or every further launch would fail alike
                break
        return Probe(
            parts=tuple(self._done.get(name, Part(name=name, state="untried")) for name in self._names),
            failure=failure,
            log=self._read_logs(),
            libraries=self._libraries,
        )

    def _request(self, launch_id: str, names: Sequence[str]) -> Request:
        several = self._placement.nnodes > 1
        limits = Limits(startup_s=240.0 if several else 120.0, no_progress_s=self._patience_s + 30.0)
        request = Request(
            study="probe",
            launch_id=launch_id,
            token=secrets.token_hex(8),
            workload="probe",
            options={
                "world": WORLD in names,
                "pairs": [[int(rank) for rank in name.split("-")] for name in names if name != WORLD],
                "patience_s": self._patience_s,
                "report": str(launch_paths(self._folder, launch_id).folder / "probe.jsonl"),
            },
            backend=self._facts.backend,
            placement=self._placement,
            steps=Steps(warmup_min=0, warmup_max=0, warmup_s=0.0, timed_min=1, timed_max=1, block=1),
            limits=limits.model_copy(update={"total_s": limits.startup_s + 60.0 + 15.0 * len(names)}),
            checks=False,
        )
        return environment.complete(request, self._facts.inherited, self._environ)

    def _read_logs(self) -> NcclLog | None:
        try:
            return evidence.read_logs(self._logs) if self._logs else None
        except OSError as error:
            logger.warning("NCCL's logs of the probe cannot be read: %s", error)
            return None


def read_report(path: Path, outcome: Outcome) -> list[Part]:
    """Read what rank 0 wrote while it tried part after part.

    Args:
        path: The report; may be absent, and its last line cut off.
        outcome: Of the launch; tells a part that hangs from one that failed.

    Returns:
        The parts that were begun.
    """
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    found: dict[str, Part] = {}
    for line in _documents(lines):
        name, state = str(line.get("part")), line.get("state")
        if state == "begun":
            found[name] = _unfinished(name, outcome)
        elif state in ("right", "wrong", "hung"):
            found[name] = Part(
                name=name,
                state="hangs" if state == "hung" else state,
                gbytes_per_s=line.get("gbytes_per_s"),
                detail=str(line.get("detail", "")),
            )
    return list(found.values())


def _documents(lines: Sequence[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        try:
            document = json.loads(line)
        except ValueError:
            continue
        if isinstance(document, dict):
            yield document


def _unfinished(name: str, outcome: Outcome) -> Part:
    """A part whose end was not written: the launch was ended for its silence, or broke."""
    message = outcome.message if isinstance(outcome, Failure) else ""
    hangs = isinstance(outcome, Failure) and outcome.name in _HANGS
    return Part(name=name, state="hangs" if hangs else "failed", detail=message)


# ---- what is wrong


def faults(probe: Probe, facts: Facts, placement: Placement) -> list[Fault]:
    """Find what the probe shows to be wrong."""
    found = [*_launch(probe), *_world(probe), *_pairs(probe, facts, placement), *_slow(probe, facts, placement)]
    return found + (list(_network(probe.log, facts, placement)) if probe.log else []) + list(_library(probe, facts))


def _launch(probe: Probe) -> Iterator[Fault]:
    if probe.failure:
        yield Fault(
            name="probe_failed",
            what=f"The probe's launch failed ({probe.failure.name}): {probe.failure.message}",
            do=probe.failure.advice,
            fatal=True,
        )


def _world(probe: Probe) -> Iterator[Fault]:
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
            do="See the pairs that are named here"
            if bad
            else "Run the job with NCCL_DEBUG=INFO and give its log to 'nccltune explain'",
            fatal=True,
        )


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
    """Pairs far below the median of the others that have the same kind of path."""
    for part in probe.pairs:
        kind = _link(part, facts, placement)
        others = [
            other.gbytes_per_s
            for other in probe.pairs
            if other is not part and other.gbytes_per_s is not None and _link(other, facts, placement) == kind
        ]
        if part.gbytes_per_s is None or len(others) < 2:
            continue
        median = statistics.median(others)
        if part.gbytes_per_s < SLOW_SHARE * median:
            yield Fault(
                name="pair_slow",
                what=f"{_who(part, facts, placement)} reach {part.gbytes_per_s:.3g} GB/s, "
                f"the other {kind or 'such'} pairs {median:.3g} GB/s",
                do=_NVLINK if is_nvlink(kind) else "Look at the link's width and speed, and at other work on it",
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


def _ranks(part: Part) -> tuple[int, int]:
    one, other = part.name.split("-")
    return int(one), int(other)


def _are_gpus(facts: Facts, placement: Placement) -> bool:
    """Whether the number of a rank is that of its GPU."""
    return facts.backend == "nccl" and placement.nnodes == 1


def _link(part: Part, facts: Facts, placement: Placement) -> str | None:
    """The path word between the GPUs of a pair, where it is known."""
    if not _are_gpus(facts, placement) or facts.topology is None:
        return None
    return facts.topology.link(*_ranks(part))


def _who(part: Part, facts: Facts, placement: Placement) -> str:
    one, other = _ranks(part)
    link = _link(part, facts, placement)
    return f"{'GPUs' if _are_gpus(facts, placement) else 'Ranks'} {one} and {other}{f' ({link})' if link else ''}"


def _advice(part: Part, facts: Facts, placement: Placement) -> str:
    if facts.backend == "gloo":
        return _ON_CPU
    return _NVLINK if is_nvlink(_link(part, facts, placement)) else _PEERS
