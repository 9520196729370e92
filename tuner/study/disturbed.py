"""How many launches were disturbed, and by what. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ..records import Disturbance, Disturbed, Launch, Purpose

_DECIDING: frozenset[Purpose] = frozenset({"confirm", "validate"})


def count(launches: Sequence[Launch]) -> Disturbed:
    """Count the disturbed launches of a study."""
    watched = [launch for launch in launches if launch.disturbances is not None]
    hit = [launch for launch in watched if seen(launch)]
    worst = max(((weight(each), launch.launch_id, each.text) for launch in hit for each in seen(launch)), default=None)
    return Disturbed(
        watched=len(watched),
        disturbed=len(hit),
        deciding=sum(launch.purpose in _DECIDING for launch in watched),
        deciding_disturbed=sum(launch.purpose in _DECIDING for launch in hit),
        worst=worst[2] if worst else "",
        worst_launch=worst[1] if worst else "",
    )


def seen(launch: Launch) -> tuple[Disturbance, ...]:
    """What disturbed a launch; empty also where it was not watched."""
    return launch.disturbances.seen if launch.disturbances else ()


def weight(disturbance: Disturbance) -> float:
    """How bad it is, for an order: its share; 1 where that is not known, since it may be all."""
    return 1.0 if disturbance.share is None else disturbance.share
