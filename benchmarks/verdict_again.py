"""How much more often does a study ship by chance when its command is given again with more rounds until it ships?

Every finalist gains exactly what is asked for, so that each ``ship`` is one too many; normal noise, single launches
apart by 0.5 %. The looks, error rates and bounds are those of the tool; finalists that would be dropped on the way stay
in, which can only make the shares larger.

    python benchmarks/verdict_again.py

prints the table of docs/verdict.md; 40,000 studies, 10 s and 1 GB.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence

import numpy as np

from nccltune.verdict.bounds import half_width
from nccltune.verdict.sequence import Rule

MIN_GAIN, NOISE, MOST, FINALISTS = 0.01, 0.005, 60, 3

Asked = Sequence[tuple[int, int]]
"""Rounds and finalists of each command, in the order in which they are given."""

ASKED: dict[str, Asked] = {
    "`--rounds 20` once": [(20, 3)],
    "20, then 40": [(20, 3), (40, 3)],
    "20, then 30, 40 and 60": [(rounds, 3) for rounds in (20, 30, 40, 60)],
    "every even number from 6 to 60": [(rounds, 3) for rounds in range(6, MOST + 1, 2)],
    "20, with `--finalists` 1, 2 and 3": [(20, finalists) for finalists in (1, 2, 3)],
    "one finalist, 6, then 12": [(6, 1), (12, 1)],
}


def ratios(studies: int, seed: int) -> np.ndarray:
    """Logarithms of the ratios, beyond what is asked for: study, finalist, round. One default serves a round."""
    generator = np.random.default_rng(seed)
    default = generator.standard_normal((studies, 1, MOST))
    return NOISE * (default - generator.standard_normal((studies, FINALISTS, MOST)))


def ships(logs: np.ndarray, rule: Rule) -> np.ndarray:
    """Say which studies ship under a rule."""
    found = np.zeros(len(logs), dtype=bool)
    for look in rule.looks:
        orders = logs[:, : rule.finalists, :look:2], logs[:, : rule.finalists, 1:look:2]
        mean = sum(order.mean(axis=2) for order in orders) / 2
        squares = sum(((order - order.mean(axis=2, keepdims=True)) ** 2).sum(axis=2) for order in orders)
        above = mean - half_width(1.0, look, rule.ship_error) * np.sqrt(squares / (look - 2))
        found |= (above > 0).any(axis=1)
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--studies", type=int, default=40_000)
    parser.add_argument("--seed", type=int, default=3)
    arguments = parser.parse_args()
    logs = ratios(arguments.studies, arguments.seed)
    print("| commands | ship, % of the studies | ± |\n|---|---|---|")
    for name, asked in ASKED.items():
        rules = [Rule(min_gain=MIN_GAIN, rounds=rounds, finalists=finalists) for rounds, finalists in asked]
        share = float(np.logical_or.reduce([ships(logs, rule) for rule in rules]).mean())
        doubt = 1.96 * math.sqrt(share * (1 - share) / arguments.studies)
        print(f"| {name} | {100 * share:.2f} | {100 * doubt:.2f} |", flush=True)


if __name__ == "__main__":
    main()
