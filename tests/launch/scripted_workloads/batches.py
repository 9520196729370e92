"""A workload whose last rank runs out of memory at some batch size, and which notices a size that was not freed."""

from __future__ import annotations

import weakref
from typing import Any

from nccltune.workloads.harness import main
from nccltune.workloads.workload import Context, Workload

_EARLIER: list[weakref.ref[Any]] = []


def build(context: Context) -> Workload:
    import torch
    from torch import nn

    if any(model() is not None for model in _EARLIER):
        raise KeyError("a model of an earlier size is still there")
    size = context.positive("batch_size", 1)
    model = nn.parallel.DistributedDataParallel(nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.ones(size, 8)
    _EARLIER.append(weakref.ref(model))

    def step() -> None:
        optimizer.zero_grad()
        loss = model(data).square().mean()
        if context.rank == context.world_size - 1 and size >= context.options["too_large"]:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        loss.backward()  # the others wait here for the rank that ran out of memory
        optimizer.step()

    return Workload(step=step, message_bytes=1 << 10)


if __name__ == "__main__":
    main(build)
