"""Starts one command and ends everything that came of it, whatever happens to the one who asked.

Standard library only, a process of its own, started by path: ``python -I -S guardian.py``. It reads one line of JSON
from standard input (argument list, environment, limits …), starts the command, and then takes the end of that pipe, or
a line ``stop``, for the wish that everything ends. The pipe also closes when the tuner is killed by ``kill -9``.

torchrun puts each worker into a session of its own, so no kill of a process group reaches them; a worker's children may
do the same. The guardian is a child sub-reaper (``prctl(2)``): whoever loses its parent becomes the guardian's child,
and so all of them are found by walking down from here. First the command alone is asked to end (torchrun ends its
workers in order, srun its step), then all, then all are killed, until nobody is left.

The command's output goes through a pipe into a log file of bounded size and is always read, so that it never blocks.
The last line on standard output, and the report file, is JSON about the end. ``pathlib`` is left out: importing it
takes longer than the rest of the guardian's start.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from select import select
from types import FrameType
from typing import Any

HEAD_BYTES = 1 << 20
TAIL_BYTES = 1 << 20
POLITE_S = 1.0
"""How long the command alone is given before its descendants are asked as well."""
KILL_WAIT_S = 3.0
"""How long killed processes may take to go; who is still there then is stuck in the kernel (state D)."""
_TICK_S = 0.2
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


class CappedLog:
    """A log file that keeps the first and the last part of what is written, and says how much lies between.

    The last part is held in memory until ``close``. A disk that cannot take more costs the log and nothing else.
    """

    def __init__(self, path: str, head: int = HEAD_BYTES, tail: int = TAIL_BYTES) -> None:
        self._head_left, self._tail_max = head, tail
        self._tail = bytearray()
        self.written = self.left_out = 0
        try:
            self._file: int | None = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        except OSError:
            self._file = None

    def write(self, data: bytes) -> None:
        """Take what the command printed."""
        self.written += len(data)
        head, rest = data[: self._head_left], data[self._head_left :]
        self._head_left -= len(head)
        self._put(head)
        self._tail += rest
        if len(self._tail) > 2 * self._tail_max:
            self._trim()

    def close(self) -> None:
        """Write the last part."""
        self._trim()
        if self.left_out:
            self._put(b"\n[nccltune: %d bytes left out here]\n" % self.left_out)
        self._put(bytes(self._tail))
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.close(self._file)
        self._file = None

    def _trim(self) -> None:
        surplus = len(self._tail) - self._tail_max
        if surplus > 0:
            self.left_out += surplus
            del self._tail[:surplus]

    def _put(self, data: bytes) -> None:
        view = memoryview(data)
        with contextlib.suppress(OSError):
            while view and self._file is not None:
                view = view[os.write(self._file, view) :]


def descendants(root: int) -> dict[int, str]:
    """Return the living processes below ``root``: process id to state. A zombie (state Z, X) is dead."""
    children: dict[int, list[int]] = {}
    states: dict[int, str] = {}
    for pid, parent, state in _processes():
        children.setdefault(parent, []).append(pid)
        states[pid] = state
    found: dict[int, str] = {}
    waiting = [root]
    while waiting:
        for pid in children.get(waiting.pop(), ()):
            waiting.append(pid)
            if states[pid] not in "ZX":
                found[pid] = states[pid]
    return found


def _processes() -> Iterator[tuple[int, int, str]]:
    for name in os.listdir("/proc"):  # noqa: PTH208
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                state, parent = file.read().rpartition(b")")[2].split(maxsplit=2)[:2]
        except (OSError, ValueError):
            continue
        yield int(name), int(parent), state.decode()


def mapped_shared_memory(pids: dict[int, str]) -> list[str]:
    """Return NCCL's files in ``/dev/shm`` that these processes have mapped: after the end they are nobody's."""
    found: set[str] = set()
    if not any(name.startswith("nccl-") for name in _names("/dev/shm")):  # noqa: S108
        return []
    for pid in pids:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/maps", "rb") as file:  # noqa: PTH123
            for line in file:
                start = line.find(b"/dev/shm/nccl-")
                if start >= 0:
                    found.add(line[start:].strip().decode(errors="replace"))
    return sorted(path for path in found if not path.endswith("(deleted)"))


class Guardian:
    """One command from its start to the end of the last process that came of it."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._spec = spec
        self._log = CappedLog(spec["log"])
        self._started = time.monotonic()
        self._command: subprocess.Popen[bytes] | None = None
        self._output = -1
        self._input = sys.stdin.fileno()
        self._asked = False
        self._subreaper = False
        self._shared_memory: list[str] = []

    def ask(self, _signal: int = 0, _frame: FrameType | None = None) -> None:
        """Take a signal for the wish that everything ends."""
        self._asked = True

    def run(self) -> dict[str, Any]:
        """Do everything and return the report."""
        error = self._start()
        if error:
            self._log.write(f"nccltune: {error}\n".encode())
            self._log.close()
            return self._report("launcher_missing", {}, error)
        reason = self._watch()
        wall_s = time.monotonic() - self._started
        left = self._end()
        self._drain()
        self._log.close()
        return self._report(reason, left) | {"command_s": wall_s}

    def _start(self) -> str:
        """Start the command; return why it could not be started, or nothing."""
        spec = self._spec
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        die_with_parent = _become_subreaper()
        self._subreaper = die_with_parent is not None
        try:
            self._command = subprocess.Popen(  # noqa: S603 - a list of words, no shell
                spec["argv"],
                stdin=subprocess.DEVNULL,
                stdout=writing,
                stderr=writing,
                env=spec["env"],
                cwd=spec["cwd"],
                start_new_session=True,
                preexec_fn=die_with_parent,  # this process has one thread
            )
        except (OSError, ValueError, subprocess.SubprocessError) as problem:
            return f"cannot start {spec['argv'][0]}: {problem}"
        finally:
            os.close(writing)
        self._output = reading
        return ""

    def _watch(self) -> str:
        """Read output until the command is gone or somebody wishes the end; return which."""
        while True:
            if self._gone():
                return "exited"
            if self._asked:
                return "stopped"
            if os.getppid() != self._spec["parent"]:
                return "parent_died"  # the pipe may be held open by somebody whom the tuner forked
            if time.monotonic() - self._started > self._spec["total_s"]:
                return "total_timeout"
            self._pump(_TICK_S)

    def _pump(self, wait_s: float) -> None:
        """Wait for output, a word from the tuner or a signal, and take it."""
        watched = [descriptor for descriptor in (self._output, self._input, _WAKE[0]) if descriptor >= 0]
        ready = select(watched, (), (), wait_s)[0]
        if _WAKE[0] in ready:
            _read(_WAKE[0])
        if self._output in ready:
            self._take()
        if self._input in ready:
            word = _read(self._input)
            self._asked = self._asked or word == b"" or b"stop" in (word or b"")
            if word == b"":
                self._input = -1

    def _take(self) -> bool:
        data = _read(self._output)
        if data:
            self._log.write(data)
        elif data == b"":
            os.close(self._output)
            self._output = -1
        return bool(data)

    def _drain(self) -> None:
        """Take what is in the pipe now; do not wait for somebody who holds it open."""
        for _ in range(1024):
            if self._output < 0 or not self._take():
                return

    def _gone(self) -> bool:
        """Collect dead children, adopted ones too; return whether the command is among the dead."""
        command = self._command
        with contextlib.suppress(ChildProcessError):
            while dead := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                if command and dead.si_pid == command.pid:
                    command.poll()
                else:
                    os.waitpid(dead.si_pid, 0)
        return command is None or command.poll() is not None

    def _end(self) -> dict[int, str]:
        """End all descendants, the command first; return who is left."""
        started = time.monotonic()
        asked: set[int] = set()
        self._shared_memory = mapped_shared_memory(descendants(os.getpid()))
        if self._command and not self._gone():
            asked.add(self._command.pid)  # once only: a second signal breaks torchrun's own orderly end
            self._send(signal.SIGTERM, asked)
        while True:
            gone = self._gone()
            left = descendants(os.getpid())
            passed = time.monotonic() - started
            if not left:
                return left
            if passed > self._spec["grace_s"]:
                break
            if gone or passed > POLITE_S:
                self._send(signal.SIGTERM, left.keys() - asked)
                asked |= left.keys()
            self._pump(0.02 if passed < 1 else 0.05)
        killing = time.monotonic()
        while left and time.monotonic() - killing < KILL_WAIT_S:
            self._send(signal.SIGKILL, left)  # again and again: somebody may fork while we look
            self._pump(0.02)
            self._gone()
            left = descendants(os.getpid())
        return left

    def _send(self, number: int, pids: Iterable[int]) -> None:
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, number)

    def _report(self, reason: str, left: dict[int, str], error: str = "") -> dict[str, Any]:
        return {
            "reason": reason,
            "returncode": self._command.poll() if self._command else None,
            "wall_s": time.monotonic() - self._started,
            "survivors": [{"pid": pid, "state": state, "name": _name(pid)} for pid, state in sorted(left.items())],
            "shared_memory": self._shared_memory,
            "log_bytes": self._log.written,
            "log_left_out": self._log.left_out,
            "subreaper": self._subreaper,
            "error": error,
        }


_WAKE = [-1, -1]


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208
    except OSError:
        return []


def _read(descriptor: int) -> bytes | None:
    """Read what is there; ``b""`` at the end of the pipe, ``None`` when there is nothing yet."""
    try:
        return os.read(descriptor, 1 << 16)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def _name(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            return file.read().strip()
    except OSError:
        return ""


def _become_subreaper() -> Callable[[], None] | None:
    """Make this process the new parent of all orphans below it.

    Returns:
        What the command does between fork and exec: die when this process does. ``None`` where the C library cannot be
        called; then orphans escape and the tuner has to look for them by their token.
    """
    try:
        import ctypes

        prctl = ctypes.CDLL(None, use_errno=True).prctl
    except (ImportError, OSError, AttributeError):
        return None
    guardian = os.getpid()

    def die_with_parent() -> None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != guardian:
            os._exit(1)

    return die_with_parent if prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0 else None


def _first_line(descriptor: int) -> tuple[bytes, bytes]:
    """Read the first line, and whatever came with it."""
    data = b""
    while b"\n" not in data:
        block = os.read(descriptor, 1 << 16)
        if not block:
            return b"", b""
        data += block
    line, _, rest = data.partition(b"\n")
    return line, rest


def main() -> int:
    """Run as a process; the status is 0 whenever a report was made."""
    line, rest = _first_line(sys.stdin.fileno())
    if not line:
        return 1  # the tuner died before it said what to start
    spec = json.loads(line)
    guardian = Guardian(spec)
    if rest:
        guardian.ask()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # a mask of the tuner's would go on to the command
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, guardian.ask)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    _WAKE[:] = os.pipe()
    for descriptor in _WAKE:
        os.set_blocking(descriptor, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # only to wake the select above
    signal.set_wakeup_fd(_WAKE[1], warn_on_full_buffer=False)
    report = json.dumps(guardian.run()) + "\n"
    with contextlib.suppress(OSError), open(spec["report"], "w", encoding="utf-8") as file:  # noqa: PTH123
        file.write(report)
    with contextlib.suppress(OSError):
        os.write(sys.stdout.fileno(), report.encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
