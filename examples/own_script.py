"""A training script of one's own, tuned with ``nccltune --workload own_script.py -- --width 1024``.

It runs as ever without nccltune: ``torchrun --nproc-per-node 2 own_script.py``.
"""

import argparse
import os

import torch
from torch import distributed, nn

from nccltune.workloads import timed_step  # the first of the two lines


def main():
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--steps", type=int, default=1000)
    options = parser.parse_args()

    on_gpu = torch.cuda.is_available()
    distributed.init_process_group("nccl" if on_gpu else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    model = nn.Sequential(nn.Linear(256, options.width), nn.GELU(), nn.Linear(options.width, 10)).to(device)
    model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    for _ in range(options.steps):
        inputs = torch.randn(32, 256, device=device)
        labels = torch.randint(10, (32,), device=device)
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        timed_step()  # the second

    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
