"""Warm up and time: rank 0 decides how many steps, all ranks do them, nobody asks the communicator."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import stopping
from .clock import Block, HostClock, without_collector
from .control import Control
from .failure import WorkloadError
from .request import Limits, Steps

# Of the launch's whole time, the most that warming up may take.
WARMUP_SHARE = 0.25


@dataclass(frozen=True)
class WarmUp:
    """What warming up came to.

    Attributes:
        steps: Untimed steps.
        flat: Whether the step time had settled.
        typical_us: Median of the last window, the maximum over ranks.
    """

    steps: int
    flat: bool
    typical_us: float


@dataclass(frozen=True)
class Timed:
    """The timed steps; what is over all ranks is known to rank 0 alone.

    Attributes:
        own_us: This rank's step times.
        step_us: Per step the maximum over the ranks.
        part_us: Part of the step to its time in each step, the maximum over the ranks.
        host_us: Median over the blocks of the host's time to hand out a step, the maximum over the ranks.
        ranks_us: Own step times of each rank.
    """

    own_us: list[float] = field(default_factory=list)
    step_us: list[float] = field(default_factory=list)
    part_us: dict[str, list[float]] = field(default_factory=dict)
    host_us: float = 0.0
    ranks_us: list[list[float]] = field(default_factory=list)


@dataclass(frozen=True)
class Measure:
    """Everything that the two phases need.

    Attributes:
        step: One step of the workload.
        clock: Times it.
        beat: Told the number of steps done after each block.
    """

    step: Callable[[], None]
    clock: HostClock
    control: Control
    steps: Steps
    limits: Limits
    beat: Callable[[int], None]

    def warm_up(self) -> WarmUp:
        """Run steps until their time has settled, or the limit is reached.

        Returns:
            The same on every rank.

        Raises:
            RankSilent: A rank did not answer.
        """
        if self.steps.warmup_max <= 0:
            return WarmUp(0, flat=False, typical_us=0.0)
        began, done, windows = time.monotonic(), 0, list[list[float]]()
        count = stopping.window_steps(self.steps, None, self.limits.no_progress_s)
        while True:
            gathered = self.control.gather("warmup", _plain(self.clock.run(self.step, count)))
            done += count
            decision = None
            if gathered is not None:
                windows.append(slowest([each["step_us"] for each in gathered]))
                decision = self._after_window(windows, done, count, time.monotonic() - began)
            self.beat(done)
            decision = self.control.announce("warmup", decision)
            if decision["next"] == 0:
                return WarmUp(done, decision["flat"], decision["typical_us"])
            count = decision["next"]

    def timed(self, typical_us: float) -> Timed:
        """Time blocks of steps until their median is known well enough, or a limit is reached.

        Args:
            typical_us: Time of a step, from warming up.

        Returns:
            The times.

        Raises:
            RankSilent: A rank did not answer.
            WorkloadError: The ranks did not do the same steps.
        """
        began, blocks, own = time.monotonic(), list[list[dict[str, Any]]](), list[float]()
        count = stopping.block_steps(self.steps, typical_us, 0, self.limits.no_progress_s)
        while count:
            with without_collector():
                block = self.clock.run(self.step, count, lead=1)
            own += block.step_us
            gathered = self.control.gather("timed", _plain(block))
            decision = None
            if gathered is not None:
                blocks.append(gathered)
                decision = self._after_block(blocks, count, time.monotonic() - began)
            self.beat(len(own))
            count = int(self.control.announce("timed", decision))
        return _over_ranks(own, blocks)

    def _after_window(self, windows: list[list[float]], done: int, count: int, elapsed_s: float) -> dict[str, Any]:
        if len(windows[-1]) < count:  # there are no further steps
            return {"next": 0, "flat": False, "typical_us": statistics.median(windows[-1]) if windows[-1] else 0.0}
        typical_us = statistics.median(windows[-1])
        flat = stopping.is_flat(windows)
        settled = flat and done >= self.steps.warmup_min
        over = elapsed_s >= self.steps.warmup_s and (settled or done >= self.steps.warmup_max)
        if over or elapsed_s > WARMUP_SHARE * self.limits.total_s or stopping.overtime(self.steps, elapsed_s, done):
            return {"next": 0, "flat": flat, "typical_us": typical_us}
        count = stopping.window_steps(self.steps, typical_us, self.limits.no_progress_s)
        return {"next": count, "flat": flat, "typical_us": typical_us}

    def _after_block(self, blocks: list[list[dict[str, Any]]], count: int, elapsed_s: float) -> int:
        each = [slowest([rank["step_us"] for rank in block]) for block in blocks]
        if len(each[-1]) < count:  # there are no further steps
            return 0
        times = [time_us for block in each for time_us in block]
        if len(times) >= self.steps.timed_max or stopping.overtime(self.steps, elapsed_s, len(times)):
            return 0
        if len(times) >= self.steps.timed_min:
            error = stopping.relative_error(times, [statistics.median(block) for block in each])
            if error <= self.steps.relative_error or elapsed_s >= self.steps.timed_s:
                return 0
        return stopping.block_steps(self.steps, statistics.median(times), len(times), self.limits.no_progress_s)


def slowest(ranks_us: Sequence[Sequence[float]]) -> list[float]:
    """Take per step the maximum over the ranks: the step is over when the last one is done.

    Args:
        ranks_us: Step times of each rank.

    Returns:
        One time per step.

    Raises:
        WorkloadError: The ranks did not do the same number of steps.
    """
    if len({len(times) for times in ranks_us}) > 1:
        counts = ", ".join(str(len(times)) for times in ranks_us)
        raise WorkloadError(f"the ranks disagree on the number of steps or marks: {counts}")
    return [max(times) for times in zip(*ranks_us, strict=True)]


def _plain(block: Block) -> dict[str, Any]:
    return {"step_us": block.step_us, "part_us": block.part_us, "host_us": block.host_us}


def _over_ranks(own_us: list[float], blocks: list[list[dict[str, Any]]]) -> Timed:
    step_us: list[float] = []
    part_us: dict[str, list[float]] = {}
    for block in blocks:
        step_us += slowest([rank["step_us"] for rank in block])
        for part in block[0]["part_us"]:
            part_us.setdefault(part, []).extend(slowest([rank["part_us"].get(part, []) for rank in block]))
    hosts = [max(rank["host_us"] for rank in block) for block in blocks]
    ranks_us = [[time_us for each in of_rank for time_us in each["step_us"]] for of_rank in zip(*blocks, strict=True)]
    return Timed(own_us, step_us, part_us, statistics.median(hosts) if hosts else 0.0, ranks_us)
