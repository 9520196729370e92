"""One rank's profiler trace (Chrome format, as ``torch.profiler`` exports it) reduced to numbers per step.

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

import dataclasses
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from . import intervals
from .intervals import Interval

_NCCL_KERNEL = re.compile(r"nccl\w*Kernel")  # matched at the beginning
_ANNOTATION = re.compile(r"nccl:")
_GLOO = re.compile(r"gloo:")
_NO_COMPUTE = re.compile(r"gloo:|nccl:|c10d::|record_param_comms")
_STEP = re.compile(r"ProfilerStep\s*#(\d+)\Z")
_LAUNCH = re.compile(r"cu(?:da)?Launch(?:Cooperative)?Kernel")


@dataclass(frozen=True)
class StepTimes:
    """One profiled step of one rank, in microseconds.

    Attributes:
        number: Of the profiler's step.
        step_us: Its length.
        comm_us: Union of the communication on the GPU.
        compute_us: Union of the computation.
        overlap_us: Both at once (communication of the rank's source).
        idle_us: Neither of them, nor a copy.
        cpu_comm_us: Union of gloo's communication on the CPU.
        collectives: Begin and end of each collective after the step began, in the order of their launch.
    """

    number: int
    step_us: float
    comm_us: float
    compute_us: float
    overlap_us: float
    idle_us: float
    cpu_comm_us: float
    collectives: tuple[Interval, ...]


@dataclass(frozen=True)
class RankTrace:
    """What one rank's trace says.

    Attributes:
        rank: As the trace says, or ``None``.
        backend: ``nccl``, ``gloo``, or ``None`` where neither a name nor an event tells.
        source: What the communication was recognised by; ``None`` where none was found.
        steps: The usable steps.
        dropped: Steps left out because records of the GPU are missing.
        invalid: GPU events left out because their stamps are zero.
        comm_kernels: Communication kernels in the usable steps.
        comm_copies: Copies of copy-engine collectives in the usable steps.
    """

    rank: int | None
    backend: str | None
    source: Literal["cuda", "gloo"] | None
    steps: tuple[StepTimes, ...]
    dropped: int
    invalid: int
    comm_kernels: int
    comm_copies: int

    def to_plain(self) -> dict[str, Any]:
        """Give the same as what JSON holds.

        Returns:
            For ``from_plain``.
        """
        return dataclasses.asdict(self)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> RankTrace:
        """Undo ``to_plain``.

        Args:
            plain: Its value, perhaps through JSON.

        Returns:
            The trace.
        """
        steps = tuple(
            StepTimes(**{**step, "collectives": tuple((begin, end) for begin, end in step["collectives"])})
            for step in plain["steps"]
        )
        return cls(**{**plain, "steps": steps})


@dataclass(frozen=True)
class _Event:
    name: str
    begin: float
    end: float
    lane: tuple[Any, Any]
    correlation: int | None
    collective: bool

    @property
    def interval(self) -> Interval:
        return self.begin, self.end


class _Trace:
    """The events of a trace by kind."""

    def __init__(self, events: Iterable[Any]) -> None:
        self.by_category: dict[str, list[_Event]] = defaultdict(list)
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
            (event for event in self._cpu("user_annotation", "cpu_op") if _GLOO.match(event.name)),
            key=lambda event: event.begin,
        )

    @property
    def kernels(self) -> list[_Event]:
        return self.by_category["kernel"]

    @property
    def copies(self) -> list[_Event]:
        return self.by_category["gpu_memcpy"]

    @property
    def comm(self) -> list[_Event]:
        """GPU communication in the order of its launch, which is the same on every rank."""
        found = self.comm_kernels + self.comm_copies
        if all(event.correlation is not None for event in found):
            return sorted(found, key=lambda event: (event.correlation or 0, event.begin))
        return sorted(found, key=lambda event: event.begin)

    @property
    def compute(self) -> list[_Event]:
        if self.kernels or self.copies:
            return [event for event in self.kernels if not _NCCL_KERNEL.match(event.name)]
        return [event for event in self._cpu("cpu_op") if not _NO_COMPUTE.match(event.name)]

    @property
    def launches(self) -> list[_Event]:
        return [event for event in self._cpu("cuda_runtime", "cuda_driver") if _LAUNCH.match(event.name)]

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
        found = self.kernels + self.copies or self._cpu("cpu_op", "user_annotation")
        if not found:
            return None
        return min(event.begin for event in found), max(event.end for event in found)

    def _cpu(self, *categories: str) -> list[_Event]:
        return [event for category in categories for event in self.by_category[category]]

    def _comm_copies(self) -> list[_Event]:
        on_gpu = self._annotated("gpu_user_annotation")
        on_cpu = self._annotated("user_annotation")
        runtime: dict[int | None, _Event] = {
            event.correlation: event
            for event in self._cpu("cuda_runtime", "cuda_driver")
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


def reduce(document: Any, first_step: int | None = None) -> RankTrace:
    """Reduce a trace to numbers.

    Args:
        document: The parsed JSON of the trace: an object with ``traceEvents``, or the list alone.
        first_step: Number of the first profiled step that counts; earlier ones are passed over.

    Returns:
        What it says.

    Raises:
        ValueError: It is no trace.
    """
    events = document.get("traceEvents") if isinstance(document, Mapping) else document
    if not isinstance(events, Sequence) or isinstance(events, str):
        raise ValueError("no list of traceEvents")
    about = document.get("distributedInfo") if isinstance(document, Mapping) else None
    about = about if isinstance(about, Mapping) else {}
    trace = _Trace(events)
    windows, dropped = _usable(trace, first_step)
    source: Literal["cuda", "gloo"] | None = "cuda" if trace.comm else "gloo" if trace.gloo else None
    within = list(windows.values())
    return RankTrace(
        rank=about["rank"] if isinstance(about.get("rank"), int) else None,
        backend=_backend(about.get("backend"), source),
        source=source,
        steps=tuple(_step_times(trace, source, number, window) for number, window in windows.items()),
        dropped=dropped,
        invalid=trace.invalid,
        comm_kernels=_count(trace.comm_kernels, within),
        comm_copies=_count(trace.comm_copies, within),
    )


def _usable(trace: _Trace, first_step: int | None) -> tuple[dict[int, Interval], int]:
    """Choose the steps that count, and draw their windows where their work ran.

    On a GPU the work of a step runs later than the step's own range on the CPU, so the range of its work
    on the GPU is taken, up to the beginning of the next one. The profiler loses GPU records at the beginning
    of a session without a word (pytorch/pytorch issue 192021); a step with a launch whose kernel is missing
    is left out.
    """
    on_cpu, on_gpu = trace.steps("user_annotation"), trace.steps("gpu_user_annotation")
    numbers = [number for number in on_cpu or on_gpu if first_step is None or number >= first_step]
    if not numbers:
        extent = trace.extent()
        return ({0: extent} if extent and not on_cpu else {}), 0
    begins = {number: on_gpu[number][0] for number in numbers if number in on_gpu}
    windows = {}
    for number in numbers:
        if on_gpu:
            following = [begin for begin in begins.values() if number in begins and begin > begins[number]]
            if number in begins:
                windows[number] = (begins[number], min(following, default=on_gpu[number][1]))
        else:
            windows[number] = on_cpu[number]
    bad = _lossy(trace, on_cpu) | (set(numbers) - windows.keys())
    if trace.kernels:
        bad |= {number for number, window in windows.items() if not intervals.clip(_spans(trace.kernels), window)}
    usable = {number: window for number, window in windows.items() if number not in bad}
    return usable, len(bad & set(numbers))


def _lossy(trace: _Trace, on_cpu: Mapping[int, Interval]) -> set[int]:
    """Find the steps with a launch of a kernel that has no record, not even one with zero stamps."""
    if not trace.recorded:
        return set()  # the trace holds no kernels at all: nothing on the GPU was recorded, and nothing is measured
    lost = [event.begin for event in trace.launches if event.correlation not in trace.recorded]
    return {number for number, (begin, end) in on_cpu.items() if any(begin <= time < end for time in lost)}


def _step_times(trace: _Trace, source: str | None, number: int, window: Interval) -> StepTimes:
    comm = intervals.union(intervals.clip(_spans(trace.comm), window))
    gloo = intervals.union(intervals.clip(_spans(trace.gloo), window))
    compute = intervals.union(intervals.clip(_spans(trace.compute), window))
    copies = intervals.clip(_spans(trace.copies), window)
    talk = comm if source == "cuda" else gloo
    active = intervals.length(intervals.union([*talk, *compute]))
    either = intervals.length(intervals.union([*talk, *compute, *copies]))
    own = trace.comm if source == "cuda" else trace.gloo
    return StepTimes(
        number=number,
        step_us=window[1] - window[0],
        comm_us=intervals.length(comm),
        compute_us=intervals.length(compute),
        overlap_us=intervals.length(talk) + intervals.length(compute) - active,
        idle_us=window[1] - window[0] - either,
        cpu_comm_us=intervals.length(gloo),
        collectives=tuple(
            (event.begin - window[0], event.end - window[0]) for event in own if window[0] <= event.begin < window[1]
        ),
    )


def _backend(said: Any, source: str | None) -> str | None:
    text = str(said or "")
    for name in ("nccl", "gloo"):
        if name in text:
            return name
    return {"cuda": "nccl", "gloo": "gloo", None: None}[source]


def _parse(event: Mapping[str, Any]) -> _Event | None:
    begin, duration = _number(event.get("ts")), _number(event.get("dur"))
    if math.isnan(begin) or math.isnan(duration):
        return None
    return _Event(
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


def _stamped(event: _Event | None, later: bool) -> bool:
    """Say whether CUPTI knew the event's time; zero stamps mean that it did not (``CUpti_ActivityKernel``)."""
    return event is not None and event.end > event.begin and not (later and event.begin <= 0)


def _number(value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return math.nan
    return number if math.isfinite(number) else math.nan


def _inside(event: _Event, lanes: Mapping[tuple[Any, Any], Sequence[Interval]]) -> bool:
    return any(begin <= event.begin and event.end <= end for begin, end in lanes.get(event.lane, ()))


def _spans(events: Iterable[_Event]) -> list[Interval]:
    return [event.interval for event in events]


def _count(events: Iterable[_Event], windows: Sequence[Interval]) -> int:
    return sum(any(begin <= event.begin < end for begin, end in windows) for event in events)
