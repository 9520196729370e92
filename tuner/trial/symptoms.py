"""What the lines of a launch's log tell about its end: a fold over lines, in constant memory.

Torch's watchdog (``ProcessGroupNCCL.cpp``) names the collective at which each rank stood; torchrun
(``torch/distributed/elastic/multiprocessing/api.py``) names exit codes, the first failing rank first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .failures import FailureTable, Hit, load_failures

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_LONGEST_LINE = 4000
_WATCHDOG = re.compile(r"Watchdog caught collective operation timeout: WorkNCCL\((?P<work>.*?)\) ran for")
_RANK = re.compile(r"\bRank (\d+)\]|\[rank(\d+)\]")
_GROUP = re.compile(r"\[PG (?:ID|GUID)? ?(\S+)")
_WORK = {
    "seq": re.compile(r"SeqNum=(\d+)"),
    "op": re.compile(r"OpType=(\w+)"),
    "timeout_ms": re.compile(r"Timeout\(ms\)=(\d+)"),
}
_ENQUEUED = re.compile(r"[Ll]ast enqueued (?:NCCL )?work: (-?\d+)")
_COMPLETED = re.compile(r"last completed (?:NCCL )?work: (-?\d+)")
_ROOT = re.compile(r"Root Cause \(first observed failure\)")
_ROOT_RANK = re.compile(r"^\W*(?:.*\W)?rank\s+: \d+ \(local_rank: (\d+)\)")
_ROOT_CODE = re.compile(r"exitcode\s+: (-?\d+) \(pid")
_EXIT = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+)")
_SIGNAL = re.compile(r"Caught signal (\d+) |traceback : Signal (\d+) \(SIG")
_DUMPED = re.compile(r"^(?:.*: )?(Bus error|Segmentation fault|Killed|Aborted)(?: \(core dumped\))?\s*$")
_DUMPED_SIGNAL = {"Bus error": 7, "Segmentation fault": 11, "Killed": 9, "Aborted": 6}
# Signals that no peer's end brings about; SIGTERM and SIGABRT follow when others fail.
_OWN_SIGNALS = frozenset({4, 7, 8, 9, 11})
_VERSION = re.compile(r"NCCL version (\d+\.\d+(?:\.\d+)?)")
_ECHO = re.compile(r"\b(\w+) set (?:by environment )?to (\S.*?)\.?\s*$")
_INIT = re.compile(r"\brank (\d+) nranks (\d+) .*Init (START|COMPLETE)")
_EXCEPTION = re.compile(r"(?:^|: ?|\]:? )(?P<error>[A-Za-z_][\w.]*(?:Error|Exception|Interrupt)\b(?:: .*)?)\s*$")
# Raised by torchrun itself over what its workers did: never the cause.
_NO_CAUSE = ("ChildFailedError", "SignalException")

_MARKERS = (
    "Watchdog caught",
    "ast enqueued",
    "Root Cause",
    "local_rank: ",
    "exitcode",
    "Caught signal",
    "traceback : Signal",
    "Bus error",
    "Segmentation fault",
    "Killed",
    "Aborted",
    "NCCL version",
    " set to ",
    " set by environment to ",
    " nranks ",
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
        enqueued: Rank to the last collective that it had asked for, as torch said when it gave up.
        completed: Ranks whose ``Init COMPLETE`` was seen, and ``nranks`` what those lines say of the group's size.
        root: ``[local rank, exit code]`` of torchrun's root cause, while its block is read.
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
    enqueued: dict[int, int] = field(default_factory=dict)
    completed: set[int] = field(default_factory=set)
    nranks: int | None = None
    root: list[int] | None = None

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
        if not self.stands:
            return "silent_after_init" if self.completed and len(self.completed) >= (self.nranks or 0) else None
        for seqs in self._seqs().values():
            if self._behind(seqs) or len(set(seqs.values())) > 1:
                return "different_seq"
            if len(seqs) > 1:
                return "same_seq"
        return None

    @property
    def behind(self) -> list[int]:
        """Ranks that had not come as far as the farthest, in the first process group where ranks differ."""
        for seqs in self._seqs().values():
            late = [rank for rank, seq in seqs.items() if seq < max(seqs.values())]
            if found := sorted({*late, *self._behind(seqs)}):
                return found
        return []

    @property
    def unheard(self) -> list[int]:
        """Ranks of the group of which the log has not a word since the others stood still."""
        heard = {stand.rank for stand in self.stands} | self.enqueued.keys()
        return [rank for rank in range(self.nranks or 0) if rank not in heard] if self.stands else []

    def _seqs(self) -> dict[str | None, dict[int, int]]:
        """Process group to rank to the number of the collective at which it timed out first."""
        found: dict[str | None, dict[int, int]] = {}
        for stand in self.stands:
            if stand.rank is not None and stand.seq is not None:
                found.setdefault(stand.group, {}).setdefault(stand.rank, stand.seq)
        return found

    def _behind(self, seqs: Mapping[int, int]) -> list[int]:
        """Ranks that never asked for the collective: they do not time out themselves."""
        return [rank for rank, last in self.enqueued.items() if rank not in seqs and last < min(seqs.values())]

    @property
    def signal(self) -> int | None:
        """The signal that ended the rank that failed by itself.

        Of several ranks torchrun may report one first that merely lost its peer: its times are whole seconds. A crash
        is nobody's echo, so it counts wherever it stands.
        """
        return self.first_signal or next((number for number in self.signals if number in _OWN_SIGNALS), None)

    @property
    def first_signal(self) -> int | None:
        """The signal that ended the rank that torchrun reported first."""
        for code, _ in self.exits[:1]:  # what ended later was ended because of the first
            number = -code if code < 0 else code - 128
            return number if 0 < number < 65 else None
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
    if "\x1b" in line:
        line = _ANSI.sub("", line)
    line = line[:_LONGEST_LINE]
    if "NCCL INFO " not in line and (hit := table.hit(line)):
        _merge(state, hit)
    if not any(marker in line for marker in _MARKERS):
        return
    _fold_watchdog(state, line)
    _fold_exit(state, line)
    if found := _INIT.search(line):
        state.nranks = max(state.nranks or 0, int(found[2]))
        if found[3] == "COMPLETE":
            state.completed.add(int(found[1]))
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
        if rank := _RANK.search(line):
            state.enqueued.setdefault(int(rank[1] or rank[2]), int(found[1]))
        state.last_enqueued = state.last_enqueued if state.last_enqueued is not None else int(found[1])
    if found := _COMPLETED.search(line):
        state.last_completed = state.last_completed if state.last_completed is not None else int(found[1])


def _fold_exit(state: Symptoms, line: str) -> None:
    if _ROOT.search(line):
        state.root = []
    elif state.root is not None and (found := (_ROOT_CODE if state.root else _ROOT_RANK).search(line)):
        state.root.append(int(found[1]))
        if len(state.root) == 2:
            state.exits.insert(0, (state.root[1], state.root[0]))
            state.root = None
    if found := _EXIT.search(line):
        state.exits.append((int(found[1]), int(found[2])))
    if found := _SIGNAL.search(line):
        state.signals.append(int(found[1] or found[2]))
    elif found := _DUMPED.match(line):
        state.signals.append(_DUMPED_SIGNAL[found[1]])
