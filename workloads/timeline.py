"""Where the time of a step goes, from the traces of one or all ranks.

A communication kernel runs from the moment when its own rank is there until the last rank has delivered,
so on an early rank it holds waiting too. Only the shortest time over the ranks is transfer: what NCCL's
settings can change. The collectives are matched by their order, so no common clock is needed.

"Not found" is ``None`` throughout: gloo jobs have no communication kernels, which does not make
communication free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from . import intervals
from .trace import RankTrace, StepTimes, reduce

__all__ = ["RankTrace", "answers", "communication", "match", "reduce"]

# A difference within a collective that is smaller than this share of it is no waiting for a straggler.
_MATERIAL_SHARE = 0.1


@dataclass(frozen=True)
class Collective:
    """One collective over all ranks, in microseconds.

    Attributes:
        transfer_us: Shortest time over the ranks.
        wait_us: Per rank what its own time is longer.
    """

    transfer_us: float
    wait_us: tuple[float, ...]

    @property
    def last(self) -> int | None:
        """Which rank (by position) arrived last, where the others waited for it noticeably."""
        longest = self.transfer_us + max(self.wait_us)
        if max(self.wait_us) <= _MATERIAL_SHARE * longest:
            return None
        return self.wait_us.index(0.0)


@dataclass(frozen=True)
class Matched:
    """The collectives of the steps in which all ranks have the same number of them.

    Attributes:
        collectives: In order.
        steps: The number of such steps.
        active_us: Time of a step in which something was transferred, the mean over ranks. Less than the sum
            of the transfers where collectives run beside each other.
    """

    collectives: tuple[Collective, ...]
    steps: int
    active_us: float

    @property
    def transfer_us(self) -> float:
        """Sum of the transfers of a step, the mean."""
        return sum(each.transfer_us for each in self.collectives) / self.steps

    @property
    def waited_us(self) -> float:
        """What the rank that waits most waits in a step, the mean."""
        ranks = zip(*(each.wait_us for each in self.collectives), strict=True)
        return max(sum(waits, 0.0) for waits in ranks) / self.steps

    @property
    def straggler(self) -> int | None:
        """The rank (by position) that arrived last in more than half of the collectives."""
        late = Counter(each.last for each in self.collectives)
        late.pop(None, None)
        position, count = late.most_common(1)[0] if late else (None, 0)
        return position if 2 * count > len(self.collectives) else None


def match(ranks: Sequence[RankTrace]) -> Matched | None:
    """Match the k-th collective of a step over the ranks.

    Args:
        ranks: At least two traces of the same steps.

    Returns:
        The collectives; ``None`` with fewer ranks, or where no step has the same number on all.
    """
    if len(ranks) < 2:
        return None
    by_number = [{step.number: step for step in rank.steps} for rank in ranks]
    found: list[Collective] = []
    active: list[float] = []
    steps = 0
    for number in sorted(set(by_number[0]).intersection(*by_number[1:])):
        spans = [rank[number].collectives for rank in by_number]
        if len({len(each) for each in spans}) > 1 or not spans[0]:
            continue
        steps += 1
        durations = [[end - begin for begin, end in each] for each in spans]
        shortest = [min(times) for times in zip(*durations, strict=True)]
        for least, times in zip(shortest, zip(*durations, strict=True), strict=True):
            found.append(Collective(least, tuple(time - least for time in times)))
        # The wait comes first: the last rank's arrival starts the transfer.
        moving = [[(end - least, end) for (_, end), least in zip(each, shortest, strict=True)] for each in spans]
        active += [intervals.length(intervals.union(each)) for each in moving]
    return Matched(tuple(found), steps, sum(active) / len(active)) if steps else None


def communication(ranks: Sequence[RankTrace], untraced_step_us: float | None = None) -> dict[str, Any] | None:
    """Sum up where the time goes, the mean over ranks and usable steps.

    Args:
        ranks: One trace per rank.
        untraced_step_us: Step time without the profiler.

    Returns:
        Fields of ``records.Communication``; ``None`` where no communication was found or a rank has no
        usable step.
    """
    sources = {rank.source for rank in ranks}
    if len(sources) != 1 or None in sources or not all(rank.steps for rank in ranks):
        return None
    source = ranks[0].source
    step_us, compute_us, overlap_us, idle_us = (
        _mean(ranks, name) for name in ("step_us", "compute_us", "overlap_us", "idle_us")
    )
    busy_us = _mean(ranks, "comm_us" if source == "cuda" else "cpu_comm_us")
    if busy_us <= 0 or step_us <= 0:
        return None
    exposed_us = max(0.0, busy_us - overlap_us)
    matched = match(ranks)
    transfer_us = min(matched.active_us, busy_us) if matched else None
    return {
        "source": source,
        "steps": min(len(rank.steps) for rank in ranks),
        "step_us": step_us,
        "busy_us": busy_us,
        "exposed_us": exposed_us,
        "overlapped_us": overlap_us,
        "compute_us": compute_us,
        "idle_us": max(0.0, idle_us),
        "share": busy_us / step_us,
        "exposed_share": exposed_us / step_us,
        "transfer_us": transfer_us,
        "waiting_us": None if transfer_us is None else busy_us - transfer_us,
        "inflation": step_us / untraced_step_us if untraced_step_us else None,
        "idle_share": _idle_share(ranks, untraced_step_us, transfer_us) if source == "cuda" else None,
    }


def _idle_share(ranks: Sequence[RankTrace], untraced_step_us: float | None, transfer_us: float | None) -> float | None:
    """Say in which share of an untraced step even the busiest GPU had nothing to do.

    The profiler slows the host down, not the kernels: their time under it is held against the step without it.
    The short gaps between the kernels of a full queue are none of the host's. A collective that waits for a late rank
    keeps its GPU busy for nothing and counts as idle. The busiest GPU decides, since the others may well wait for
    a slower one.
    """
    if not untraced_step_us:
        return None

    def worked_us(rank: RankTrace) -> float:
        busy_us = _mean_of_steps(rank.steps, "step_us") - _mean_of_steps(rank.steps, "starved_us")
        exposed_us = _mean_of_steps(rank.steps, "comm_us") - _mean_of_steps(rank.steps, "overlap_us")
        return busy_us - (0.0 if transfer_us is None else max(0.0, exposed_us - transfer_us))

    return max(0.0, 1 - max(worked_us(rank) for rank in ranks) / untraced_step_us)


def answers(ranks: Sequence[RankTrace]) -> dict[str, Any]:
    """Say everything that the traces of one job say; times are the mean over ranks, microseconds a step.

    Args:
        ranks: One trace per rank, at least one.

    Returns:
        ``None`` for what was not found. ``cpu_*`` is communication that runs on the CPU (gloo), the other
        communication runs on the GPU.
    """
    usable = all(rank.steps for rank in ranks)
    on_gpu = usable and any(rank.comm_kernels + rank.comm_copies for rank in ranks)
    on_cpu = usable and any(rank.source == "gloo" for rank in ranks)
    step_us = _mean(ranks, "step_us") if usable else None
    compute_us = _mean(ranks, "compute_us") if usable else None
    overlap_us = _mean(ranks, "overlap_us") if usable else None
    comm_us = _mean(ranks, "comm_us") if on_gpu else None
    cpu_comm_us = _mean(ranks, "cpu_comm_us") if on_cpu else None
    talk_us = comm_us if comm_us is not None else cpu_comm_us
    exposed_us = None if talk_us is None or overlap_us is None else talk_us - overlap_us
    matched = match(ranks)
    names = [index if rank.rank is None else rank.rank for index, rank in enumerate(ranks)]
    straggler = matched.straggler if matched else None
    return {
        "backend": ranks[0].backend,
        "step_us": step_us,
        "comm_us": comm_us,
        "compute_us": compute_us,
        "overlap_us": overlap_us if talk_us is not None else None,
        "exposed_comm_us": exposed_us if on_gpu else None,
        "busy_us": None if compute_us is None else compute_us + (exposed_us or 0.0),
        "comm_share": _share(comm_us, step_us),
        "exposed_comm_share": _share(exposed_us if on_gpu else None, step_us),
        "cpu_comm_us": cpu_comm_us,
        "cpu_exposed_comm_us": exposed_us if on_cpu else None,
        "cpu_comm_share": _share(cpu_comm_us, step_us),
        "comm_kernels": sum(rank.comm_kernels for rank in ranks),
        "comm_copies": sum(rank.comm_copies for rank in ranks),
        "collectives": [_collective(each, names) for each in matched.collectives] if matched else None,
        "transfer_us": matched.transfer_us if matched else None,
        "straggler_rank": None if straggler is None else names[straggler],
        "usable_steps": min(len(rank.steps) for rank in ranks),
        "dropped_steps": max(rank.dropped for rank in ranks),
        "invalid_kernels": sum(rank.invalid for rank in ranks),
    }


def _collective(collective: Collective, names: Sequence[int]) -> dict[str, Any]:
    return {
        "transfer_upper_bound_us": collective.transfer_us,
        "wait_us": {str(name): wait for name, wait in zip(names, collective.wait_us, strict=True)},
    }


def _mean(ranks: Sequence[RankTrace], name: str) -> float:
    return sum(_mean_of_steps(rank.steps, name) for rank in ranks) / len(ranks)


def _mean_of_steps(steps: Sequence[StepTimes], name: str) -> float:
    return float(sum(getattr(step, name) for step in steps) / len(steps))


def _share(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None
