"""What a study can show, foreseen from its noise floor before it spends anything on a search. Pure.

The rule is that of ``sequence`` and ``bounds``, at its last look. Looks before it let some gains pass sooner, and
rounds that end early because they cannot be expected to decide lose some: in simulation both together move the
probability by less than 0.05 (``tests/simulation/test_reach.py``).
"""

from __future__ import annotations

import math

from ..quantities import format_percent, format_seconds
from ..records import Reach
from ..study import stats
from ..study.entries import NoiseFloor
from .bounds import LEAST_ROUNDS, detectable, spread_range
from .sequence import Rule

POWER = 0.8
"""Share of studies in which a gain is shipped that can be shown."""
CONFIDENCE = 0.8
"""Of the range of the noise, which few launches tell only roughly."""
_MOST_ROUNDS = 500
"""More rounds than this are no advice."""
_LARGEST = math.log(100)
"""Larger ratios are only said to be this large."""


def foresee(floor: NoiseFloor, rule: Rule, launch_s: float) -> Reach:
    """Foresee what the rounds can show.

    Args:
        floor: Noise of single launches.
        rule: By which the verdict will be reached; as many rounds as there is time for.
        launch_s: Wall time of a launch.
    """
    # As far above the gain asked for as that lies above nothing: then no gain and twice the gain lie on its two sides.
    wanted = math.expm1(2 * rule.threshold)
    reach = Reach(
        min_gain=rule.min_gain, rounds=rule.rounds, finalists=rule.finalists, power=POWER, wanted=wanted
    )  # fmt: skip
    if floor.n < 2:
        return _said(reach, f"what the study can show is not known: {floor.n} launch says nothing of the noise")
    spread = math.sqrt(2) * floor.relative  # of a ratio of two launches
    update: dict[str, object] = {"falls_short": True}
    needed = _needed(spread, rule)
    if needed is not None:
        launches = needed * (1 + rule.finalists)
        update |= {"rounds_needed": needed, "launches_needed": launches, "seconds_needed": launches * launch_s}
    if rule.rounds >= LEAST_ROUNDS:
        above = _above(spread, rule)
        low, high = spread_range(1.0, stats.freedom(floor.n), CONFIDENCE)
        update |= {
            "smallest": _gain(rule, above),
            "likely": (_gain(rule, low * above), _gain(rule, high * above)),
            "falls_short": above > rule.threshold,
            "quieter": floor.relative * rule.threshold / above if above else None,
            "farther": math.expm1(min(above, _LARGEST)),
        }
    return _in_words(reach.model_copy(update=update), floor, launch_s)


def _above(spread: float, rule: Rule) -> float:
    """How far above the gain asked for a gain must lie to be shown in the last round, as a logarithm."""
    return detectable(spread, rule.rounds, rule.ship_error, POWER)


def _gain(rule: Rule, above: float) -> float:
    return math.expm1(min(rule.threshold + above, _LARGEST))


def _needed(spread: float, rule: Rule) -> int | None:
    """Fewest rounds that show the gain that ought to be shown."""
    for rounds in range(LEAST_ROUNDS + 1, _MOST_ROUNDS + 1, 2):
        if _above(spread, Rule(min_gain=rule.min_gain, rounds=rounds, finalists=rule.finalists)) <= rule.threshold:
            return rounds
    return None


# ---- words


def _in_words(reach: Reach, floor: NoiseFloor, launch_s: float) -> Reach:
    if reach.smallest is None or reach.likely is None:
        shows = f"{reach.rounds} fresh rounds are too few to show any gain"
    elif not floor.relative:
        shows = f"{floor.n} launches did not differ: any gain above {format_percent(reach.min_gain)} can be shown"
    elif reach.smallest > 1:
        shows = f"{reach.rounds} fresh rounds can show no gain below 100 % at this noise"
    else:
        low, high = reach.likely
        shows = (
            f"{reach.rounds} fresh rounds can show gains from about {format_percent(reach.smallest)} on "
            f"({format_percent(low)} to {'over 100 %' if high > 1 else format_percent(high)}: "
            f"{floor.n} launches tell the noise only roughly)"
        )
    return _said(reach, shows, _cost(reach, launch_s))


def _cost(reach: Reach, launch_s: float) -> str:
    what = f"to show {format_percent(reach.wanted)} where more than {format_percent(reach.min_gain)} is asked for"
    if reach.launches_needed is None or reach.seconds_needed is None:
        return f"{what}: more than {_MOST_ROUNDS} rounds"
    return (
        f"{what}: {reach.rounds_needed} rounds, {reach.launches_needed} launches of {format_seconds(launch_s)}, "
        f"about {format_seconds(reach.seconds_needed)}"
    )


def _said(reach: Reach, *sentences: str) -> Reach:
    return reach.model_copy(update={"sentences": sentences})


def warning(reach: Reach) -> str:
    """Say that the rounds fall short, and what to do; empty where they do not, or nobody knows."""
    if not reach.falls_short:
        return ""
    ways = [
        f"--rounds {reach.rounds_needed}" if reach.rounds_needed else "",
        f"--min-gain {_typed(reach.farther)}" if reach.farther and reach.farther <= 1 else "",
        f"a machine whose launches differ by {format_percent(reach.quieter)}" if reach.quieter else "a quieter machine",
    ]
    return (
        f"this study cannot be expected to show a gain of {format_percent(reach.wanted)}; what would let it: "
        f"{', or '.join(way for way in ways if way)}"
    )


def _typed(share: float) -> str:
    """As it is typed, and no smaller: a share that is rounded down would fall short again."""
    unit = 10.0 ** (math.floor(math.log10(share)) - 1)
    return format_percent(math.ceil(share / unit) * unit).replace(" ", "")
