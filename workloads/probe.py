"""What only a launch can tell: does a collective over all ranks, and over each pair of them, come back and add right?

Options: ``world``, whether all ranks together are tried; ``pairs``, a list of ``[rank, rank]``; ``patience_s``, how
long one of them may take; ``report``, the file that rank 0 appends a JSON line to before and after each. The report
names a pair that hangs also when the launch is killed. Nothing here is a step: the harness times an empty one.
"""

from __future__ import annotations

import json
import os
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import bandwidth
from .control import Control
from .failure import WorkloadError
from .harness import main
from .heartbeat import Heartbeat
from .workload import Context, Workload

if TYPE_CHECKING:
    import torch

WORLD = "world"
HUNG_STATUS = 3
_MARGIN_S = 10.0
_PERIOD = 8191  # prime, while NCCL's chunks are powers of two: swapped or torn chunks show
_VALUES = 4093  # prime; sums of 4096 ranks are exact in fp32
_REPEATS = 2
_BATCHES = 5
_SIZES_BYTES = {"nccl": (1 << 10, 1 << 20, 1 << 26), "gloo": (1 << 10, 1 << 16, 1 << 20)}
_CALLS = {"nccl": 10, "gloo": 3}


@dataclass(frozen=True)
class Part:
    """One thing to try: all ranks, or a pair.

    Attributes:
        name: ``world`` or ``0-3``; it stands in the report.
    """

    name: str
    ranks: tuple[int, ...]


class Report:
    """The report file; only rank 0 writes it, and each line at once."""

    def __init__(self, path: Path, rank: int) -> None:
        self._path = path if rank == 0 else None

    def write(self, part: Part, state: str, **more: Any) -> None:
        """Append a line.

        Args:
            part: What it is about.
            state: ``begun``, ``right``, ``wrong`` or ``hung``.
            **more: ``gbytes_per_s``, ``detail``.
        """
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"part": part.name, "ranks": part.ranks, "state": state, **more}) + "\n")


def build(context: Context) -> Workload:
    """Try everything, then return an empty step.

    Args:
        context: Of the launch.

    Returns:
        A step without communication; the metrics hold the bandwidths.

    Raises:
        WorkloadError: An option is wrong.
    """
    import torch

    parts, patience_s, path = options(context)
    report, beats = Report(path, context.rank), Heartbeat(path.with_name("heartbeat"), context.rank)
    beats.enter("warmup")
    control = _control(context, patience_s + _MARGIN_S)
    metrics: dict[str, float] = {}
    for number, part in enumerate(parts):
        control.announce("begin", number)  # one part at a time: the others' traffic would be in its bandwidth
        beats.beat(number)
        report.write(part, "begun")
        with _watched(report, part, patience_s, context.rank):
            found = _try(context, part)
            gathered = control.gather("found", found)
        if gathered is not None:
            metrics |= _conclude(report, part, [each for each in gathered if each is not None])
    nothing = torch.zeros(1, device=context.device)
    return Workload(step=lambda: _nothing(nothing), dtypes=(), metrics=lambda _: metrics)


def _nothing(data: torch.Tensor) -> None:
    data.add_(1)


def options(context: Context) -> tuple[list[Part], float, Path]:
    """Read the options.

    Raises:
        WorkloadError: One of them is wrong.
    """
    context.only("world", "pairs", "patience_s", "report")
    ranks, pairs = range(context.world_size), context.options.get("pairs", [])
    parts = [Part(WORLD, tuple(ranks))] if context.options.get("world", True) else []
    for pair in pairs:
        if not (isinstance(pair, list) and len(pair) == 2 and pair[0] != pair[1] and all(one in ranks for one in pair)):
            raise WorkloadError(f"option 'pairs': two different ranks below {len(ranks)} are needed, not {pair!r}")
        parts.append(Part(f"{pair[0]}-{pair[1]}", tuple(pair)))
    path = context.options.get("report")
    if not isinstance(path, str) or not path:
        raise WorkloadError("option 'report': the path of a file is needed")
    return parts, float(context.options.get("patience_s", 30.0)), Path(path)


def _control(context: Context, patience_s: float) -> Control:
    """A connection of our own to torchrun's store: what hangs must not stop the talk about it."""
    from torch import distributed

    module: Any = distributed  # its stubs differ from release to release in what they export
    store, _, _ = next(iter(module.rendezvous("env://", timeout=timedelta(seconds=patience_s))))
    return Control(module.PrefixStore("probe", store), context.rank, context.world_size, patience_s)


@contextmanager
def _watched(report: Report, part: Part, patience_s: float, rank: int) -> Iterator[None]:
    """End this process when a part takes too long; a collective that hangs cannot be called back.

    Rank 0 goes first, since it writes the report; torchrun then ends the others.
    """

    def expired() -> None:
        report.write(part, "hung", detail=f"no answer within {patience_s:g} s")
        os._exit(HUNG_STATUS)

    timer = threading.Timer(patience_s if rank == 0 else patience_s + _MARGIN_S, expired)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _try(context: Context, part: Part) -> dict[str, Any] | None:
    """Check and time all-reduces of one part; ``None`` on a rank that is no member."""
    from torch import distributed

    # All ranks must make each group: NCCL splits it off the communicator of all of them.
    group: Any = distributed.group.WORLD if part.name == WORLD else distributed.new_group(list(part.ranks))
    if context.rank not in part.ranks:
        return None
    wrong = [
        problem
        for repeat in range(_REPEATS)
        for size in _SIZES_BYTES[context.backend]
        if (problem := _check(context, part, group, size, repeat))
    ]
    size = _SIZES_BYTES[context.backend][-1]
    found = {"wrong": wrong[:3], "bytes": size, "time_us": _time_us(context, group, size)}
    if part.name != WORLD:
        distributed.destroy_process_group(group)
    return found


def _check(context: Context, part: Part, group: Any, size: int, repeat: int) -> str | None:
    """Sum numbers whose sum is known; say what is wrong with it, or ``None``."""
    import torch

    count = size // 4
    data = _numbers(context, context.rank, count, repeat)
    _all_reduce(data, group)
    want = torch.zeros_like(data)
    for rank in part.ranks:
        want += _numbers(context, rank, count, repeat)
    if torch.equal(data, want):
        return None
    places = (data != want).nonzero().flatten()
    first = int(places[0])
    values = f"{float(data[first]):g} for {float(want[first]):g}"
    return f"rank {context.rank}: {len(places)} of {count} elements of {size} bytes wrong, first at {first}: {values}"


def _numbers(context: Context, rank: int, count: int, repeat: int) -> torch.Tensor:
    """What a rank contributes: small whole numbers that differ by rank, place and repeat."""
    import torch

    index = torch.arange(count, dtype=torch.int64, device=context.device) % _PERIOD
    return ((index * 31 + rank * 977 + repeat * 131) % _VALUES).to(torch.float32)


def _time_us(context: Context, group: Any, size: int) -> float:
    """Time of one all-reduce of zeros, the median of some batches, in microseconds."""
    import torch

    data = torch.zeros(size // 4, dtype=torch.float32, device=context.device)
    calls, times = _CALLS[context.backend], list[float]()
    for _ in range(_BATCHES + 1):  # the first one warms up
        began = time.perf_counter()
        for _ in range(calls):
            _all_reduce(data, group)
        if context.on_gpu:
            torch.cuda.synchronize(context.device)
        times.append((time.perf_counter() - began) * 1e6 / calls)
    return statistics.median(times[1:])


def _all_reduce(data: torch.Tensor, group: Any) -> None:
    from torch import distributed

    distributed.all_reduce(data, group=group)


def _conclude(report: Report, part: Part, members: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Write the end of a part, and give its numbers."""
    name = WORLD if part.name == WORLD else f"pair_{part.ranks[0]}_{part.ranks[1]}"
    wrong = [problem for member in members for problem in member["wrong"]]
    if wrong:
        report.write(part, "wrong", detail="; ".join(wrong[:3]))
        return {f"{name}_wrong": float(len(wrong))}
    slowest_us = max(member["time_us"] for member in members)
    gbytes_per_s = bandwidth.bus_bandwidth("all_reduce", members[0]["bytes"], slowest_us, len(part.ranks))
    report.write(part, "right", gbytes_per_s=gbytes_per_s)
    return {f"{name}_gbytes_per_s": gbytes_per_s}


if __name__ == "__main__":
    main(build)
