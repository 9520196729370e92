"""Locks: one run a study folder, one run a GPU. The kernel releases them when the process dies, however it dies."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from ..errors import StorageError, StudyBusy

FILE = "lock"
FOLDER_VARIABLE = "NCCLTUNE_LOCK_DIR"
"""Environment variable that moves the GPU locks out of the system's temporary folder."""

_log = logging.getLogger(__name__)


@contextmanager
def hold(folder: Path, gpu_uuids: Sequence[str] = (), environ: Mapping[str, str] = os.environ) -> Iterator[None]:
    """Hold the study folder and every GPU for the length of a ``with`` block.

    Args:
        folder: The study folder; made when missing.
        gpu_uuids: GPUs that the launches will use; none on a machine without.
        environ: Where ``NCCLTUNE_LOCK_DIR`` is looked up.

    Raises:
        StudyBusy: Another run holds one of them; the message names its process.
        StorageError: A lock file cannot be made.
    """
    shared = Path(environ.get(FOLDER_VARIABLE) or tempfile.gettempdir())
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"cannot make {folder}: {error.strerror}", "choose another --out") from error
        _take(stack, folder / FILE, f"the study folder {folder}", "wait for it, stop it, or take another --study")
        # In sorted order, so that two runs over the same GPUs cannot each hold one that the other needs.
        for uuid in sorted(set(gpu_uuids)):
            name = re.sub(r"[^A-Za-z0-9.-]", "_", uuid)
            _take(stack, shared / f"nccltune-gpu-{name}.lock", f"GPU {uuid}", "wait for it, or stop it")
        yield


def _take(stack: ExitStack, path: Path, what: str, do: str) -> None:
    try:
        descriptor = _open(path)
    except OSError as error:
        raise StorageError(
            f"cannot open the lock {path}: {error.strerror}", f"set {FOLDER_VARIABLE} or --out"
        ) from error
    stack.callback(os.close, descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            holder = _holder(descriptor)
            raise StudyBusy(f"{what} is in use by another run" + (f" (pid {holder})" if holder else ""), do) from error
        _log.warning("cannot lock %s (%s); take care that no second run uses it", path, error.strerror)
        return
    with suppress(OSError):  # another user's file may be readable only; the lock holds all the same
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)


def _open(path: Path) -> int:
    """Open or make a lock file that every user may lock.

    First without O_CREAT: in a sticky folder the kernel refuses O_CREAT on another user's file (fs.protected_regular).
    """
    flags = os.O_CLOEXEC | os.O_NOFOLLOW
    for _ in range(2):
        try:
            return os.open(path, os.O_RDWR | flags)
        except FileNotFoundError:
            with suppress(FileExistsError):
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | flags, 0o666)
                with suppress(OSError):
                    os.fchmod(descriptor, 0o666)  # the umask took the others' right to write
                return descriptor
        except PermissionError:
            return os.open(path, os.O_RDONLY | flags)
    return os.open(path, os.O_RDWR | flags)


def _holder(descriptor: int) -> int | None:
    """Return the process that holds the lock, as the kernel or the file names it."""
    status = os.fstat(descriptor)
    where = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/locks").read_text().splitlines():
            words = line.split()
            if words[1] == "FLOCK" and words[5] == where and int(words[4]) > 0:
                return int(words[4])
    with suppress(OSError, ValueError, IndexError):
        return int(os.pread(descriptor, 32, 0).split()[0])
    return None
