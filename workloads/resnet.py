"""ResNet-50 under DDP with synthetic images: the step of a training job that many teams know.

Options: ``batch_size`` per rank (256 on a GPU, 1 on the CPU), ``image_size`` in pixels (224 on a GPU, 40 on the CPU).
"""

from __future__ import annotations

from typing import Any

from . import first_step
from .harness import main
from .workload import Context, Numbers, Workload

BUCKET_BYTES = 25 << 20  # of DDP (``bucket_cap_mb``): the largest message of a step

_ON_GPU = {"batch_size": 256, "image_size": 224}
# The smallest step: 40 pixels leave 2x2 to the last stage, so that its batch normalisation has something to
# average over even with a single image.
_ON_CPU = {"batch_size": 1, "image_size": 40}


def build(context: Context) -> Workload:
    """Build the workload.

    Args:
        context: Of the launch.

    Returns:
        A step of forward, backward with DDP's all-reduces, and SGD; bf16 autocast and channels_last on a GPU.
    """
    import torch
    from torch import nn

    from .resnet50 import ResNet50

    context.only("batch_size", "image_size")
    default = _ON_GPU if context.on_gpu else _ON_CPU
    batch = context.positive("batch_size", default["batch_size"])
    size = context.positive("image_size", default["image_size"])
    layout = torch.channels_last if context.on_gpu else torch.contiguous_format
    if context.on_gpu:
        torch.backends.cudnn.benchmark = True  # one input shape: the search is over before the warm-up is
    network: Any = ResNet50()
    network.to(device=context.device, memory_format=layout)
    devices = [context.device] if context.on_gpu else None
    # Torch's default on a GPU, as most jobs have it; on the CPU copies into the buckets cost a tenth of the step.
    model = nn.parallel.DistributedDataParallel(network, device_ids=devices, gradient_as_bucket_view=not context.on_gpu)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4, fused=True)
    generator = torch.Generator().manual_seed(context.seed + context.rank)
    images = torch.randn(batch, 3, size, size, generator=generator).to(device=context.device, memory_format=layout)
    labels = torch.randint(1000, (batch,), generator=generator).to(context.device)

    def loss() -> Any:
        with torch.autocast(context.device.type, torch.bfloat16, enabled=context.on_gpu):
            return nn.functional.cross_entropy(model(images), labels)

    def step() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    def metrics(numbers: Numbers) -> dict[str, float]:
        return {"images_per_s": batch * numbers.world_size / numbers.step_us * 1e6}

    return Workload(
        step=step,
        message_bytes=BUCKET_BYTES,
        dtypes=("fp32",),
        metrics=metrics,
        first_step=lambda: first_step.take(model, loss),
        computes_in="bf16" if context.on_gpu else "fp32",
    )


if __name__ == "__main__":
    main(build)
