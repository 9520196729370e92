"""The GPT of ``transformer`` under FSDP2, sharded by block: all-gathers of parameters, reduce-scatters of gradients.

Options as of ``transformer``. On a GPU parameters travel in bf16 and gradients in fp32, as large models are
trained; on the CPU both in fp32.
"""

from __future__ import annotations

from typing import Any

from . import first_step, transformer
from .failure import Unsupported
from .harness import main
from .workload import Context, Workload

_BYTES = {"bf16": 2, "fp32": 4}


def build(context: Context) -> Workload:
    """Build the workload.

    Args:
        context: Of the launch.

    Returns:
        A step of forward, backward and AdamW on sharded parameters.

    Raises:
        Unsupported: This torch has no FSDP2, or its backend not the collectives.
    """
    import torch
    from torch.distributed import device_mesh

    shard, policy = _fsdp()
    chosen = transformer.options(context)
    parameters = "bf16" if context.on_gpu else "fp32"
    require(context, parameters)
    model = transformer.network(context, chosen)
    mesh = device_mesh.init_device_mesh(context.device.type, (context.world_size,))
    how: dict[str, Any] = {"mesh": mesh}
    if context.on_gpu:
        how["mp_policy"] = policy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    largest = sum(each.numel() for each in [*model.tokens.parameters(), *model.positions.parameters()])
    for block in model.blocks:
        largest = max(largest, sum(each.numel() for each in block.parameters()))
        shard(block, **how)
    shard(model, **how)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    loss = transformer.forward(context, chosen, model, autocast=False)
    return Workload(
        step=transformer.training_step(optimizer, loss),
        message_bytes=largest * _BYTES["fp32"],
        dtypes=tuple(dict.fromkeys((parameters, "fp32"))),
        metrics=transformer.metrics(chosen),
        first_step=lambda: first_step.take(model, loss),
        computes_in=parameters,
    )


def require(context: Context, parameters: str) -> None:
    """Call both collectives of FSDP once, so that a backend without them is named before anything is built.

    Args:
        context: Of the launch.
        parameters: Short name of the type in which parameters travel.

    Raises:
        Unsupported: The backend lacks one.
        UnsupportedDtype: The backend refuses the type.
    """
    import torch

    from . import checks

    share = torch.zeros(4, dtype=checks.torch_dtype(parameters), device=context.device)
    with checks.naming_what_is_missing("all_gather", parameters):
        checks.all_gather(share.repeat(context.world_size), share)
    share = torch.zeros(4, device=context.device)
    with checks.naming_what_is_missing("reduce_scatter", "fp32"):
        checks.reduce_scatter(share, share.repeat(context.world_size))


def _fsdp() -> tuple[Any, Any]:
    """Give ``fully_shard`` and ``MixedPrecisionPolicy``; public here since torch 2.6."""
    import torch

    try:
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    except ImportError as error:
        raise Unsupported(f"torch {torch.__version__} has no FSDP2 (torch.distributed.fsdp.fully_shard)") from error
    return fully_shard, MixedPrecisionPolicy


if __name__ == "__main__":
    main(build)
