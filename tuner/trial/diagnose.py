"""Whose fault was it? From the result, torch's error files and the logs, never from the exit code alone."""

from __future__ import annotations

import codecs
import json
import logging
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import JsonValue

from ..records import Failure, ResultFile
from .failures import FailureTable, load_failures
from .symptoms import Symptoms, read_symptoms

if TYPE_CHECKING:
    from .process import Ended

logger = logging.getLogger(__name__)

# A launch's own log is read whole up to this size; of a longer one, this much of its start and of its end.
_LOG_PART_BYTES = 16 << 20
_TAIL_LINES = 40
_BUS_ERROR = 7
# Classes that say how it ended but not why: a cause in the log says more.
_GENERIC = frozenset({"workload_error", "no_result"})
# Phases of the heartbeat in which no collective need have come back yet.
_BEFORE_STEPS = (None, "import", "group", "warmup")
_ENDED_CLASS = {
    "startup_timeout": "startup_timeout",
    "no_progress": "hang_timeout",
    "total_timeout": "total_timeout",
    "stopped": "stopped",
    "launcher_missing": "launcher_missing",
}


@dataclass(frozen=True)
class RankError:
    """One of torch's ``error.json`` files (``elastic/multiprocessing/errors/error_handler.py``).

    Attributes:
        message: ``<exception>: <text>``.
        callstack: The traceback, or empty.
        timestamp: Unix time in whole seconds; ``None`` when the file has none.
    """

    message: str
    callstack: str
    timestamp: int | None
    path: Path


def failure(
    name: str, message: str = "", *, pattern: str | None = None, log_tail: str = "", **details: JsonValue
) -> Failure:
    """Build a failure of a class of ``failures.yaml``.

    Args:
        name: The class.
        message: What happened, one line; the class's own sentence when empty.
        pattern: For a hang, which kind.
        log_tail: The last lines of the launch's log.
        **details: Facts.

    Raises:
        KeyError: When there is no such class.
    """
    entry = load_failures().by_name[name].variant(pattern)
    first_line = message.strip().split("\n", 1)[0][:500]
    return Failure(
        name=name,
        blame=entry.blame,
        message=first_line or entry.message,
        advice=entry.advice,
        retry=entry.retry,
        stop=entry.stop,
        pattern=pattern,
        details={key: value for key, value in details.items() if value is not None},
        log_tail=log_tail,
    )


def read_error_files(paths: Iterable[Path]) -> list[RankError]:
    """Read torch's error files, the first failing rank first; what is no such file is left out."""
    found = []
    for path in paths:
        try:
            body = json.loads(path.read_bytes())["message"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            logger.debug("no error file of torch: %s", path)
            continue
        found.append(_rank_error(body, path))
    return sorted(found, key=lambda error: (error.timestamp is None, error.timestamp or 0))


def _rank_error(body: Any, path: Path) -> RankError:
    if not isinstance(body, dict):
        return RankError(str(body), "", None, path)
    extra = body.get("extraInfo")
    extra = extra if isinstance(extra, dict) else {}
    stamp = str(extra.get("timestamp", ""))
    return RankError(
        message=str(body.get("message", "")),
        callstack=str(extra.get("py_callstack", "")),
        timestamp=int(stamp) if stamp.isdecimal() else None,
        path=path,
    )


def diagnose(
    *,
    result: ResultFile | None,
    ended: Ended,
    error_files: Sequence[Path],
    log: Path,
    nccl_logs: Sequence[Path],
) -> Failure:
    """Classify a launch that gave no measurement.

    Args:
        result: What rank 0 left, if it left anything for this launch.
        ended: How the launch ended.
        error_files: Torch's ``error.json`` files.
        log: Output of the launcher and of all ranks.
        nccl_logs: NCCL's own logs.

    Returns:
        The failure; ``no_result`` when nothing explains the end.
    """
    errors = read_error_files(error_files)
    lines = chain(
        chain.from_iterable((error.message + "\n" + error.callstack).splitlines() for error in errors),
        chain.from_iterable(log_lines(path) for path in (log, *nccl_logs)),
    )
    symptoms = read_symptoms(lines)
    name, message, extra = _name(result, ended, errors, symptoms)
    details = {
        **facts_of(symptoms, name),
        **extra,
        "ended": ended.reason,
        "returncode": ended.returncode,
        "phase": ended.phase,
    }
    if ended.survivors:
        details["survivors"] = list(ended.survivors)
    if errors:
        details["error"] = errors[0].message[:2000]
    pattern = symptoms.pattern if name == "hang_timeout" else None
    if pattern == "silent_after_init" and ended.phase not in _BEFORE_STEPS:
        pattern = None
    return failure(name, message, pattern=pattern, log_tail=tail(log), **details)


def _name(
    result: ResultFile | None, ended: Ended, errors: Sequence[RankError], symptoms: Symptoms
) -> tuple[str, str, dict[str, JsonValue]]:
    """The class, its one-line message, and details that come with it."""
    table = load_failures()
    told = result.failure if result and result.status == "failed" and result.failure in table.by_name else None
    if told and told not in _GENERIC:
        return told, result.detail if result else "", {}
    if ended.reason in ("stopped", "launcher_missing"):
        return _ENDED_CLASS[ended.reason], "", {}
    was_killed = ended.reason != "exited"
    found = classify(symptoms, was_killed=was_killed)
    if found and not _is_echo(symptoms, told, errors):
        return found
    if was_killed:
        return _ENDED_CLASS[ended.reason], _limit_message(ended), {}
    if told or errors:
        text = result.detail if told and result else errors[0].message
        return "workload_error", text, {}
    if symptoms.error:
        return "workload_error", symptoms.error, {}
    return "no_result", "", {}


def _is_echo(symptoms: Symptoms, told: str | None, errors: Sequence[RankError]) -> bool:
    """Whether one rank raised an error by itself and the logs show no more than what its peers saw of that.

    What the harness calls the workload's error surely is. Else it is the first error, unless that is an echo as well.
    """
    if symptoms.cause(load_failures(), symptoms=False):
        return False
    if told:
        return symptoms.first_signal is None
    return symptoms.signal is None and bool(errors) and not read_symptoms(errors[0].message.splitlines()).hits


def classify(symptoms: Symptoms, *, was_killed: bool = False) -> tuple[str, str, dict[str, JsonValue]] | None:
    """The class that the logs alone show: a cause, else what a signal means, else what a peer saw of it.

    Args:
        symptoms: Of all logs.
        was_killed: Whether we ended the launch; its signals and broken connections then say nothing.

    Returns:
        The class, its line, and details; ``None`` when the logs show no failure.
    """
    table = load_failures()
    cause = symptoms.cause(table, symptoms=False)
    if cause:
        return cause.name, cause.line, cause.details
    if was_killed:
        return None
    if by_signal := signal_class(symptoms, table):
        return by_signal
    weak = symptoms.cause(table)
    return (weak.name, weak.line, weak.details) if weak else None


def _limit_message(ended: Ended) -> str:
    where = f" in phase {ended.phase}" if ended.phase else ""
    words = {"startup_timeout": "No group of ranks", "no_progress": "No progress", "total_timeout": "Not done"}
    return f"{words[ended.reason]}{where} when the launch was ended after {ended.wall_s:.0f} s"


def signal_class(symptoms: Symptoms, table: FailureTable) -> tuple[str, str, dict[str, JsonValue]] | None:
    """The class that the signal of the first failing rank means, if one ended it.

    A bus error inside a container means that a segment in /dev/shm could be mapped but not written.
    """
    number = symptoms.signal
    if number is None:
        return None
    if number == _BUS_ERROR:
        text = "Bus error: most likely /dev/shm is smaller than the segments mapped on it"
        return "shm_too_small", text, {"confidence": "likely"}
    for entry in table.classes:
        if number in entry.signals:
            return entry.name, f"{entry.message} (signal {number})", {}
    return None


def facts_of(symptoms: Symptoms, name: str) -> dict[str, JsonValue]:
    """What the log says besides the class; only what it does say."""
    facts: dict[str, JsonValue] = {"nccl_version": symptoms.nccl_version, "signal": symptoms.signal}
    if symptoms.exits:
        facts["exit_code"], facts["first_failed_local_rank"] = symptoms.exits[0]
    if name == "hang_timeout":
        facts |= hang_facts(symptoms)
    blamed = [setting for setting in load_failures().by_name[name].settings if setting in symptoms.echoed]
    if len(blamed) == 1:
        facts["blame_setting"] = blamed[0]
    elif blamed:
        facts["blame_settings"] = list(blamed)
    return facts


def hang_facts(symptoms: Symptoms) -> dict[str, JsonValue]:
    """Sequence number, operation and limit at which the ranks stood, where all of them agree; each rank's otherwise."""
    facts: dict[str, JsonValue] = {
        key: _same(getattr(stand, key) for stand in symptoms.stands) for key in ("seq", "op", "timeout_ms")
    }
    if symptoms.pattern == "different_seq":
        facts["seq_by_rank"] = {str(stand.rank): stand.seq for stand in reversed(symptoms.stands)}
    facts["ranks_behind"], facts["ranks_unheard"] = list(symptoms.behind) or None, list(symptoms.unheard) or None
    facts["last_enqueued"], facts["last_completed"] = symptoms.last_enqueued, symptoms.last_completed
    return facts


def _same(values: Iterable[JsonValue]) -> JsonValue:
    kinds = list(dict.fromkeys(values))
    return kinds[0] if len(kinds) == 1 else None


def log_lines(path: Path, part_bytes: int = _LOG_PART_BYTES) -> Iterator[str]:
    """The lines of a log; of a very long one its start and its end. Nothing when it cannot be read."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            head = file.read(min(size, part_bytes))
            yield from decode(head).splitlines()
            if size > len(head):
                file.seek(max(len(head), size - part_bytes))
                yield from file.read().decode("utf-8", "replace").splitlines()
    except OSError as error:
        logger.debug("cannot read %s: %s", path, error)


def decode(data: bytes) -> str:
    """Text of a log, whatever its encoding: UTF-16 by its mark, else UTF-8 with what is none of it replaced."""
    if data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return data.decode("utf-16", "replace")
    return data.decode("utf-8", "replace")


def tail(path: Path, lines: int = _TAIL_LINES) -> str:
    """The last lines of a log, or empty."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - (64 << 10)))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(deque(text.splitlines(), lines))
