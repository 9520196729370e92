"""One rank's profiler trace reduced to numbers per step: how long each kind of work ran, alone or beside the other."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from . import intervals, step_windows
from .intervals import Interval
from .trace_events import Event, Trace

STARVED_US = 5.0
"""A GPU with a full queue goes from one kernel to the next within 1 to 3 µs, which adds up to 4 % of a step of
ResNet-50 on an H200. A longer gap means that nothing was there to run: 0.3 % of that step, 50 % of one that waits for
the host."""


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
        starved_us: The part of ``idle_us`` that lies in gaps of ``STARVED_US`` or more.
    """

    number: int
    step_us: float
    comm_us: float
    compute_us: float
    overlap_us: float
    idle_us: float
    cpu_comm_us: float
    collectives: tuple[Interval, ...]
    starved_us: float = 0.0


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


def reduce(document: Any, first_step: int | None = None, last_step: int | None = None) -> RankTrace:
    """Reduce a trace to numbers.

    Args:
        document: The parsed JSON of the trace: an object with ``traceEvents``, or the list alone.
        first_step: Number of the first profiled step that counts; earlier ones are passed over.
        last_step: Number of the last one that counts; a later one only marks its end.

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
    trace = Trace(events)
    windows, dropped = step_windows.usable(trace, first_step, last_step)
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


def _step_times(trace: Trace, source: str | None, number: int, window: Interval) -> StepTimes:
    comm = intervals.union(intervals.clip(_spans(trace.comm), window))
    gloo = intervals.union(intervals.clip(_spans(trace.gloo), window))
    compute = intervals.union(intervals.clip(_spans(trace.compute), window))
    copies = intervals.clip(_spans(trace.copies), window)
    talk = comm if source == "cuda" else gloo
    active = intervals.length(intervals.union([*talk, *compute]))
    either = intervals.union([*talk, *compute, *copies])
    own = trace.comm if source == "cuda" else trace.gloo
    return StepTimes(
        number=number,
        step_us=window[1] - window[0],
        comm_us=intervals.length(comm),
        compute_us=intervals.length(compute),
        overlap_us=intervals.length(talk) + intervals.length(compute) - active,
        idle_us=window[1] - window[0] - intervals.length(either),
        cpu_comm_us=intervals.length(gloo),
        collectives=tuple(
            (event.begin - window[0], event.end - window[0]) for event in own if window[0] <= event.begin < window[1]
        ),
        starved_us=sum(gap for gap in intervals.gaps(either, window) if gap >= STARVED_US),
    )


def _backend(said: Any, source: str | None) -> str | None:
    text = str(said or "")
    for name in ("nccl", "gloo"):
        if name in text:
            return name
    return {"cuda": "nccl", "gloo": "gloo", None: None}[source]


def _spans(events: Iterable[Event]) -> list[Interval]:
    return [event.interval for event in events]


def _count(events: Iterable[Event], windows: Sequence[Interval]) -> int:
    return sum(any(begin <= event.begin < end for begin, end in windows) for event in events)
