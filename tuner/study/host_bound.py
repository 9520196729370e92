"""Is the step host-bound? Then the GPU waits for the host, and no NCCL setting can make the step faster."""

from __future__ import annotations

from collections.abc import Iterable

from ..quantities import format_percent
from ..records import BatchChoice, Launch, Measurement

HOST_BOUND_SHARE = 0.05
"""Idle share of the default's step above which tuning is refused. While a GPU is idle the host hands out its next work:
a collective that ends sooner only makes the GPU idle longer. A step that idles more than this hides several times the
smallest gain that is looked for (1 %), and the host's time, which no setting changes, is noisier than the GPU's."""
BUSY_SHARE = 0.03
"""Up to here nothing is said, and a batch size is large enough; a little below the limit, so that the batch that was
chosen in one launch does not stand above it in the next."""


def idle_share(launches: Iterable[Launch]) -> float | None:
    """Return the share of the default's step in which even the busiest GPU was idle, from the first launch that tells.

    Args:
        launches: Of the study, in order.

    Returns:
        ``None`` where it was not measured: on a CPU, or of a script without a profiled window.
    """
    for launch in launches:
        outcome = launch.outcome
        if launch.purpose != "noise-floor" or not isinstance(outcome, Measurement) or outcome.communication is None:
            continue
        if outcome.communication.idle_share is not None:
            return outcome.communication.idle_share
    return None


def is_host_bound(share: float | None) -> bool:
    """Whether an idle share is too large for a study; never where none was measured."""
    return share is not None and share > HOST_BOUND_SHARE


def what(share: float | None, batch: BatchChoice | None) -> str:
    """Say that a step is host-bound, or close to it, and how large the idle share is.

    Args:
        share: Idle share of the default's step.
        batch: The batch size that was chosen, where one was.

    Returns:
        One line without a full stop; empty up to ``BUSY_SHARE``, and where nothing was measured.
    """
    if share is None or share <= BUSY_SHARE:
        return ""
    head = "the step is host-bound" if is_host_bound(share) else "the step is close to host-bound"
    text = f"{head}: even the busiest GPU was idle in {format_percent(share)} of it"
    if batch is not None:
        text += f", with batch size {batch.batch_size} a rank{_memory(batch)}"
    return f"{text}; above {format_percent(HOST_BOUND_SHARE)} no NCCL setting can be judged by it"


def advice(*, has_batch: bool) -> str:
    """Say what helps a host-bound step.

    Args:
        has_batch: Whether there is an option for the batch size.
    """
    larger = "raise --batch-size" if has_batch else "raise the batch size"
    return (
        f"{larger}, use torch.compile or CUDA graphs, make fewer small kernels, or load data sooner; "
        "--force tunes it all the same"
    )


def chosen(batch: BatchChoice) -> str:
    """Say which batch size was chosen, and why.

    Args:
        batch: The choice.

    Returns:
        For instance ``batch size 256 a rank, chosen: the GPU was idle in 2.1 % of the step, with 41 % of its memory``.
    """
    found = batch.chosen
    idle = "how long the GPU was idle was not measured"
    if found.idle_share is not None:
        idle = f"the GPU was idle in {format_percent(found.idle_share)} of the step"
    memory = "" if found.memory_share is None else f", with {format_percent(found.memory_share)} of its memory"
    return f"batch size {batch.batch_size} a rank, chosen: {idle}{memory}{_END[batch.reason]}"


def conditions(share: float | None, batch: BatchChoice | None) -> dict[str, str]:
    """Say under which batch size and idle share a profile was measured, as far as known.

    Args:
        share: Idle share of the default's step.
        batch: The batch size that was chosen, where one was.
    """
    found = {} if batch is None else {"batch size": chosen(batch).removeprefix("batch size ")}
    if share is not None:
        bound = ", host-bound: tuned by --force" if is_host_bound(share) else ""
        found["GPU idle"] = f"{format_percent(share)} of the default's step{bound}"
    return found


_END = {
    "busy": "",
    "memory": "; a larger one would not fit",
    "out of memory": "; a larger one did not fit",
    "largest": "",
    "not measured": "",
}


def _memory(batch: BatchChoice) -> str:
    if batch.reason in ("memory", "out of memory"):
        share = batch.chosen.memory_share
        taken = "" if share is None else f" ({format_percent(share)} of the memory)"
        return f"{taken}, and a larger one does not fit"
    return ""
