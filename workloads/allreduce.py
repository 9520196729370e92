"""All-reduce: one size or a stated mix of sizes.

Options: ``sizes``, a list of ``[bytes, calls a step]``; ``dtype``, one of ``bf16``, ``fp16``, ``fp32``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .collective import synthetic
from .harness import main
from .workload import Context, Workload

if TYPE_CHECKING:
    import torch


def build(context: Context) -> Workload:
    """Build the workload.

    Args:
        context: Of the launch.

    Returns:
        A step that sums buffers over all ranks, in place.
    """
    import torch
    from torch import distributed

    def prepare(elements: int, dtype: torch.dtype) -> Callable[[], object]:
        # Zeros stay zeros however often they are summed; no number grows out of the type's range.
        buffer = torch.zeros(elements, dtype=dtype, device=context.device)
        return lambda: distributed.all_reduce(buffer)

    return synthetic(context, "all_reduce", prepare)


if __name__ == "__main__":
    main(build)
