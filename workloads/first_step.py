"""What the first step of a model comes to: the loss, and a few numbers that stand for all gradients.

Model and data of a seed are the same in every launch, and so must these be, whatever the settings, up to rounding:
a setting under which they differ from the default's has brought wrong data. The tuner compares them
(``nccltune.trial.model_check``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .failure import WrongData

if TYPE_CHECKING:
    import torch
    from torch import nn

_PERIOD = 8191  # prime, while chunks are powers of two: gradients in the wrong place change the sums
_SUMS = 8
TOLERANCE = {"fp32": 1e-3, "bf16": 0.05, "fp16": 0.05}
"""By the type in which the model computes, as a share of the loss and of the gradients' norm: other algorithms of
cuDNN and another order of the sums round differently. Where one of a hundred gradients is wrong, it is about 0.1."""


def take(model: nn.Module, loss: Callable[[], Any]) -> dict[str, Any]:
    """Compute loss and gradients once; the weights stay as they are.

    Args:
        model: Its parameters' gradients are emptied before and after.
        loss: Forward; what it returns has ``backward``, or is ``None`` when backward was done.

    Returns:
        ``loss``, ``gradient`` and ``norm`` of this rank; without ``loss`` where there was none. ``gradient`` are
        sums of every eighth gradient with random signs: the distance between those of two launches is, on average,
        the distance between all their gradients.

    Raises:
        WrongData: One is no finite number.
    """
    model.zero_grad()
    value = loss()
    if value is not None:
        value.backward()
    sums, squares = [0.0] * _SUMS, 0.0
    for number, parameter in enumerate(model.parameters()):
        if parameter.grad is not None:
            gradient = _local(parameter.grad).detach().flatten().float()
            sums = [sum_ + more for sum_, more in zip(sums, _sums(gradient, number), strict=True)]
            squares += float(gradient.square().sum(dtype=_double()))
    model.zero_grad()
    numbers = {"norm": math.sqrt(squares)}
    if value is not None:
        numbers["loss"] = float(_local(value.detach()))
    for name, each in numbers.items():
        if not math.isfinite(each):
            raise WrongData(f"the {name} of the model's first step is {each}")
    return {**numbers, "gradient": sums}


def _sums(gradient: torch.Tensor, number: int) -> list[float]:
    signed = gradient * _signs(len(gradient), number, gradient)
    whole = len(signed) // _SUMS * _SUMS
    sums = signed[:whole].view(-1, _SUMS).sum(0, dtype=_double())
    sums[0] += signed[whole:].sum()
    return [float(each) for each in sums.tolist()]


def _signs(count: int, number: int, like: torch.Tensor) -> torch.Tensor:
    import torch

    random = torch.randint(2, (_PERIOD,), generator=torch.Generator().manual_seed(number), dtype=torch.float32)
    tile = (random * 2 - 1).to(like.device)
    return tile.repeat(-(-count // _PERIOD))[:count]


def _local(tensor: Any) -> torch.Tensor:
    """A sharded tensor's own share; any other tensor as it is."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor  # type: ignore[no-any-return]


def _double() -> torch.dtype:
    import torch

    return torch.float64
