"""The sequential test: what is to be measured next, or what the rounds have shown. Pure, and the same on every resume.

Finalists are looked at together after few fixed numbers of rounds. The error rate of a false ``ship`` is shared equally
over the looks and the finalists, so that it holds for the study as a whole, however its noise comes together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from ..records import Candidate, Finalist, Pair
from .bounds import LEAST_ROUNDS, Estimate, estimate, undecided

SHIP_ERROR = 0.005
"""Probability that any finalist whose true gain is no more than asked for is shipped, over all looks of a study."""
KEEP_ERROR = 0.05
"""Probability that a finalist whose true gain is worth it is dropped as not worth it, over all looks."""
HARM_ERROR = 0.05
"""Error rate of the bound that shows a loss in the tail or at a size: what may do harm needs less proof."""
SURELY_UNDECIDED = 0.9
"""Predicted probability of no decision at the last look from which the rounds are not worth their time."""
TIE = math.log1p(0.01)
"""A simpler finalist costs at most this much of the gain."""

_FIRST_LOOK = 4
_LOOKS = (6, 8, 12, 20, 32)


@dataclass(frozen=True, kw_only=True)
class Rule:
    """What is asked for.

    Attributes:
        min_gain: Smallest gain that is worth a change, as a share.
        rounds: Most rounds.
        finalists: How many entered.
    """

    min_gain: float
    rounds: int
    finalists: int = 1

    @cached_property
    def looks(self) -> tuple[int, ...]:
        """Rounds after which a finalist can ship. Even, so that both orders count alike; the last is what is left."""
        return (*(look for look in _LOOKS if look <= 0.75 * self.rounds), self.rounds)

    @cached_property
    def all_looks(self) -> tuple[int, ...]:
        """The same, and before them one that can only end what is not worth going on."""
        return (_FIRST_LOOK, *self.looks) if self.rounds > _FIRST_LOOK else self.looks

    @property
    def threshold(self) -> float:
        """Logarithm of the ratio that is asked for."""
        return math.log1p(self.min_gain)

    @property
    def ship_error(self) -> float:
        """Error rate of the lower bound of one finalist at one look."""
        return SHIP_ERROR / len(self.looks) / self.finalists

    @property
    def keep_error(self) -> float:
        """Error rate of the upper bound of one finalist at one look."""
        return KEEP_ERROR / len(self.all_looks) / self.finalists


@dataclass(frozen=True)
class Entry:
    """A finalist and what is known of it.

    Attributes:
        rounds: Number of the round to the pair.
        fault: Why it can never ship (it failed, it gave wrong sums); empty for none.
        unproven: Why it cannot ship as it was measured (no evidence); empty for none.
    """

    candidate: Candidate
    rounds: Mapping[int, Pair] = field(default_factory=dict)
    fault: str = ""
    unproven: str = ""

    def upto(self, look: int) -> tuple[Pair, ...]:
        """The pairs of the first rounds."""
        return tuple(self.rounds[number] for number in range(1, look + 1) if number in self.rounds)


@dataclass(frozen=True)
class Ask:
    """A round that is to be launched, with these finalists."""

    round: int
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True)
class Ended:
    """What the rounds came to.

    Attributes:
        finalists: The one to ship first, then as they entered.
        looked: Rounds at the last look.
        early: Whether more rounds were left that cannot be expected to decide.
    """

    finalists: tuple[Finalist, ...]
    looked: int
    early: bool = False


def judge(entries: Sequence[Entry], rule: Rule) -> Ask | Ended:
    """Say what to launch next, or what was shown.

    Args:
        entries: The finalists in the order in which they entered, with all rounds measured so far.
        rule: What is asked for.
    """
    fates = {entry.candidate: _out(entry) for entry in entries if entry.fault}
    active = [entry for entry in entries if not entry.fault]
    looked = 0
    for look in rule.all_looks:
        if not active:
            break
        missing = _missing(active, look)
        if missing is not None:
            return missing
        looked = look
        seen = {entry.candidate: _look(entry, look, rule) for entry in active}
        fates |= seen
        active = [entry for entry in active if seen[entry.candidate].fate != "out"]
        shipped = _choose([entry for entry in active if seen[entry.candidate].fate == "ship"], fates, look)
        if shipped is not None:
            return Ended(_first(shipped, entries, fates), looked)
        if active and look < rule.rounds and all(_hopeless(entry, look, rule) for entry in active):
            return Ended(tuple(fates[entry.candidate] for entry in entries), looked, early=True)
    return Ended(tuple(fates[entry.candidate] for entry in entries), looked)


def _missing(active: Sequence[Entry], look: int) -> Ask | None:
    for number in range(1, look + 1):
        lacking = tuple(entry.candidate for entry in active if number not in entry.rounds)
        if lacking:
            return Ask(number, lacking)
    return None


def _look(entry: Entry, look: int, rule: Rule) -> Finalist:
    """Look at one finalist after so many rounds."""
    pairs = entry.upto(look)
    found = of_gain(pairs)
    if found is None:
        return Finalist(
            candidate=entry.candidate, fate="open", reason=f"a bound needs at least {LEAST_ROUNDS} rounds", pairs=pairs
        )
    low, high = found.lower(rule.ship_error), found.upper(rule.keep_error)
    tail = of_tail(pairs)
    shown = Finalist(
        candidate=entry.candidate,
        fate="open",
        reason="the bounds hold the gain that is asked for between them",
        pairs=pairs,
        gain=found.gain,
        interval=found.interval(),
        bounds=(math.expm1(low), math.expm1(high)),
        tail_gain=tail.gain if tail else None,
        tail_interval=tail.interval() if tail else None,
        size_gains={size: sized.gain for size, sized in of_sizes(pairs).items()},
    )
    if high < rule.threshold:
        return _with(shown, "out", "not worth it: the upper bound lies below the gain that is asked for")
    if look not in rule.looks or low <= rule.threshold:
        return shown
    harm = harmed(pairs, rule)
    if harm:
        return _with(shown, "out", harm)
    if entry.unproven:
        return _with(shown, "open", f"fast enough, but without evidence: {entry.unproven}")
    return _with(shown, "ship", "the lower bound lies above the gain that is asked for")


def harmed(pairs: Sequence[Pair], rule: Rule) -> str:
    """Say where the rounds show a loss that is larger than the gain asked for; empty where they show none."""
    tail = of_tail(pairs)
    if tail is not None and -tail.upper(HARM_ERROR) > rule.threshold:
        return "the 95th percentile of its step times is shown to be worse than the default's"
    for size, sized in of_sizes(pairs).items():
        if -sized.upper(HARM_ERROR) > rule.threshold:
            return f"messages of {size} bytes are shown to be slower than under the default"
    return ""


def of_gain(pairs: Sequence[Pair]) -> Estimate | None:
    """Estimate the gain of the median step."""
    return estimate({pair.round: math.log1p(pair.gain) for pair in pairs})


def of_tail(pairs: Sequence[Pair]) -> Estimate | None:
    """Estimate the gain of the 95th percentile of the step times."""
    return estimate({pair.round: math.log1p(pair.tail_gain) for pair in pairs if pair.tail_gain is not None})


def of_sizes(pairs: Sequence[Pair]) -> dict[str, Estimate]:
    """Estimate the gain at each size of a mix."""
    sizes = dict.fromkeys(size for pair in pairs for size in pair.size_gains)
    found = {
        size: estimate({pair.round: math.log1p(pair.size_gains[size]) for pair in pairs if size in pair.size_gains})
        for size in sizes
    }
    return {size: sized for size, sized in found.items() if sized is not None}


def _hopeless(entry: Entry, look: int, rule: Rule) -> bool:
    """Whether the width to be expected at the last look cannot decide."""
    found = of_gain(entry.upto(look))
    return (
        found is not None
        and undecided(found, rule.rounds, rule.threshold, rule.ship_error, rule.keep_error) > SURELY_UNDECIDED
    )


def _choose(passed: Sequence[Entry], fates: Mapping[Candidate, Finalist], look: int) -> Candidate | None:
    """Of those that passed take the best; one nearer the default that is not shown to be worse goes before it."""
    if not passed:
        return None
    best = max(passed, key=lambda entry: fates[entry.candidate].gain or 0.0)
    tied = [entry for entry in passed if entry is best or _ties(entry, best, look)]
    return min(
        tied, key=lambda entry: (len(entry.candidate.settings), tied.index(entry) if entry is not best else -1)
    ).candidate


def _ties(entry: Entry, best: Entry, look: int) -> bool:
    behind = estimate(
        {
            mine.round: math.log(mine.candidate_us / its.candidate_us)
            for mine, its in zip(entry.upto(look), best.upto(look), strict=True)
        }
    )
    return behind is not None and behind.mean <= TIE and behind.lower(HARM_ERROR) <= 0


def _first(shipped: Candidate, entries: Sequence[Entry], fates: Mapping[Candidate, Finalist]) -> tuple[Finalist, ...]:
    rest = (fates[entry.candidate] for entry in entries if entry.candidate != shipped)
    return (fates[shipped], *(_passed_over(other) for other in rest))


def _passed_over(other: Finalist) -> Finalist:
    return _with(other, "open", "it passed too, and another was taken") if other.fate == "ship" else other


def _out(entry: Entry) -> Finalist:
    return Finalist(candidate=entry.candidate, fate="out", reason=entry.fault, pairs=tuple(entry.rounds.values()))


def _with(finalist: Finalist, fate: str, reason: str) -> Finalist:
    return finalist.model_copy(update={"fate": fate, "reason": reason})
