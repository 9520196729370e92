"""A GPT under DistributedDataParallel with AdamW, on random tokens: all-reduces that backward hides in part.

Options: ``batch_size`` (sequences a rank; 16 on a GPU, 2 on the CPU), ``sequence`` (tokens; 1024, 32), and
the model's ``layers``, ``width``, ``heads``, ``vocabulary`` (24, 1024, 16, 50304; tiny on the CPU).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import first_step
from .failure import WorkloadError
from .harness import main
from .workload import Context, Numbers, Workload

if TYPE_CHECKING:
    import torch

    from .gpt import Gpt

BUCKET_BYTES = 25 << 20  # of DDP (``bucket_cap_mb``): the largest message of a step

_ON_GPU = {"batch_size": 16, "sequence": 1024, "layers": 24, "width": 1024, "heads": 16, "vocabulary": 50_304}
_ON_CPU = {"batch_size": 2, "sequence": 32, "layers": 2, "width": 64, "heads": 2, "vocabulary": 512}


def build(context: Context) -> Workload:
    """Build the workload.

    Args:
        context: Of the launch.

    Returns:
        A step of forward, backward with DDP's all-reduces, and AdamW; bf16 autocast on a GPU.
    """
    import torch
    from torch import nn

    chosen = options(context)
    devices = [context.device] if context.on_gpu else None
    model = nn.parallel.DistributedDataParallel(
        network(context, chosen), device_ids=devices, gradient_as_bucket_view=not context.on_gpu
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    loss = forward(context, chosen, model, autocast=context.on_gpu)
    return Workload(
        step=training_step(optimizer, loss),
        message_bytes=BUCKET_BYTES,
        dtypes=("fp32",),
        metrics=metrics(chosen),
        first_step=lambda: first_step.take(model, loss),
        computes_in="bf16" if context.on_gpu else "fp32",
    )


def options(context: Context) -> dict[str, int]:
    """Read the options of the model and its batch.

    Args:
        context: Of the launch.

    Returns:
        Every option with its value.

    Raises:
        WorkloadError: One is unknown or cannot be used.
    """
    defaults = _ON_GPU if context.on_gpu else _ON_CPU
    context.only(*defaults)
    chosen = {name: context.positive(name, default) for name, default in defaults.items()}
    if chosen["width"] % chosen["heads"]:
        raise WorkloadError(f"option 'width': {chosen['width']} is no multiple of {chosen['heads']} heads")
    return chosen


def network(context: Context, chosen: dict[str, int]) -> Gpt:
    """Make the model, equal on all ranks, on the device.

    Args:
        context: Of the launch.
        chosen: From ``options``.

    Returns:
        The model, not yet wrapped.
    """
    import torch

    from .gpt import Gpt, Sizes

    torch.manual_seed(context.seed)
    sizes = Sizes(**{name: value for name, value in chosen.items() if name != "batch_size"})
    with context.device:
        return Gpt(sizes)


def forward(context: Context, chosen: dict[str, int], model: Any, *, autocast: bool) -> Callable[[], Any]:
    """Make the forward part of a step, always on the same random tokens.

    Args:
        context: Of the launch.
        chosen: From ``options``.
        model: The wrapped model.
        autocast: Whether the model computes in bf16 by autocast.

    Returns:
        Gives the loss.
    """
    import torch

    generator = torch.Generator().manual_seed(context.seed + context.rank)
    shape = (chosen["batch_size"], chosen["sequence"] + 1)
    text = torch.randint(chosen["vocabulary"], shape, generator=generator).to(context.device)
    tokens, targets = text[:, :-1].contiguous(), text[:, 1:].contiguous()

    def loss() -> Any:
        with torch.autocast(context.device.type, torch.bfloat16, enabled=autocast):
            return model(tokens, targets)

    return loss


def training_step(optimizer: torch.optim.Optimizer, loss: Callable[[], Any]) -> Callable[[], None]:
    """Make one step: forward, backward, optimizer.

    Args:
        optimizer: Of the model's parameters.
        loss: Forward.

    Returns:
        The step.
    """

    def step() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return step


def metrics(chosen: dict[str, int]) -> Callable[[Numbers], dict[str, float]]:
    """Make the function that derives the throughput.

    Args:
        chosen: From ``options``.

    Returns:
        Gives ``tokens_per_s`` of all ranks.
    """
    tokens = chosen["batch_size"] * chosen["sequence"]
    return lambda numbers: {"tokens_per_s": tokens * numbers.world_size / numbers.step_us * 1e6}


if __name__ == "__main__":
    main(build)
