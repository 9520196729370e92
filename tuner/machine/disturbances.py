"""Watches this machine while a launch runs, and says who else used it.

The host's counters are read twice, and the GPUs once a second by a thread that does nothing else. Nothing here can make
a launch fail: what cannot be read is not known. ``benchmarks/watch_cost.py`` measures what it costs.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ..records import Disturbances
from . import gpu_use, host_use
from .gpu_use import Gpus, GpuSample, GpuUse
from .host_use import HostUse

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

EVERY_S = 1.0
"""Time between two samples of the GPUs."""
_FIRST_S = 0.3  # before any rank can have touched a GPU
_HUNG_S = 20.0  # a GPU that fell off its bus lets the driver's answer come never
_NO_GPUS = GpuUse(unknown=("GPUs",))


@dataclass
class Seen:
    """What a watch comes to, once it is over."""

    result: Disturbances | None = None


class Watch:
    """Watches one launch after the other.

    Args:
        environ: Of the workers.
        root: Where ``/proc`` and ``/sys`` are.
        find: Finds the GPUs of so many ranks.
    """

    def __init__(
        self,
        environ: Mapping[str, str] = os.environ,
        root: Path = Path("/"),
        find: Callable[[Mapping[str, str], int], Gpus | None] = gpu_use.find,
    ) -> None:
        self._environ, self._root, self._find = environ, root, find
        self._found: dict[int, Gpus | None] = {}

    @contextmanager
    def over(self, *, gpus: int, ours_known: bool = True) -> Iterator[Seen]:
        """Watch while the body runs.

        Args:
            gpus: How many GPUs are used; 0 for none.
            ours_known: Whether all that the body starts descends from this process.

        Yields:
            What was seen; empty until the body has ended.
        """
        seen = Seen()
        sampler = _Sampler(self._gpus(gpus)) if gpus else None
        before = _quietly(lambda: host_use.read_host(self._root))
        try:
            yield seen
        finally:
            gpu = sampler.finish() if sampler else GpuUse()
            if gpu is None:
                _log.warning("the GPUs' driver does not answer; who else uses them is not watched any more")
                self._found[gpus], gpu = None, _NO_GPUS
        after = _quietly(lambda: host_use.read_host(self._root))
        host = None
        if before and after:
            host = _quietly(lambda: host_use.compare(before, after, ours_known=ours_known))
        seen.result = _together(host or HostUse(unknown=("CPU time of others", "memory pressure")), gpu)

    def _gpus(self, count: int) -> Gpus | None:
        if count not in self._found:
            # The driver stays open until this process ends: on some machines opening it takes seconds.
            self._found[count] = _quietly(lambda: self._find(self._environ, count))
        return self._found[count]


class _Sampler:
    """Samples GPUs in a thread of its own until it is told to finish."""

    def __init__(self, gpus: Gpus | None) -> None:
        self._gpus = gpus
        self._samples: list[GpuSample] = []
        self._started, self._started_unix = time.monotonic(), time.time()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="gpu samples", daemon=True)
        if gpus:
            self._take(gpus)
            self._thread.start()

    def finish(self) -> GpuUse | None:
        """Take the last sample and judge them all; ``None`` where the driver does not answer any more."""
        gpus = self._gpus
        if gpus is None:
            return _NO_GPUS
        self._over.set()
        self._thread.join(_HUNG_S)
        if self._thread.is_alive():
            return None
        self._take(gpus)
        busy = lambda index, pid: gpus.busy(index, pid, self._started_unix)  # noqa: E731
        return _quietly(lambda: gpu_use.judge(self._samples, busy)) or _NO_GPUS

    def _work(self) -> None:
        wait_s = _FIRST_S
        while self._gpus and not self._over.wait(wait_s):
            self._take(self._gpus)
            wait_s = EVERY_S

    def _take(self, gpus: Gpus) -> None:
        at_s = time.monotonic() - self._started
        states = _quietly(gpus.states)
        if states is not None:
            self._samples.append(GpuSample(at_s, states))


def _together(host: HostUse, gpu: GpuUse) -> Disturbances:
    return Disturbances(
        seen=(*gpu.seen, *host.seen),
        unknown=(*gpu.unknown, *host.unknown),
        cpu_others=host.cpu_others,
        power_capped=gpu.power_capped,
    )


def _quietly(read: Callable[[], _T]) -> _T | None:
    try:
        return read()
    except Exception as error:  # whatever a driver or a kernel can come up with: a launch must not fail for it
        _log.debug("not known: %r", error)
        return None
