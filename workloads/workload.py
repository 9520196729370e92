"""What a workload is made of, and what it is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from .failure import WorkloadError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Numbers:
    """What was measured, for a workload that derives further numbers from it.

    Attributes:
        step_us: Median step time.
        call_us: Label of a part of the step to the median time of one call of it.
        world_size: Number of ranks.
    """

    step_us: float
    call_us: Mapping[str, float]
    world_size: int


@dataclass(frozen=True)
class Workload:
    """What a ``build`` function returns.

    Attributes:
        step: One step: enqueues the work (on a GPU without waiting for it) and returns.
        message_bytes: Largest message of its collectives; the known-answer checks go up to it.
        dtypes: Types of the data it communicates: ``bf16``, ``fp16``, ``fp32``.
        calls: Label of a part of the step to the number of calls in it. With more than one part the step
            calls ``context.mark(label)`` after each.
        metrics: Further numbers of the workload, the unit in the name.
        first_step: Of a model: ``first_step.take`` of its fresh weights; called once, before the first step.
        computes_in: Short name of the type in which the model computes.
    """

    step: Callable[[], None]
    message_bytes: int = 1 << 20
    dtypes: tuple[str, ...] = ("fp32",)
    calls: Mapping[str, int] = field(default_factory=dict)
    metrics: Callable[[Numbers], dict[str, float]] | None = None
    first_step: Callable[[], dict[str, Any]] | None = None
    computes_in: str = "fp32"


@dataclass
class Context:
    """What a ``build`` function is given; the process group is up, the device is selected.

    Attributes:
        device: Where tensors belong.
        options: The workload's options, as in the request.
        seed: Of the model and the data; equal on all ranks.
    """

    rank: int
    local_rank: int
    world_size: int
    backend: str
    device: torch.device
    options: Mapping[str, Any]
    seed: int
    _mark: Callable[[str], None] | None = None

    @property
    def on_gpu(self) -> bool:
        """Whether the device is a GPU."""
        return self.device.type == "cuda"

    def mark(self, label: str) -> None:
        """End a part of the step, so that it gets its own time.

        Args:
            label: A key of ``Workload.calls``.
        """
        if self._mark is not None:
            self._mark(label)

    def positive(self, name: str, default: int) -> int:
        """Read a whole, positive option.

        Args:
            name: Of the option.
            default: Its value when it is absent.

        Returns:
            The value.

        Raises:
            WorkloadError: It is something else.
        """
        value = self.options.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            raise WorkloadError(f"option '{name}': a positive whole number is needed, not {value!r}")
        return value

    def only(self, *known: str) -> None:
        """Refuse options that the workload does not have.

        Args:
            known: The names that it has.

        Raises:
            WorkloadError: There is another one.
        """
        for name in self.options:
            if name not in known:
                raise WorkloadError(f"option '{name}' is unknown; known: {', '.join(sorted(known)) or 'none'}")


Build: TypeAlias = Callable[[Context], Workload]
