"""A workload with one planted fault, chosen by the option ``fault``; started by path as a user's own would be."""

from __future__ import annotations

import time

from nccltune.workloads.harness import main
from nccltune.workloads.workload import Context, Workload


def build(context: Context) -> Workload:
    import torch
    from torch import distributed

    fault, culprit = context.options.get("fault"), context.rank == context.world_size - 1
    buffer = torch.zeros(256)
    honest = distributed.all_reduce
    if fault == "wrong sum" and culprit:

        def lying(tensor: torch.Tensor) -> None:
            honest(tensor)
            if len(tensor) > 1000:
                tensor[777] += 1

        distributed.all_reduce = lying  # type: ignore[assignment]

    def step() -> None:
        if fault == "raises" and culprit:
            raise KeyError("layer\nnot found")
        if fault == "sleeps":
            time.sleep(600)
        honest(buffer)
        if fault == "one more" and culprit:
            honest(buffer)

    return Workload(step=step, message_bytes=1 << 16, dtypes=("fp32", "bf16"))


if __name__ == "__main__":
    main(build)
