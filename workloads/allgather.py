"""All-gather: one size or a stated mix of sizes; a size is what all ranks together send, as in nccl-tests.

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
        A step in which every rank gets the shares of all.
    """
    import torch

    from . import checks

    def prepare(elements: int, dtype: torch.dtype) -> Callable[[], object]:
        share = torch.zeros(elements // context.world_size, dtype=dtype, device=context.device)
        whole = torch.zeros(len(share) * context.world_size, dtype=dtype, device=context.device)
        with checks.naming_what_is_missing("all_gather", str(dtype).removeprefix("torch.")):
            checks.all_gather(whole, share)
        return lambda: checks.all_gather(whole, share)

    return synthetic(context, "all_gather", prepare, shares=context.world_size)


if __name__ == "__main__":
    main(build)
