"""Die with the parent: a worker must not outlive torchrun's agent, not even one killed by ``kill -9``."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_parent() -> None:
    """Ask Linux for SIGKILL when the parent ends, and end now if it did already.

    Torchrun starts each worker in a session of its own, so no signal to a process group reaches it.
    Elsewhere than on Linux nothing happens.
    """
    parent = os.getppid()
    try:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    except (AttributeError, OSError):
        return
    if os.getppid() != parent:  # it ended between the two calls: the signal will never come
        os._exit(1)


def age_s() -> float:
    """Tell how long ago this process was started.

    Returns:
        Seconds from the kernel's start stamp until now; 0 where ``/proc`` does not say.
    """
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        started = int(fields[19]) / os.sysconf("SC_CLK_TCK")  # field 22 of proc(5), seconds after boot
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started)
    except (OSError, ValueError, IndexError, AttributeError):
        return 0.0
