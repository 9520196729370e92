"""Starts the probe and judges it: one checked collective over all ranks, and one for each pair of them."""

from __future__ import annotations

import json
import logging
import secrets
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any, Literal, TypeAlias

from .machine.facts import Facts
from .records import Failure, Limits, Measurement, Outcome, Placement, Record, Request, Steps
from .trial import environment, evidence
from .trial.nccl_facts import NcclLog
from .trial.paths import launch_paths
from .trial.placement import limits_here
from .trial.runner import LaunchRunner, Runner

logger = logging.getLogger(__name__)

State: TypeAlias = Literal["right", "wrong", "hangs", "failed", "untried"]

WORLD = "world"
PATIENCE_S = 30.0
"""How long one part may take; a healthy one takes about a second, most of it for NCCL's connections."""
MOST_LAUNCHES = 4
"""A part that hangs ends its launch, and the parts after it need another one."""
_HANGS = ("hang_timeout", "startup_timeout", "total_timeout")


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


def ranks_of(name: str) -> tuple[int, ...]:
    """The two ranks of a pair; none for all ranks together, of which no single one is meant."""
    return () if name == WORLD else tuple(int(rank) for rank in name.split("-"))


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
            left = self._left()
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
            elif not found or (outcome.stop and all(part.state != "hangs" for part in found)):
                failure = outcome  # nothing was begun, or every further launch would fail alike
                break
        return Probe(
            parts=tuple(self._done.get(name, Part(name=name, state="untried")) for name in self._names),
            failure=failure,
            log=self._read_logs(),
            libraries=self._libraries,
        )

    def _left(self) -> list[str]:
        """What was not tried yet; last what holds a rank that was in parts that hang.

        Each part that hangs costs a launch, and there are few. So a GPU that hangs with every other one leaves time to
        try all pairs without it, which shows that it is this one.
        """
        hung = Counter(rank for part in self._done.values() if part.state == "hangs" for rank in ranks_of(part.name))
        left = [name for name in self._names if name not in self._done]
        return sorted(left, key=lambda name: max((hung[rank] for rank in ranks_of(name)), default=0))

    def _request(self, launch_id: str, names: Sequence[str]) -> Request:
        limits = limits_here(Limits(), self._placement, self._facts.cpu.cores_usable)
        limits = limits.model_copy(update={"no_progress_s": self._patience_s + 30.0})
        request = Request(
            study="probe",
            launch_id=launch_id,
            token=secrets.token_hex(8),
            workload="probe",
            options={
                "world": WORLD in names,
                "pairs": [list(ranks_of(name)) for name in names if name != WORLD],
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
