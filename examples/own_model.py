"""A model of one's own, tuned with ``nccltune --workload own_model:build``.

Run that in the folder of this file, or with the folder in ``PYTHONPATH``.
"""

import torch
from torch import nn


def build(context):
    """Return model, batch, step and optimizer; ``context`` knows the rank and its device."""
    torch.manual_seed(context.seed)
    model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(32, 256), torch.randint(10, (32,))

    def step(model, batch):
        inputs, labels = batch
        return nn.functional.cross_entropy(model(inputs), labels)

    return model, batch, step, optimizer
