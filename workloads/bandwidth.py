"""Bandwidths of collectives as users of nccl-tests know them.

The bus bandwidth is the algorithm bandwidth times a factor that makes it comparable with the speed of the
links, whatever the number of ranks (nccl-tests, ``doc/PERFORMANCE.md``).
"""

from __future__ import annotations

from collections.abc import Callable


def all_reduce_factor(world_size: int) -> float:
    """Give the factor of an all-reduce: every byte crosses the links twice, less the ranks' own share.

    Args:
        world_size: Number of ranks.

    Returns:
        ``2(n-1)/n``.
    """
    return 2 * (world_size - 1) / world_size


def gather_factor(world_size: int) -> float:
    """Give the factor of an all-gather or reduce-scatter, whose size counts the data of all ranks.

    Args:
        world_size: Number of ranks.

    Returns:
        ``(n-1)/n``.
    """
    return (world_size - 1) / world_size


FACTORS: dict[str, Callable[[int], float]] = {
    "all_reduce": all_reduce_factor,
    "all_gather": gather_factor,
    "reduce_scatter": gather_factor,
}


def algorithm_bandwidth(size_bytes: float, time_us: float) -> float:
    """Give the algorithm bandwidth.

    Args:
        size_bytes: Size of the message.
        time_us: Time of one call.

    Returns:
        1e9 bytes per second.
    """
    return size_bytes / time_us / 1e3


def bus_bandwidth(collective: str, size_bytes: float, time_us: float, world_size: int) -> float:
    """Give the bus bandwidth.

    Args:
        collective: A key of ``FACTORS``.
        size_bytes: Size of the message.
        time_us: Time of one call.
        world_size: Number of ranks.

    Returns:
        1e9 bytes per second.
    """
    return algorithm_bandwidth(size_bytes, time_us) * FACTORS[collective](world_size)
