"""The events of one rank's profiler trace (Chrome format, as ``torch.profiler`` exports it) by kind.

What counts as what:

* Communication on a GPU is an event of category ``kernel`` with the name of an NCCL kernel: ``ncclKernel_``
  up to NCCL 2.18, ``ncclDevKernel_`` from 2.19, ``ncclSymDevKernel_`` and ``ncclSymkDevKernel_`` for
  symmetric memory from 2.27, ``ncclGenkDevKernel_``, and the old ``ncclAllReduceRingLLKernel_`` form. From NCCL 2.28
  some collectives are done by copy engines: such a copy lies inside the GPU annotation ``nccl:…`` of its
  stream, or belongs to a launch inside the CPU annotation. A copy outside is neither communication nor computation.
* Every other kernel is computation. Annotations repeat the time of what they contain and never count.
* Without a GPU, communication is what gloo's threads annotate (``gloo:all_reduce`` …), computation the CPU operators.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .intervals import Interval

_NCCL_KERNEL = re.compile(r"nccl\w*Kernel")  # matched at the beginning
_ANNOTATION = re.compile(r"nccl:")
_GLOO = re.compile(r"gloo:")
_NO_COMPUTE = re.compile(r"gloo:|nccl:|c10d::|record_param_comms")
_STEP = re.compile(r"ProfilerStep\s*#(\d+)\Z")
_LAUNCH = re.compile(r"cu(?:da)?Launch(?:Cooperative)?Kernel")


@dataclass(frozen=True)
class Event:
    """One event with a length; times in microseconds.

    Attributes:
        lane: Process and thread on the CPU; GPU and stream there.
        correlation: What a kernel or copy has in common with its launch.
        collective: Whether it names a collective of its own.
    """

    name: str
    begin: float
    end: float
    lane: tuple[Any, Any]
    correlation: int | None
    collective: bool

    @property
    def interval(self) -> Interval:
        """Begin and end."""
        return self.begin, self.end


class Trace:
    """The events of a trace by kind.

    Args:
        events: Of ``traceEvents``, as parsed from JSON.

    Attributes:
        by_category: The complete events with sound stamps.
        invalid: Kernels left out because their stamps are zero.
        recorded: Correlations of all kernels, those without stamps too.
    """

    def __init__(self, events: Iterable[Any]) -> None:
        self.by_category: dict[str, list[Event]] = defaultdict(list)
        self.invalid = 0
        self.recorded: set[int | None] = set()
        complete = [event for event in events if isinstance(event, dict) and event.get("ph") == "X"]
        stamps = [_number(event.get("ts")) for event in complete if _STEP.match(str(event.get("name")))]
        later = bool(stamps) and min(stamps) > 0  # then a GPU event at or before zero has no stamp of its own
        for event in complete:
            category = str(event.get("cat", "")).lower()
            parsed = _parse(event)
            if category == "kernel":
                self.recorded.add(_correlation(event))
            if category in ("kernel", "gpu_memcpy") and not _stamped(parsed, later):
                self.invalid += category == "kernel"
            elif parsed is not None:
                self.by_category[category].append(parsed)
        self.comm_kernels = [event for event in self.kernels if _NCCL_KERNEL.match(event.name)]
        self.comm_copies = self._comm_copies()
        self.gloo = sorted(
            (event for event in self.cpu("user_annotation", "cpu_op") if _GLOO.match(event.name)),
            key=lambda event: event.begin,
        )

    @property
    def kernels(self) -> list[Event]:
        """All kernels of the GPU."""
        return self.by_category["kernel"]

    @property
    def copies(self) -> list[Event]:
        """All copies to, from or on the GPU."""
        return self.by_category["gpu_memcpy"]

    @property
    def comm(self) -> list[Event]:
        """GPU communication in the order of its launch, which is the same on every rank."""
        found = self.comm_kernels + self.comm_copies
        if all(event.correlation is not None for event in found):
            return sorted(found, key=lambda event: (event.correlation or 0, event.begin))
        return sorted(found, key=lambda event: event.begin)

    @property
    def compute(self) -> list[Event]:
        """What computes: kernels other than NCCL's, or the CPU's operators where nothing ran on a GPU."""
        if self.kernels or self.copies:
            return [event for event in self.kernels if not _NCCL_KERNEL.match(event.name)]
        return [event for event in self.cpu("cpu_op") if not _NO_COMPUTE.match(event.name)]

    @property
    def launches(self) -> list[Event]:
        """Calls on the CPU that launch a kernel."""
        return [event for event in self.cpu("cuda_runtime", "cuda_driver") if _LAUNCH.match(event.name)]

    def steps(self, category: str) -> dict[int, Interval]:
        """Windows of the profiled steps as one category of annotations draws them."""
        windows: dict[int, Interval] = {}
        for event in self.by_category[category]:
            found = _STEP.match(event.name)
            if found:
                number = int(found.group(1))
                begin, end = windows.get(number, event.interval)
                windows[number] = (min(begin, event.begin), max(end, event.end))
        return dict(sorted(windows.items()))

    def extent(self) -> Interval | None:
        """From the first to the last event that matters, where no step is marked."""
        found = self.kernels + self.copies or self.cpu("cpu_op", "user_annotation")
        if not found:
            return None
        return min(event.begin for event in found), max(event.end for event in found)

    def cpu(self, *categories: str) -> list[Event]:
        """All events of some categories of the CPU.

        Args:
            categories: As kineto names them, in lower case.
        """
        return [event for category in categories for event in self.by_category[category]]

    def _comm_copies(self) -> list[Event]:
        on_gpu = self._annotated("gpu_user_annotation")
        on_cpu = self._annotated("user_annotation")
        runtime: dict[int | None, Event] = {
            event.correlation: event
            for event in self.cpu("cuda_runtime", "cuda_driver")
            if event.correlation is not None
        }
        found = []
        for copy in self.copies:
            launch = runtime.get(copy.correlation)
            if (
                copy.collective
                or _inside(copy, on_gpu)
                or (launch is not None and copy.correlation is not None and _inside(launch, on_cpu))
            ):
                found.append(copy)
        return found

    def _annotated(self, category: str) -> dict[tuple[Any, Any], list[Interval]]:
        lanes: dict[tuple[Any, Any], list[Interval]] = defaultdict(list)
        for event in self.by_category[category]:
            if _ANNOTATION.match(event.name):
                lanes[event.lane].append(event.interval)
        return lanes


def _parse(event: Mapping[str, Any]) -> Event | None:
    begin, duration = _number(event.get("ts")), _number(event.get("dur"))
    if math.isnan(begin) or math.isnan(duration):
        return None
    return Event(
        name=str(event.get("name", "")),
        begin=begin,
        end=begin + duration,
        lane=(event.get("pid"), event.get("tid")),
        correlation=_correlation(event),
        collective="Collective name" in _arguments(event),
    )


def _arguments(event: Mapping[str, Any]) -> Mapping[str, Any]:
    found = event.get("args")
    return found if isinstance(found, Mapping) else {}


def _correlation(event: Mapping[str, Any]) -> int | None:
    found = _arguments(event).get("correlation")
    return found if isinstance(found, int) else None


def _stamped(event: Event | None, later: bool) -> bool:
    """Say whether CUPTI knew the event's time; zero stamps mean that it did not (``CUpti_ActivityKernel``)."""
    return event is not None and event.end > event.begin and not (later and event.begin <= 0)


def _number(value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return math.nan
    return number if math.isfinite(number) else math.nan


def _inside(event: Event, lanes: Mapping[tuple[Any, Any], Sequence[Interval]]) -> bool:
    return any(begin <= event.begin and event.end <= end for begin, end in lanes.get(event.lane, ()))
