"""Reduce-scatter: one size or a stated mix of sizes; a size is what each rank puts in, as in nccl-tests.

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
        A step that adds buffers over the ranks and leaves each rank its share.
    """
    import torch

    from . import checks

    def prepare(elements: int, dtype: torch.dtype) -> Callable[[], object]:
        share = torch.zeros(elements // context.world_size, dtype=dtype, device=context.device)
        whole = torch.zeros(len(share) * context.world_size, dtype=dtype, device=context.device)
        with checks.naming_what_is_missing("reduce_scatter", str(dtype).removeprefix("torch.")):
            checks.reduce_scatter(share, whole)
        return lambda: checks.reduce_scatter(share, whole)

    return synthetic(context, "reduce_scatter", prepare, shares=context.world_size)


if __name__ == "__main__":
    main(build)
