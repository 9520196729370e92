"""The decision, and what it stands on."""

from __future__ import annotations

from typing import Literal

from .base import Record
from .candidate import DEFAULT, Candidate


class Pair(Record):
    """One mirrored round: the default and the finalist, in fresh launches next to each other.

    Attributes:
        default_us: Median step time of the default's launch.
        candidate_us: Median step time of the candidate's launch.
        gain: ``default_us / candidate_us - 1``; positive when the candidate is faster.
        round: Number of the round, from 1; odd and even rounds have opposite orders.
        tail_gain: The same of the 95th percentile of the step times; ``None`` where not kept.
        size_gains: For a mix of sizes: message bytes to the same of the median time of one call.
    """

    default_us: float
    candidate_us: float
    gain: float
    round: int = 0
    tail_gain: float | None = None
    size_gains: dict[str, float] = {}


class Finalist(Record):
    """What the fresh rounds showed of one candidate; gains are shares (0.01 is 1 %).

    Attributes:
        fate: ``ship`` it passed; ``out`` it cannot ship, or cannot be worth it; ``open`` neither was shown.
        reason: One line.
        pairs: The rounds that were looked at.
        gain: The estimate: geometric mean over the rounds, the order's own effect taken out.
        interval: Two-sided 95 % confidence interval of the gain.
        bounds: The stricter one-sided bounds that decided, with the error shared over looks and finalists.
        tail_gain: Estimate for the 95th percentile of the step times.
        tail_interval: Its 95 % interval.
        size_gains: For a mix: message bytes to the estimate for one call.
    """

    candidate: Candidate
    fate: Literal["ship", "out", "open"]
    reason: str
    pairs: tuple[Pair, ...] = ()
    gain: float | None = None
    interval: tuple[float, float] | None = None
    bounds: tuple[float, float] | None = None
    tail_gain: float | None = None
    tail_interval: tuple[float, float] | None = None
    size_gains: dict[str, float] = {}


class Reach(Record):
    """What the fresh rounds can be expected to show, foreseen from the noise floor before the first trial.

    Gains are true gains of a candidate, as shares. A gain is shown when such a candidate would be shipped with a
    probability of ``power``.

    Attributes:
        min_gain: What was asked for.
        rounds: Most rounds.
        finalists: Most finalists that share them.
        smallest: The smallest gain that the rounds show; ``None`` where it is not known.
        likely: The same for a noise at either end of its 80 % interval: few launches tell it only roughly.
        wanted: The gain that ought to be shown, as far above ``min_gain`` as that lies above nothing.
        rounds_needed: Rounds that show ``wanted``; ``None`` where they are too many to be advice, or not known.
        launches_needed: Launches of these rounds.
        seconds_needed: Wall time of these launches.
        quieter: Noise floor at which the rounds would show ``wanted``.
        falls_short: Whether the rounds do not show ``wanted``; ``None`` where it is not known.
        farther: Value of ``min_gain`` from which the rounds show what then ought to be shown.
        sentences: The same in words.
    """

    min_gain: float
    rounds: int
    finalists: int
    power: float
    smallest: float | None = None
    likely: tuple[float, float] | None = None
    wanted: float
    rounds_needed: int | None = None
    launches_needed: int | None = None
    seconds_needed: float | None = None
    quieter: float | None = None
    farther: float | None = None
    falls_short: bool | None = None
    sentences: tuple[str, ...] = ()


class Verdict(Record):
    """What the study comes to.

    Attributes:
        word: ``ship``, ``keep-default`` or ``no-verdict``; ``unconfirmed`` stands in ledgers of the first release only.
        sentence: The verdict in one sentence for a person.
        candidate: The settings it is about; the default for ``keep-default``.
        pairs: The rounds behind it, of that candidate or of the best finalist.
        gain: Estimate of the gain; ``None`` where none was measured.
        interval: Two-sided 95 % confidence interval of the gain.
        bounds: The one-sided bounds that decided.
        finalists: All that entered the rounds, best first.
        collective_only: Measured on a collective alone: such a ``ship`` says nothing of a model step.
        needed: What would be needed for another answer; empty where nothing is missing.
        rounds: Fresh rounds that were looked at.
        round_launches: Launches of the rounds.
        launches: Of the whole study so far.
        noise_floor: Relative spread of launches of the default.
        gpu_s: Wall time of all launches times the ranks.
        pays_after_steps: For ``ship``: steps until the time saved equals the time of all launches of the study.
    """

    word: Literal["ship", "keep-default", "no-verdict", "unconfirmed"]
    sentence: str
    candidate: Candidate = DEFAULT
    pairs: tuple[Pair, ...] = ()
    gain: float | None = None
    min_gain: float = 0.01
    interval: tuple[float, float] | None = None
    bounds: tuple[float, float] | None = None
    finalists: tuple[Finalist, ...] = ()
    collective_only: bool = False
    needed: str = ""
    rounds: int = 0
    round_launches: int = 0
    launches: int = 0
    noise_floor: float | None = None
    gpu_s: float = 0.0
    pays_after_steps: int | None = None

    @property
    def label(self) -> str:
        """The word for a person: ``ship (collective only)`` where no model was measured."""
        return f"{self.word} (collective only)" if self.word == "ship" and self.collective_only else self.word
