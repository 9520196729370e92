"""Simulate the verdict: how often is it wrong, how often does it find what is there, and what does it cost?

The launches are simulated, everything after them is the code of the tool: the order of a round, the sequential test,
the bounds. Whole studies (search, ledger, finals, profile) are simulated as well, with the tests' fake runner, in
``tests/simulation``.

    python benchmarks/verdict_simulation.py --studies 5000 --seeds 1 2 3 4

prints the tables of docs/verdict.md, from 20,000 studies a cell, about 2 ms of a core each. Every study has three
finalists and at most 20 rounds; ``--min-gain`` is 1 %.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nccltune.records import Candidate, Pair
from nccltune.verdict import rounds
from nccltune.verdict.bounds import estimate
from nccltune.verdict.decision import Account, conclude
from nccltune.verdict.sequence import Ended, Entry, Rule, judge

MIN_GAIN = 0.01
ROUNDS = 20


class Known(Candidate):
    """A candidate whose hash is not computed from its settings each time: a third of the simulation's time."""

    def __hash__(self) -> int:
        return id(self)


FINALISTS = tuple(Known(settings={"KNOB": str(number)}) for number in (1, 2, 3))
LEVELS = (0.005, 0.02, 0.1)
WORTH = {0.005: 0.03, 0.02: 0.1, 0.1: 0.5}
"""Launch noise to the gain that has to be found at it."""
WORDS = ("ship", "keep-default", "no-verdict")


def normal(generator: np.random.Generator, studies: int, launches: int) -> np.ndarray:
    """Independent launches, normal."""
    return generator.standard_normal((studies, launches))


def student(generator: np.random.Generator, studies: int, launches: int) -> np.ndarray:
    """Independent launches with heavy tails: Student with three degrees of freedom, standard deviation 1."""
    return generator.standard_t(3, (studies, launches)) / np.sqrt(3)


def spikes(generator: np.random.Generator, studies: int, launches: int) -> np.ndarray:
    """Normal, and one launch in ten is slower by five standard deviations."""
    return normal(generator, studies, launches) + 5 * (generator.random((studies, launches)) < 0.1)


def drift(generator: np.random.Generator, studies: int, launches: int) -> np.ndarray:
    """Normal, and the machine becomes slower by ten standard deviations, steadily, until the last round."""
    return normal(generator, studies, launches) + 10 * np.arange(launches) / launches


def walk(generator: np.random.Generator, studies: int, launches: int) -> np.ndarray:
    """A random walk: each launch differs from the one before by a normal step."""
    return np.cumsum(normal(generator, studies, launches), axis=1)


def correlated(generator: np.random.Generator, studies: int, launches: int) -> np.ndarray:
    """AR(1) with 0.8: a launch has much of its noise in common with the one before."""
    steps = normal(generator, studies, launches)
    for launch in range(1, launches):
        steps[:, launch] = 0.8 * steps[:, launch - 1] + 0.6 * steps[:, launch]
    return steps


def two_states(generator: np.random.Generator, studies: int, launches: int) -> np.ndarray:
    """Normal, and every other launch by chance falls into a state that is slower by three standard deviations."""
    return normal(generator, studies, launches) + 3 * (generator.random((studies, launches)) < 0.5)


KINDS: dict[str, Callable[[np.random.Generator, int, int], np.ndarray]] = {
    "normal": normal,
    "Student t₃": student,
    "10 % spikes": spikes,
    "linear drift": drift,
    "random walk": walk,
    "AR(1) 0.8": correlated,
    "two states": two_states,
}


@dataclass(frozen=True)
class Cell:
    """What became of the studies of one kind.

    Attributes:
        words: Verdict to the share of studies.
        launches: Mean launches of the rounds.
    """

    words: dict[str, float]
    launches: float


def times(kind: str, level: float, studies: int, seed: Sequence[int]) -> np.ndarray:
    """Relative step times of the launches of studies, as if nothing but noise told them apart."""
    generator = np.random.default_rng([list(KINDS).index(kind), round(level * 1e4), *seed])
    launches = ROUNDS * (1 + len(FINALISTS))
    return np.maximum(0.1, 1 + level * KINDS[kind](generator, studies, launches))


def pooled(kind: str, level: float, gains: Sequence[float], studies: int, seeds: Sequence[int]) -> Cell:
    """Simulate so many studies with each seed and put them together."""
    cells = [simulate(kind, level, gains, studies, seed) for seed in seeds]
    words = {word: sum(cell.words.get(word, 0.0) for cell in cells) / len(cells) for word in WORDS}
    return Cell(words, sum(cell.launches for cell in cells) / len(cells))


def simulate(kind: str, level: float, gains: Sequence[float], studies: int, seed: int) -> Cell:
    """Run finals until their verdict.

    Args:
        kind: Of the noise.
        level: Its size.
        gains: True gain of each finalist.
        studies: How many.
        seed: Of the noise.
    """
    words: Counter[str] = Counter()
    launched = 0
    rule = Rule(min_gain=MIN_GAIN, rounds=ROUNDS, finalists=len(gains))
    noise = times(kind, level, studies, [seed, round(1e4 * (1 + gains[0]))]).tolist()
    for line in noise:
        word, n = finals(line, dict(zip(FINALISTS, gains, strict=False)), rule)
        words[word] += 1
        launched += n
    return Cell({word: count / studies for word, count in words.items()}, launched / studies)


def finals(noise: Sequence[float], gains: Mapping[Candidate, float], rule: Rule) -> tuple[str, int]:
    """Hold the finals of one study; return the verdict and the launches.

    ``judge`` looks at no round beyond the one at which it ends, so all rounds are played ahead and it is asked once.
    Where a finalist went out before that, the rounds after it are played again without it, as they would have been.

    Args:
        noise: Relative step time of each launch of the study, in the order of launching.
        gains: Finalist to its true gain.
        rule: What is asked for.
    """
    measured: dict[Candidate, dict[int, Pair]] = {candidate: {} for candidate in gains}
    active, played, launches = tuple(gains), 0, [0]
    while True:
        for number in range(played + 1, rule.rounds + 1):
            began = launches[number - 1]
            for candidate, found in _round(number, active, noise[began:], gains).items():
                measured[candidate][number] = found
            launches[number:] = [began + 1 + len(active)]
        ended = judge([Entry(candidate, found) for candidate, found in measured.items()], rule)
        assert isinstance(ended, Ended), "no round is missing"
        left = {finalist.candidate: len(finalist.pairs) for finalist in ended.finalists if finalist.fate == "out"}
        early = [look for candidate, look in left.items() if candidate in active and look < ended.looked]
        if not early:
            return conclude(ended, rule, Account()).word, launches[ended.looked]
        played = min(early)
        active = tuple(candidate for candidate in active if left.get(candidate, ended.looked) > played)


def _round(
    number: int, active: tuple[Candidate, ...], noise: Sequence[float], gains: Mapping[Candidate, float]
) -> dict[Candidate, Pair]:
    order = rounds.order(number, active)
    default = next(took for took, candidate in zip(noise, order, strict=False) if candidate.is_default)
    return {
        candidate: pair(number, default, took / (1 + gains[candidate]))
        for took, candidate in zip(noise, order, strict=False)
        if not candidate.is_default
    }


def pair(number: int, default: float, took: float) -> Pair:
    """What ``rounds.pairs`` makes of two launches."""
    gain = default / took - 1
    return Pair(round=number, default_us=default, candidate_us=took, gain=gain, size_gains={})


def coverage(kind: str, level: float, look: int, studies: int, seed: int) -> float:
    """Share of studies whose 95 % interval after a fixed number of rounds holds the true gain; one finalist."""
    gain, covered = WORTH[level], 0
    for line in times(kind, level, studies, [seed, look]).tolist():
        noise, logs = iter(line), {}
        for number in range(1, look + 1):
            took = {candidate: next(noise) for candidate in rounds.order(number, FINALISTS[:1])}
            default = next(time for other, time in took.items() if other.is_default)
            logs[number] = np.log(default / took[FINALISTS[0]] * (1 + gain))
        found = estimate(logs)
        assert found is not None
        low, high = found.interval()
        covered += low <= gain <= high
    return covered / studies


def _share(value: float) -> str:
    return f"{100 * value:.2f}"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--studies", type=int, default=5_000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], help="so many studies with each of them")
    arguments = parser.parse_args()
    n, seeds = arguments.studies, arguments.seeds
    begun = time.monotonic()
    total = n * len(seeds)
    print(f"{total} studies a cell, seeds {seeds}; shares in %, launches of the rounds in brackets.")
    print(f"95 % confidence: 0.4 ± {196 * (0.004 * 0.996 / total) ** 0.5:.2f}; 0.00 is at most {300 / total:.3f}\n")
    heads = ["noise", "level", "ship: loss of 1 %", "ship: gain 0", "ship: gain = min-gain", "ship: worth it"]
    print(f"| {' | '.join([*heads, 'keep: worth it', 'keep: gain 0'])} |")
    print("|---" * 8 + "|")
    for kind in KINDS:
        for level in LEVELS:
            loss, none, same = (pooled(kind, level, [gain] * 3, n, seeds) for gain in (-0.01, 0.0, MIN_GAIN))
            worth = pooled(kind, level, [WORTH[level], 0.0, 0.0], n, seeds)
            ships = [f"{_share(cell.words['ship'])} ({cell.launches:.0f})" for cell in (loss, none, same, worth)]
            keeps = [_share(cell.words["keep-default"]) for cell in (worth, none)]
            print(f"| {kind} | {100 * level:g} % | {' | '.join([*ships, *keeps])} |", flush=True)
    print("\n95 % interval, coverage after 6, 12 and 20 rounds\n")
    print("| noise | level | 6 | 12 | 20 |\n|---|---|---|---|---|")
    for kind in KINDS:
        for level in LEVELS:
            shares = [sum(coverage(kind, level, look, n, seed) for seed in seeds) / len(seeds) for look in (6, 12, 20)]
            print(f"| {kind} | {100 * level:g} % | {' | '.join(map(_share, shares))} |", flush=True)
    print(f"\n{time.monotonic() - begun:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
