"""Simulate the verdict: how often is it wrong, how often does it find what is there, and what does it cost?

The launches are simulated, everything after them is the code of the tool: the order of a round, the sequential test,
the bounds. Whole studies (search, ledger, finals, profile) are simulated as well, with the tests' fake runner, in
``tests/simulation``.

    python benchmarks/verdict_simulation.py [--studies 20000] [--seed 1]

prints the tables of docs/verdict.md. Every study has three finalists and at most 20 rounds; ``--min-gain`` is 1 %.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from nccltune.records import Candidate, Pair
from nccltune.verdict import rounds
from nccltune.verdict.bounds import estimate
from nccltune.verdict.decision import Account, conclude
from nccltune.verdict.sequence import Ask, Entry, Rule, judge

MIN_GAIN = 0.01
ROUNDS = 20
FINALISTS = tuple(Candidate(settings={"KNOB": str(number)}) for number in (1, 2, 3))
LEVELS = (0.005, 0.02, 0.1)
WORTH = {0.005: 0.03, 0.02: 0.1, 0.1: 0.5}
"""Launch noise to the gain that has to be found at it."""


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
        word, n = finals(iter(line), dict(zip(FINALISTS, gains, strict=False)), rule)
        words[word] += 1
        launched += n
    return Cell({word: count / studies for word, count in words.items()}, launched / studies)


def finals(noise: Iterator[float], gains: dict[Candidate, float], rule: Rule) -> tuple[str, int]:
    """Hold the finals of one study; return the verdict and the launches."""
    measured: dict[Candidate, dict[int, Pair]] = {candidate: {} for candidate in gains}
    launches = 0
    while True:
        step = judge([Entry(candidate, found) for candidate, found in measured.items()], rule)
        if not isinstance(step, Ask):
            return conclude(step, rule, Account()).word, launches
        # Nothing is looked at before the next look: its rounds are launched at once, which spares time, not launches.
        until = next(look for look in rule.all_looks if look >= step.round)
        for number in range(step.round, until + 1):
            order = rounds.order(number, step.candidates)
            launches += len(order)
            took = {candidate: next(noise) / (1 + gains.get(candidate, 0.0)) for candidate in order}
            for candidate in step.candidates:
                measured[candidate][number] = pair(number, took, candidate)


def pair(number: int, took: dict[Candidate, float], candidate: Candidate) -> Pair:
    """What ``rounds.pairs`` makes of two launches."""
    default = next(time for other, time in took.items() if other.is_default)
    return Pair.model_construct(
        round=number,
        default_us=default,
        candidate_us=took[candidate],
        gain=default / took[candidate] - 1,
        tail_gain=None,
        size_gains={},
    )


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
    parser.add_argument("--studies", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    n, seed = arguments.studies, arguments.seed
    begun = time.monotonic()
    print(f"{n} studies a cell, seed {seed}; shares in %, launches of the rounds in brackets\n")
    heads = ["noise", "level", "ship: loss of 1 %", "ship: gain 0", "ship: gain = min-gain", "ship: worth it"]
    print(f"| {' | '.join([*heads, 'keep: worth it', 'keep: gain 0'])} |")
    print("|---" * 8 + "|")
    for kind in KINDS:
        for level in LEVELS:
            loss, none, same = (simulate(kind, level, [gain] * 3, n, seed) for gain in (-0.01, 0.0, MIN_GAIN))
            worth = simulate(kind, level, [WORTH[level], 0.0, 0.0], n, seed)
            ships = [f"{_share(cell.words.get('ship', 0))} ({cell.launches:.0f})" for cell in (loss, none, same, worth)]
            keeps = [_share(cell.words.get("keep-default", 0)) for cell in (worth, none)]
            print(f"| {kind} | {100 * level:g} % | {' | '.join([*ships, *keeps])} |", flush=True)
    print("\n95 % interval, coverage after 6, 12 and 20 rounds\n")
    print("| noise | level | 6 | 12 | 20 |\n|---|---|---|---|---|")
    for kind in KINDS:
        for level in LEVELS:
            shares = " | ".join(f"{100 * coverage(kind, level, look, n, seed):.1f}" for look in (6, 12, 20))
            print(f"| {kind} | {100 * level:g} % | {shares} |", flush=True)
    print(f"\n{time.monotonic() - begun:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
