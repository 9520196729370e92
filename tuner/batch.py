"""The batch size of a study: chosen by its first launch if it is ``auto``, looked for if the given one does not fit.

Both are one launch in which growing batches are tried (``workloads/climb.py``). What came of it stands in the ledger,
so that a study that goes on launches nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from .errors import StudyError
from .plan import Plan
from .quantities import format_percent
from .records import DEFAULT, BatchChoice, Failure, Measurement
from .study import host_bound
from .study.campaign import Campaign
from .study.ledger import Ledger

_NO_MEMORY = "cuda_oom"


def settle(plan: Plan, ledger: Ledger, campaign: Campaign, say: Callable[[str], None]) -> Plan:
    """Choose the batch size, if that is to be done and was not done yet.

    Args:
        plan: The plan as prepared.
        ledger: Of the study; gets the choice.
        campaign: Makes the launch.
        say: Told what was chosen.

    Returns:
        The plan with its batch size.

    Raises:
        StudyError: The default fails even with the smallest batch.
    """
    if not plan.auto_batch:
        return plan
    if ledger.batch is None:
        ledger.append(_found(ledger) or _choice(campaign))
    settled = plan.settled(ledger.batch)
    if settled.batch is not None:
        say(host_bound.chosen(settled.batch))
    return settled


def too_large(plan: Plan, ledger: Ledger, campaign: Campaign) -> StudyError | None:
    """Say which batch size fits, after the default ran out of memory.

    Args:
        plan: The settled plan.
        ledger: Of the study, whose last launch failed.
        campaign: Makes the launch that looks for a smaller one.

    Returns:
        The error to be raised in the place of the default's; ``None`` where the memory or the batch is not the matter.
    """
    outcome = ledger.launches[-1].outcome if ledger.launches else None
    given = plan.workload_options.get("batch_size")
    if not isinstance(outcome, Failure) or outcome.name != _NO_MEMORY or not plan.workload.first_batch:
        return None
    if not isinstance(given, int) or given < 2:
        return None
    found = None if plan.auto_batch else _found(ledger) or _tried(campaign)
    what = f"batch size {given} a rank does not fit into the GPU's memory"
    if found is None:
        return StudyError(what, "give a smaller --batch-size")
    share = found.chosen.memory_share
    taken = "" if share is None else f", with {format_percent(share)} of the memory"
    return StudyError(
        f"{what}; {found.batch_size} did{taken}",
        f"give --batch-size {found.batch_size} or auto",
    )


def _found(ledger: Ledger) -> BatchChoice | None:
    """What a launch came to whose choice is not written down yet, or is none of the study's."""
    for launch in ledger.launches:
        if launch.purpose == "batch" and isinstance(launch.outcome, Measurement) and launch.outcome.batches:
            return launch.outcome.batches
    return None


def _choice(campaign: Campaign) -> BatchChoice:
    outcome = campaign.default("batch").outcome
    if not isinstance(outcome, Measurement) or outcome.batches is None:
        raise StudyError("the launch that looks for a batch size did not say which", "give --batch-size N")
    return outcome.batches


def _tried(campaign: Campaign) -> BatchChoice | None:
    outcome = campaign.launch(DEFAULT, "batch").outcome
    return outcome.batches if isinstance(outcome, Measurement) else None
