"""Time the steps of one block: CUDA events on a GPU, the host's clock elsewhere.

A step's time is the distance between the ends of two neighbouring steps, so nothing between them is lost
and the times of a block add up to its length. An untimed step leads each block: the ranks come out of the
talk about the last block at different moments, and the collectives of that step bring them together
again; on a GPU it also fills the queue, so that the launch of the first timed step is hidden as it is in
training. There is no synchronisation inside a block.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from .drive import OutOfSteps, drive

if TYPE_CHECKING:
    import torch

_END = ""  # the label of a step's end


@dataclass(frozen=True)
class Block:
    """Times of this rank, in microseconds.

    Attributes:
        step_us: Each step.
        part_us: Label to the time of that part in each step.
        host_us: Time of the host to hand out one step, the mean of the block. Near the step time on a GPU
            it means that the host is the bottleneck.
    """

    step_us: list[float]
    part_us: dict[str, list[float]]
    host_us: float


class HostClock:
    """``time.perf_counter_ns``: right where a step has ended when its function returns."""

    name: Literal["cuda-events", "host"] = "host"

    def __init__(self) -> None:
        self._stamps: list[tuple[str, int]] | None = None

    def run(self, step: Callable[[], None], count: int, lead: int = 0) -> Block:
        """Run and time steps.

        Args:
            step: One step.
            count: Timed steps.
            lead: Untimed steps before.

        Returns:
            Their times; fewer than asked for where the workload has no further step.
        """
        return drive(self._block(count, lead), step)

    def _block(self, count: int, lead: int) -> Generator[None, None, Block]:
        done = 0
        try:
            for _ in range(lead):
                yield
            self._stamps = []
            self.mark(_END)
            began = time.perf_counter_ns()
            while done < count:
                yield
                self.mark(_END)
                done += 1
        except OutOfSteps:
            if self._stamps is None:
                return Block([], {}, 0.0)
        host_us = (time.perf_counter_ns() - began) / 1e3 / max(done, 1)
        self._finish()
        stamps, self._stamps = self._stamps, None
        return _fold([label for label, _ in stamps[1:]], self._distances([stamp for _, stamp in stamps]), host_us)

    def mark(self, label: str) -> None:
        """End a part of the step; does nothing outside timed steps.

        Args:
            label: Name of the part.
        """
        if self._stamps is not None:
            self._stamps.append((label, self._stamp()))

    def _stamp(self) -> int:
        return time.perf_counter_ns()

    def _finish(self) -> None:
        return

    def _distances(self, stamps: list[int]) -> list[float]:
        return [(later - earlier) / 1e3 for earlier, later in itertools.pairwise(stamps)]


class CudaClock(HostClock):
    """CUDA events on the current stream; they are made once and used again.

    Args:
        device: The GPU; it must be the current one.
    """

    name = "cuda-events"

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device
        self._events: list[Any] = []
        self._used = 0

    def run(self, step: Callable[[], None], count: int, lead: int = 0) -> Block:
        """Run and time steps; waits for the GPU at the end of the block only.

        Args:
            step: One step.
            count: Timed steps.
            lead: Untimed steps before.

        Returns:
            Their times.
        """
        self._used = 0
        while len(self._events) <= count:
            self._events.append(self._event())
        return super().run(step, count, lead)

    def _stamp(self) -> int:
        if self._used == len(self._events):
            self._events.append(self._event())
        self._events[self._used].record()
        self._used += 1
        return self._used - 1

    def _event(self) -> Any:
        import torch

        make: Any = torch.cuda.Event
        return make(enable_timing=True)

    def _finish(self) -> None:
        import torch

        torch.cuda.synchronize(self._device)

    def _distances(self, stamps: list[int]) -> list[float]:
        events = [self._events[stamp] for stamp in stamps]
        return [earlier.elapsed_time(later) * 1e3 for earlier, later in itertools.pairwise(events)]


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """Keep Python's garbage collector out of the timed steps."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _fold(labels: list[str], distances_us: list[float], host_us: float) -> Block:
    step_us: list[float] = []
    part_us: dict[str, list[float]] = {}
    current: dict[str, float] = {}
    for label, distance in zip(labels, distances_us, strict=True):
        current[label] = current.get(label, 0.0) + distance
        if label == _END:
            step_us.append(sum(current.values()))
            for part, time_us in current.items():
                if part != _END:
                    part_us.setdefault(part, []).append(time_us)
            current = {}
    return Block(step_us, part_us, host_us)
