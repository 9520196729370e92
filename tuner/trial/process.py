"""Runs a command under its guardian and makes sure that nobody is left, on this machine, of what it started.

With ``guardian.py`` this is the only place that starts and ends processes.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from select import select
from typing import Any, Literal, TypeAlias

from ..errors import LaunchError
from ..records import Limits
from . import guardian
from .environment import TOKEN
from .paths import LAUNCHES, LaunchPaths, unfinished_tokens

_log = logging.getLogger(__name__)

EndReason: TypeAlias = Literal[
    "exited", "startup_timeout", "no_progress", "total_timeout", "stopped", "launcher_missing"
]

POLL_S = 0.05
"""How often a wish to stop, the limits and the heartbeat are looked at."""
BACKSTOP_S = 2.0
"""How much later than the tuner the guardian enforces the total limit by itself."""
_MARGIN_S = 3.0
_GUARDIAN_NEEDS = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL")
_BEFORE_STARTED = (None, "import", "group")
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where NCCL puts its segments


@dataclass(frozen=True)
class Ended:
    """How a command ended.

    Attributes:
        reason: Who or what ended it; ``exited`` when it ended by itself.
        returncode: Of the command, negative for a signal; ``None`` when it is not known.
        wall_s: From the start of the guardian to the end of the last process.
        survivors: Processes that could not be ended (stuck in the kernel).
        phase: The last phase of the heartbeat.
        first_beat_s: From the start to the first heartbeat that was seen; ``None`` without one.
        result_s: From the start to the moment at which the result was seen; ``None`` without one.
        error: Why the command could not be started.
    """

    reason: EndReason
    returncode: int | None
    wall_s: float
    survivors: tuple[int, ...]
    phase: str | None
    first_beat_s: float | None = None
    result_s: float | None = None
    error: str = ""


def run_guarded(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    paths: LaunchPaths,
    limits: Limits,
    token: str,
    stop: Callable[[], bool],
    cwd: Path | None = None,
    sweep_after: bool = False,
) -> Ended:
    """Run a command to its end, or end it and everything that came of it.

    Args:
        argv: The command; no shell.
        env: Its full environment; given to the guardian through a pipe, never written to a file.
        paths: Log, heartbeat, result and report are there.
        limits: Start-up (until a heartbeat beyond ``group``), silence of the heartbeat, total.
        token: Stands in ``env``; finds processes that got away from the guardian.
        stop: Asked every ``POLL_S`` seconds; true ends the command.
        cwd: Working folder of the command; this process's own by default.
        sweep_after: Look for the token also when the guardian found nobody left. A cluster launcher's daemon may
            have started processes on this machine that do not descend from the guardian.

    Returns:
        How it ended. A wish to stop is a reason like the others.
    """
    started, born = time.monotonic(), time.time()
    watch = _Watch(paths, limits, started)
    spec = {
        "argv": list(argv),
        "env": dict(env),
        "cwd": str(cwd or Path.cwd()),
        "log": str(paths.log),
        "report": str(paths.guardian),
        "grace_s": limits.grace_s,
        "total_s": limits.total_s + BACKSTOP_S,
        "parent": os.getpid(),
    }
    process = _start_guardian(spec)
    reason: EndReason = "exited"
    report: dict[str, Any] = {}
    try:
        while not (report := _report(process, POLL_S)):
            if verdict := watch.look(stop):
                reason = verdict
                break
    finally:  # also for an exception out of stop(), such as KeyboardInterrupt
        if not report:
            report = _finish(process, limits)
        watch.read()
        _dismiss(process)
        left = _clean(report, token, sweep_after=sweep_after)
        remove_shared_memory(report.get("shared_memory", ()), since=born)
    return _ended(reason, report, left, watch, time.monotonic() - started)


def _start_guardian(spec: dict[str, Any]) -> subprocess.Popen[bytes]:
    try:
        process = subprocess.Popen(  # noqa: S603 - a list of words, no shell
            [sys.executable, "-I", "-S", guardian.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={name: os.environ[name] for name in _GUARDIAN_NEEDS if name in os.environ},
            cwd="/",
            start_new_session=True,
        )
    except OSError as error:
        raise LaunchError(f"no process can be started: {error}", "look at the limits of this user") from error
    assert process.stdin  # noqa: S101
    with contextlib.suppress(OSError):  # a guardian that died at once shows as one without a report
        process.stdin.write(json.dumps(spec).encode() + b"\n")
        process.stdin.flush()
    return process


def _report(process: subprocess.Popen[bytes], wait_s: float) -> dict[str, Any]:
    """Wait for the guardian's last line; empty while there is none, ``reason: lost`` when it died without."""
    assert process.stdout  # noqa: S101
    if not select([process.stdout], (), (), wait_s)[0]:
        return {}
    try:
        report = json.loads(process.stdout.readline())
    except ValueError:
        return {"reason": "lost"}
    return report if isinstance(report, dict) and report else {"reason": "lost"}


def _finish(process: subprocess.Popen[bytes], limits: Limits) -> dict[str, Any]:
    """Close the guardian's pipe, so that it ends everything, and wait for its report."""
    assert process.stdin  # noqa: S101
    with contextlib.suppress(OSError):
        process.stdin.close()
    return _report(process, limits.grace_s + guardian.KILL_WAIT_S + _MARGIN_S) or {"reason": "lost"}


def _dismiss(process: subprocess.Popen[bytes]) -> None:
    """See the guardian itself out; after its report it has nothing left to do."""
    for pipe in (process.stdin, process.stdout):
        with contextlib.suppress(OSError):
            if pipe:
                pipe.close()
    try:
        process.wait(timeout=1.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _clean(report: dict[str, Any], token: str, *, sweep_after: bool) -> tuple[int, ...]:
    """End those who got away from the guardian; return who is left all the same."""
    survivors = tuple(int(entry["pid"]) for entry in report.get("survivors", ()))
    if survivors or sweep_after or report["reason"] == "lost" or not report.get("subreaper", True):
        ended = sweep([token])
        if ended and not survivors:
            _log.warning("ended %d processes that had got away from their guardian", len(ended))
        survivors = tuple(sorted(holders([token])))
    if survivors:
        _log.warning("processes %s cannot be ended: they are stuck in the kernel", ", ".join(map(str, survivors)))
    return survivors


def _ended(reason: EndReason, report: dict[str, Any], left: tuple[int, ...], watch: _Watch, wall_s: float) -> Ended:
    told = report["reason"]
    if reason == "exited" and told in ("launcher_missing", "total_timeout", "stopped"):
        reason = told  # the guardian's own limit, or a signal that somebody sent to it
    return Ended(
        reason=reason,
        returncode=report.get("returncode"),
        wall_s=wall_s,
        survivors=left,
        phase=watch.phase,
        first_beat_s=watch.first_beat_s,
        result_s=watch.result_s,
        error=str(report.get("error", "")),
    )


class _Watch:
    """Reads the heartbeat and knows when a limit is passed.

    Only changes of the file count, by this process's own clock: the clocks of other machines may differ.
    """

    def __init__(self, paths: LaunchPaths, limits: Limits, started: float) -> None:
        self._paths, self._limits, self._started = paths, limits, started
        self._stamp: tuple[int, int] | None = None
        self._changed = started
        self.phase: str | None = None
        self.first_beat_s: float | None = None
        self.result_s: float | None = None

    def look(self, stop: Callable[[], bool]) -> EndReason | None:
        """Return why the command must be ended now, if it must."""
        self.read()
        now = time.monotonic()
        if stop():
            return "stopped"
        if now - self._started > self._limits.total_s:
            return "total_timeout"
        if self.phase in _BEFORE_STARTED:
            return "startup_timeout" if now - self._started > self._limits.startup_s else None
        return "no_progress" if now - self._changed > self._limits.no_progress_s else None

    def read(self) -> None:
        """Take in what changed."""
        if self.result_s is None and self._paths.result.exists():
            self.result_s = time.monotonic() - self._started
        try:
            with self._paths.heartbeat.open("rb") as file:  # opened, since NFS answers stat() out of its cache
                status = os.fstat(file.fileno())
                text = file.read()
        except OSError:
            return
        stamp = (status.st_ino, status.st_mtime_ns)
        if stamp == self._stamp:
            return
        self._stamp, self._changed = stamp, time.monotonic()
        if self.first_beat_s is None:
            self.first_beat_s = self._changed - self._started
        with contextlib.suppress(ValueError, KeyError, TypeError):
            self.phase = str(json.loads(text)["phase"])


# ---- those who got away


def holders(tokens: Iterable[str]) -> Iterator[int]:
    """Yield the living processes of this machine whose environment holds one of the tokens.

    This process and those that it descends from are left out.
    """
    wanted = {f"{TOKEN}={token}".encode() for token in tokens}
    if not wanted:
        return
    own = _ancestors()
    for pid in _pids():
        if pid in own:
            continue
        try:
            environ = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue
        if not wanted.isdisjoint(environ.split(b"\0")) and _state(pid) not in ("Z", "X", ""):
            yield pid


def sweep(tokens: Iterable[str], wait_s: float = 3.0) -> list[int]:
    """Kill all processes of this machine that hold one of the tokens, until none is left.

    Args:
        tokens: Of launches that must have ended.
        wait_s: How long at most; a process in state D takes longer than anybody can wait.

    Returns:
        The processes that were killed. Never found by name, and never one of another user's that cannot be read.
    """
    tokens = tuple(tokens)
    killed: set[int] = set()
    until = time.monotonic() + wait_s
    while found := set(holders(tokens)):
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        killed |= found
        if time.monotonic() > until:
            break
        time.sleep(0.02)
    for pid in killed:  # as process 1 of a container we are the parent of all orphans
        with contextlib.suppress(OSError):
            os.waitpid(pid, os.WNOHANG)
    return sorted(killed)


def sweep_study(study_folder: Path) -> list[int]:
    """End what a killed run of this study left behind; call it with the study's lock held.

    The tokens are those of launches whose guardian left no report; it may be ending them at the same time.

    Returns:
        The processes that were killed.
    """
    killed = sweep(unfinished_tokens(study_folder))
    for report in (study_folder / LAUNCHES).glob("*/guardian.json"):
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
            remove_shared_memory(json.loads(report.read_text()).get("shared_memory", ()), since=math.inf)
    return killed


def remove_shared_memory(mapped: Iterable[str], *, since: float, folder: Path = _SHARED_MEMORY) -> list[Path]:
    """Remove ``/dev/shm/nccl-*`` files that a launch left behind.

    NCCL unlinks them itself once both sides have opened them; those of a killed launch fill /dev/shm until no launch
    can start. A file is removed when it belongs to this user, was made during the launch (or was mapped by one of its
    processes when they were ended), and no living process has it mapped or open.

    Args:
        mapped: Files that processes of the launch had mapped.
        since: Start of the launch, Unix time; infinite to look at the mapped ones only.
        folder: Where to look.
    """
    mapped = set(mapped)
    ours = [path for path in folder.glob("nccl-*") if _is_ours(path, since, str(path) in mapped)]
    if not ours:
        return []
    used = _files_in_use(str(folder / "nccl-"))
    removed = []
    for path in ours:
        if str(path) in used:
            continue
        with contextlib.suppress(OSError):
            path.unlink()
            removed.append(path)
    return removed


def _is_ours(path: Path, since: float, mapped: bool) -> bool:
    try:
        status = path.lstat()
    except OSError:
        return False
    return status.st_uid == os.geteuid() and (mapped or min(status.st_ctime, status.st_mtime) >= since - 0.02)


def _files_in_use(prefix: str) -> set[str]:
    """Files with this prefix that a visible process has mapped or open."""
    used: set[str] = set()
    for pid in _pids():
        folder = Path(f"/proc/{pid}")
        with contextlib.suppress(OSError):
            for line in (folder / "maps").read_bytes().splitlines():
                start = line.find(prefix.encode())
                if start >= 0:
                    used.add(os.fsdecode(line[start:]))
        with contextlib.suppress(OSError):
            for descriptor in (folder / "fd").iterdir():
                with contextlib.suppress(OSError):
                    used.add(str(descriptor.readlink()))
    return used


def _pids() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208
    except OSError:
        return []


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def _state(pid: int) -> str:
    return next(iter(_stat(pid)), "")


def _ancestors() -> set[int]:
    found = {os.getpid()}
    pid = os.getppid()
    while pid > 0 and pid not in found:
        found.add(pid)
        fields = _stat(pid)
        pid = int(fields[1]) if len(fields) > 1 else 0
    return found
