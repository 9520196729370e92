"""What the synthetic collectives share: sizes, calls a step, data type, bandwidths."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from . import bandwidth
from .failure import WorkloadError
from .workload import Context, Numbers, Workload

if TYPE_CHECKING:
    import torch

DEFAULT_SIZES = [[1 << 20, 10]]


def mix(options: Mapping[str, Any]) -> dict[int, int]:
    """Read the option ``sizes``.

    Args:
        options: The workload's options; ``sizes`` is a list of ``[bytes, calls a step]``.

    Returns:
        Message bytes to calls a step.

    Raises:
        WorkloadError: The option is something else.
    """
    sizes = options.get("sizes", DEFAULT_SIZES)
    found: dict[int, int] = {}
    for pair in sizes if isinstance(sizes, list) and sizes else [sizes]:
        right = isinstance(pair, list) and len(pair) == 2 and all(type(item) is int and item > 0 for item in pair)
        if not right or pair[0] in found:
            raise WorkloadError(f"option 'sizes': a list of different [bytes, calls] is needed, not {sizes!r}")
        found[pair[0]] = pair[1]
    return found


def synthetic(
    context: Context,
    collective: str,
    prepare: Callable[[int, torch.dtype], Callable[[], object]],
    *,
    shares: int = 1,
) -> Workload:
    """Build a workload that calls one collective, each size as often as the mix says.

    Args:
        context: Of the launch.
        collective: A key of ``bandwidth.FACTORS``.
        prepare: From a number of elements and a type to a function that calls the collective once.
        shares: Equal parts into which each message is cut; what is left over is not sent.

    Returns:
        The workload.

    Raises:
        WorkloadError: An option is wrong.
    """
    from .checks import torch_dtype

    context.only("sizes", "dtype")
    sizes, name = mix(context.options), str(context.options.get("dtype", "bf16" if context.on_gpu else "fp32"))
    dtype = torch_dtype(name)
    for size in sizes:
        if size % dtype.itemsize:
            raise WorkloadError(f"option 'sizes': {size} bytes are no whole number of {name} elements")
        if size < dtype.itemsize * shares:
            raise WorkloadError(f"option 'sizes': {size} bytes hold no {name} element for each of {shares} ranks")
    calls = [(str(size), prepare(size // dtype.itemsize, dtype), count) for size, count in sizes.items()]
    # Only whole shares are sent, so of odd sizes or numbers of ranks some bytes less than asked for.
    sent_bytes = {str(size): size - size % (dtype.itemsize * shares) for size in sizes}
    mark = context.mark if len(calls) > 1 else None

    def step() -> None:
        for label, call, count in calls:
            for _ in range(count):
                call()
            if mark is not None:
                mark(label)

    return Workload(
        step=step,
        message_bytes=max(sizes),
        dtypes=(name,),
        calls={str(size): count for size, count in sizes.items()},
        metrics=lambda numbers: bandwidths(collective, numbers, sent_bytes),
    )


def bandwidths(collective: str, numbers: Numbers, sent_bytes: Mapping[str, int] | None = None) -> dict[str, float]:
    """Derive the bandwidths; with several sizes each name ends in its size.

    Args:
        collective: A key of ``bandwidth.FACTORS``.
        numbers: What was measured.
        sent_bytes: Label to the bytes that were really sent, where that is not the label.

    Returns:
        ``algorithm_bandwidth_gbytes_per_s`` and ``bus_bandwidth_gbytes_per_s``.
    """
    found: dict[str, float] = {}
    for label, time_us in numbers.call_us.items():
        ending = f"_{label}" if len(numbers.call_us) > 1 else ""
        size = sent_bytes[label] if sent_bytes else int(label)
        found[f"algorithm_bandwidth_gbytes_per_s{ending}"] = bandwidth.algorithm_bandwidth(size, time_us)
        found[f"bus_bandwidth_gbytes_per_s{ending}"] = bandwidth.bus_bandwidth(
            collective, size, time_us, numbers.world_size
        )
    return found
