"""A step of one all-reduce; before it each rank works for ``work_s``, and the rank ``culprit`` half as long again."""

import time

from nccltune.workloads.harness import main
from nccltune.workloads.workload import Context, Workload


def build(context: Context) -> Workload:
    import torch
    from torch import distributed

    gradients = torch.ones(1 << 14)
    work_s = context.options["work_s"] * (1.5 if context.rank == context.options["culprit"] else 1.0)

    def step() -> None:
        time.sleep(work_s)
        distributed.all_reduce(gradients)

    return Workload(step=step, message_bytes=gradients.nbytes, dtypes=("fp32",))


if __name__ == "__main__":
    main(build)
