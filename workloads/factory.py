"""The user's own model: a function ``build(context)`` that returns model, batch and step.

Options: ``factory``, ``module:function``; ``sha256``, how that of the module's file must begin.

What the function returns is ``(model, batch, step)`` or ``(model, batch, step, optimizer)``, or any object with
these attributes. ``step(model, batch)`` computes a loss and returns it; the rest of a training step is done here:
gradients set to nothing, backward, and the optimizer's step where there is one. A step that returns ``None`` has
done all that itself. Model and batch are moved to the rank's device, and the model is wrapped in
DistributedDataParallel unless it is one already or is sharded.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from . import first_step
from .failure import WorkloadError
from .harness import main
from .workload import Context, Workload

if TYPE_CHECKING:
    import torch
    from torch import nn

_WANTED = "(model, batch, step) or (model, batch, step, optimizer), or an object with these attributes, is wanted"
_BUCKET_BYTES = 25 << 20  # of DDP (``bucket_cap_mb``)
_NAMES = {"torch.bfloat16": "bf16", "torch.float16": "fp16", "torch.float32": "fp32"}

Factory: TypeAlias = Callable[[Context], Any]


@dataclass(frozen=True)
class Job:
    """What a factory returns.

    Attributes:
        batch: Handed to the step; tensors in tuples, lists and mappings are moved to the device.
        step: ``step(model, batch)``; returns the loss, or ``None`` when backward is done as well.
        optimizer: Of the model's parameters; ``None`` leaves the weights as they are.
    """

    model: nn.Module
    batch: Any
    step: Callable[[Any, Any], torch.Tensor | None]
    optimizer: torch.optim.Optimizer | None = None


def build(context: Context) -> Workload:
    """Build the workload.

    Args:
        context: Of the launch.

    Returns:
        A training step of the user's model.

    Raises:
        WorkloadError: There is no such factory, or it returns something else than is wanted.
    """
    word = str(context.options.get("factory"))
    job = job_of(load(word, str(context.options.get("sha256", "")))(context), word)
    job.model.to(context.device)
    batch, model = moved(job.batch, context.device), wrapped(job.model, context)
    types = {_NAMES.get(str(each.dtype)) for each in job.model.parameters() if each.requires_grad}
    size = sum(each.numel() * each.element_size() for each in job.model.parameters() if each.requires_grad)
    return Workload(
        step=training_step(job, model, batch, word),
        message_bytes=max(4, min(size, _BUCKET_BYTES)),
        dtypes=tuple(sorted(name for name in types if name)) or ("fp32",),
        first_step=lambda: first_step.take(model, lambda: checked_loss(job, model, batch, word)),
        # Whether the step computes in a shorter type by autocast cannot be seen from here.
        computes_in="bf16" if context.on_gpu else "fp32",
    )


def load(word: str, sha256: str = "") -> Factory:
    """Import a factory.

    The working folder comes last on Python's path, so that a user's ``queue.py`` does not stand for the standard
    library's.

    Args:
        word: ``module:function``.
        sha256: How that of the module's file must begin.

    Returns:
        The function.

    Raises:
        WorkloadError: The module has no such function, or has changed.
        ImportError: It cannot be imported.
    """
    name, _, path = word.partition(":")
    if os.getcwd() not in sys.path:  # noqa: PTH109 - as a text
        sys.path.append(os.getcwd())  # noqa: PTH109
    module = importlib.import_module(name)
    if module.__file__ and not hashlib.sha256(Path(module.__file__).read_bytes()).hexdigest().startswith(sha256):
        raise WorkloadError(f"{module.__file__} is not the file with which the study began; start a new study")
    found: Any = module
    for part in path.split("."):
        if not hasattr(found, part):
            raise WorkloadError(f"{name} ({module.__file__}) has no '{path}'")
        found = getattr(found, part)
    if not callable(found):
        raise WorkloadError(f"{word} is no function but {_kind(found)}; build(context) is wanted")
    return found  # type: ignore[no-any-return]


def job_of(returned: Any, word: str) -> Job:
    """Check what a factory returned.

    Args:
        returned: By the factory.
        word: Names the factory.

    Returns:
        The same, with names.

    Raises:
        WorkloadError: It is something else than is wanted.
    """
    from torch import nn

    if isinstance(returned, tuple | list):
        if len(returned) not in (3, 4):
            what = f"{type(returned).__name__} of {len(returned)} ({', '.join(_kind(each) for each in returned)})"
            raise WorkloadError(f"{word} returned a {what}; {_WANTED}")
        job = Job(*returned)
    elif all(hasattr(returned, name) for name in ("model", "batch", "step")):
        job = Job(returned.model, returned.batch, returned.step, getattr(returned, "optimizer", None))
    else:
        raise WorkloadError(f"{word} returned {_kind(returned)}; {_WANTED}")
    if not isinstance(job.model, nn.Module):
        raise WorkloadError(f"{word} returned {_kind(job.model)} as model; a torch.nn.Module is wanted")
    if not callable(job.step):
        raise WorkloadError(f"{word} returned {_kind(job.step)} as step; a function step(model, batch) is wanted")
    if job.optimizer is not None and not callable(getattr(job.optimizer, "step", None)):
        raise WorkloadError(f"{word} returned {_kind(job.optimizer)} as optimizer; an object with step() is wanted")
    return job


def wrapped(model: nn.Module, context: Context) -> nn.Module:
    """Wrap a model in DistributedDataParallel unless it speaks to the other ranks already.

    Args:
        model: On its device.
        context: Of the launch.

    Returns:
        The model that the step is given.
    """
    from torch import nn

    speaks = {"DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule"}
    if any(kind.__name__ in speaks for module in model.modules() for kind in type(module).__mro__):
        return model
    if not any(each.requires_grad for each in model.parameters()):
        raise WorkloadError(
            "the model has no parameter that is trained, so its ranks have nothing to say to each other"
        )
    return nn.parallel.DistributedDataParallel(model, device_ids=[context.device] if context.on_gpu else None)


def moved(batch: Any, device: torch.device) -> Any:
    """Move the tensors of a batch to a device.

    Args:
        batch: A tensor; tuples, lists and mappings of such; anything else stays as it is.
        device: Where to.

    Returns:
        A batch of the same shape.
    """
    import torch

    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    if isinstance(batch, Mapping):
        return {key: moved(each, device) for key, each in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(moved(each, device) for each in batch))
    if isinstance(batch, tuple | list):
        return type(batch)(moved(each, device) for each in batch)
    return batch


def training_step(job: Job, model: nn.Module, batch: Any, word: str) -> Callable[[], None]:
    """Make the step that is timed.

    Args:
        job: What the factory returned.
        model: Wrapped.
        batch: On the device.
        word: Names the factory.

    Returns:
        The step; raises ``WorkloadError`` where the user's step returns something that has no gradient.
    """

    def step() -> None:
        (job.optimizer or model).zero_grad()
        loss = checked_loss(job, model, batch, word)
        if loss is None:
            return
        loss.backward()
        if job.optimizer is not None:
            job.optimizer.step()

    return step


def checked_loss(job: Job, model: nn.Module, batch: Any, word: str) -> Any:
    """Call the user's step.

    Args:
        job: What the factory returned.
        model: Wrapped.
        batch: On the device.
        word: Names the factory.

    Returns:
        The loss, or ``None``.

    Raises:
        WorkloadError: It returned something that has no gradient.
    """
    import torch

    loss = job.step(model, batch)
    if loss is None or (isinstance(loss, torch.Tensor) and loss.numel() == 1 and loss.requires_grad):
        return loss
    raise WorkloadError(
        f"step of {word} returned {_kind(loss)}; a loss of one element with a gradient is wanted, or None when it has"
        " called backward() itself"
    )


def _kind(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return type(value).__name__ if shape is None else f"{type(value).__name__} of shape {tuple(shape)}"


if __name__ == "__main__":
    main(build)
