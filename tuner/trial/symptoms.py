"""What the lines of a launch's log tell about its end: a fold over lines, in constant memory.

Torch's watchdog (``ProcessGroupNCCL.cpp``) names the collective at which each rank stood; torchrun
(``torch/distributed/elastic/multiprocessing/api.py``) names exit codes, the first failing rank first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from .failures import FailureTable, Hit, load_failures

_WATCHDOG = re.compile(r"Watchdog caught collective operation timeout: WorkNCCL\((?P<work>.*?)\) ran for")
_RANK = re.compile(r"\bRank (\d+)\]|\[rank(\d+)\]")
_GROUP = re.compile(r"\[PG (?:ID|GUID)? ?(\S+)")
_WORK = {
    "seq": re.compile(r"SeqNum=(\d+)"),
    "op": re.compile(r"OpType=(\w+)"),
    "timeout_ms": re.compile(r"Timeout\(ms\)=(\d+)"),
}
_ENQUEUED = re.compile(r"last enqueued (?:NCCL )?work: (-?\d+)")
_COMPLETED = re.compile(r"last completed (?:NCCL )?work: (-?\d+)")
_EXIT = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+)")
_SIGNAL = re.compile(r"Caught signal (\d+) |traceback : Signal (\d+) \(SIG")
_DUMPED = re.compile(r"^(?:.*: )?(Bus error|Segmentation fault|Killed|Aborted)(?: \(core dumped\))?\s*$")
_DUMPED_SIGNAL = {"Bus error": 7, "Segmentation fault": 11, "Killed": 9, "Aborted": 6}
_VERSION = re.compile(r"NCCL version (\d+\.\d+(?:\.\d+)?)")
_ECHO = re.compile(r"\b(\w+) set (?:by environment )?to (\S.*?)\.?\s*$")
_INIT = re.compile(r"Init (START|COMPLETE)")
_EXCEPTION = re.compile(r"(?:^|: ?|\]:? )(?P<error>[A-Za-z_][\w.]*(?:Error|Exception|Interrupt)\b(?:: .*)?)\s*$")
# Raised by torchrun itself over what its workers did: never the cause.
_NO_CAUSE = ("ChildFailedError", "SignalException")

_MARKERS = (
    "Watchdog caught",
    "last enqueued",
    "exitcode: ",
    "Caught signal",
    "traceback : Signal",
    "Bus error",
    "Segmentation fault",
    "Killed",
    "Aborted",
    "NCCL version",
    " set to ",
    " set by environment to ",
    "Init START",
    "Init COMPLETE",
    "Error",
    "Exception",
    "KeyboardInterrupt",
)


@dataclass(frozen=True)
class Stand:
    """Where one rank stood when torch's watchdog ended it."""

    rank: int | None
    group: str | None
    seq: int | None
    op: str | None
    timeout_ms: int | None


@dataclass
class Symptoms:
    """The state of the fold.

    Attributes:
        hits: Class name to the first line of it, with the details of all its lines merged.
        stands: What the watchdog said, in order.
        exits: ``(exit code, local rank)`` as torchrun reported them, the first failing one first.
        signals: Numbers of signals that processes reported themselves.
        echoed: Names that the log shows as set, with their values.
        error: The first line that names an exception.
        started: How many ``Init START`` lines were seen.
        completed: How many ``Init COMPLETE`` lines were seen.
    """

    hits: dict[str, Hit] = field(default_factory=dict)
    stands: list[Stand] = field(default_factory=list)
    last_enqueued: int | None = None
    last_completed: int | None = None
    exits: list[tuple[int, int]] = field(default_factory=list)
    signals: list[int] = field(default_factory=list)
    echoed: dict[str, str] = field(default_factory=dict)
    nccl_version: str | None = None
    error: str | None = None
    started: int = 0
    completed: int = 0

    def cause(self, table: FailureTable, *, symptoms: bool = True) -> Hit | None:
        """The hit that comes first in the table.

        Args:
            table: The classes.
            symptoms: Whether classes that a killed launch shows as well may be named.
        """
        names = [name for name in self.hits if symptoms or not table.by_name[name].symptom]
        return self.hits[min(names, key=table.order.__getitem__)] if names else None

    @property
    def pattern(self) -> str | None:
        """``same_seq``, ``different_seq`` or ``silent_after_init``; ``None`` when the log does not say which.

        One rank alone says nothing about the others. Different process groups count on their own.
        """
        if self.stands:
            first: dict[tuple[str | None, int], Stand] = {}
            for stand in self.stands:
                if stand.rank is not None and stand.seq is not None:
                    first.setdefault((stand.group, stand.rank), stand)
            groups = {group for group, _ in first}
            for group in groups:
                seqs = [stand.seq for (of, _), stand in first.items() if of == group]
                if len(seqs) > 1:
                    return "same_seq" if len(set(seqs)) == 1 else "different_seq"
            return None
        return "silent_after_init" if self.completed else None

    @property
    def signal(self) -> int | None:
        """The signal that ended the first failing rank."""
        for code, _ in self.exits[:1]:
            number = -code if code < 0 else code - 128
            if 0 < number < 65:
                return number
        return self.signals[0] if self.signals else None


def read_symptoms(lines: Iterable[str], table: FailureTable | None = None) -> Symptoms:
    """Fold lines of logs into what they tell about a failure.

    Args:
        lines: Of one log or of several, one after the other.
        table: The classes; ``failures.yaml`` unless given.
    """
    table = table or load_failures()
    state = Symptoms()
    for line in lines:
        fold_line(state, line, table)
    return state


def fold_line(state: Symptoms, line: str, table: FailureTable) -> None:
    """Take one line into ``state``."""
    hit = table.hit(line)
    if hit:
        _merge(state, hit)
    if not any(marker in line for marker in _MARKERS):
        return
    _fold_watchdog(state, line)
    _fold_exit(state, line)
    if found := _INIT.search(line):
        state.started += found[1] == "START"
        state.completed += found[1] == "COMPLETE"
    if found := _VERSION.search(line):
        state.nccl_version = state.nccl_version or found[1]
    if found := _ECHO.search(line):
        state.echoed.setdefault(found[1], found[2])
    if state.error is None and (found := _EXCEPTION.search(line)) and not any(word in line for word in _NO_CAUSE):
        state.error = found["error"].strip()


def _merge(state: Symptoms, hit: Hit) -> None:
    seen = state.hits.get(hit.name)
    if seen is None:
        state.hits[hit.name] = hit
    elif hit.details.keys() - seen.details.keys():
        state.hits[hit.name] = seen.model_copy(update={"details": {**hit.details, **seen.details}})


def _fold_watchdog(state: Symptoms, line: str) -> None:
    if found := _WATCHDOG.search(line):
        rank, group = _RANK.search(line), _GROUP.search(line)
        work: dict[str, Any] = {
            key: match[1] if (match := regex.search(found["work"])) else None for key, regex in _WORK.items()
        }
        state.stands.append(
            Stand(
                rank=int(rank[1] or rank[2]) if rank else None,
                group=group[1] if group else None,
                seq=int(work["seq"]) if work["seq"] else None,
                op=work["op"],
                timeout_ms=int(work["timeout_ms"]) if work["timeout_ms"] else None,
            )
        )
    if found := _ENQUEUED.search(line):
        state.last_enqueued = state.last_enqueued if state.last_enqueued is not None else int(found[1])
    if found := _COMPLETED.search(line):
        state.last_completed = state.last_completed if state.last_completed is not None else int(found[1])


def _fold_exit(state: Symptoms, line: str) -> None:
    if found := _EXIT.search(line):
        state.exits.append((int(found[1]), int(found[2])))
    if found := _SIGNAL.search(line):
        state.signals.append(int(found[1] or found[2]))
    elif found := _DUMPED.match(line):
        state.signals.append(_DUMPED_SIGNAL[found[1]])
