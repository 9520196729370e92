"""How far launches of the same settings are apart, and what a launch costs by part: the default against itself.

Of studies that exist::

    python benchmarks/default_spread.py runs/allreduce-tcp-117311f8

or of fresh launches, kept as a study's ledger in ``--out``, which can be given again as above::

    python benchmarks/default_spread.py --launches 8 --workload allreduce --sizes 32M --out spread
"""

from __future__ import annotations

import argparse
import os
import secrets
import statistics
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from nccltune import plan as plans
from nccltune.records import DEFAULT, Launch, Measurement
from nccltune.study.ledger import Ledger
from nccltune.study.stats import relative_spread
from nccltune.trial.runner import LaunchRunner

OUTLIER = 3.5
"""Of the robust spread (1.4826 times the median absolute deviation): beyond it a launch is listed as an outlier."""


def fresh(options: plans.Options, launches: int) -> Path:
    """Launch the default again and again.

    Args:
        options: As of a study.
        launches: How many.

    Returns:
        The study's folder.
    """
    plan = plans.prepare(options, dict(os.environ))
    runner = LaunchRunner(plan.folder, environ=plan.environ)
    with Ledger.create(plan.folder, plan.identity) as ledger:
        for number in range(launches):
            request = plan.request(DEFAULT, f"{number:04d}-noise-floor", secrets.token_hex(8))
            started, began = datetime.now(UTC).isoformat(timespec="milliseconds"), time.monotonic()
            outcome = runner.run(request)
            ledger.append(
                Launch(
                    launch_id=request.launch_id,
                    purpose="noise-floor",
                    candidate=DEFAULT,
                    started_at=started,
                    wall_s=round(time.monotonic() - began, 3),
                    outcome=outcome,
                )
            )
    return plan.folder


def table(launches: Sequence[tuple[Launch, Measurement]]) -> list[str]:
    """The launches as Markdown: each median, the spread over them, and the cost by part."""
    medians_us = [outcome.median_us for _, outcome in launches]
    middle_us, spread = statistics.median(medians_us), relative_spread(medians_us)
    lines = ["| launch | for | steps | median | from the middle |", "|---|---|---|---|---|"]
    for (launch, outcome), median_us in zip(launches, medians_us, strict=True):
        away = median_us / middle_us - 1
        note = ", outlier" if spread and abs(away) > OUTLIER * spread else ""
        lines.append(
            f"| {launch.launch_id} | {launch.purpose} | {len(outcome.step_times_us)} "
            f"| {median_us / 1e3:.4g} ms | {away:+.2%}{note} |"
        )
    parts = {part: statistics.median(o.parts_s.get(part, 0.0) for _, o in launches) for part in launches[0][1].parts_s}
    return [
        *lines,
        "",
        f"{len(launches)} launches, {middle_us / 1e3:.4g} ms in the middle, robust spread {spread:.2%}.",
        f"A launch takes {statistics.median(launch.wall_s for launch, _ in launches):.1f} s: "
        + ", ".join(f"{part} {seconds:.1f}" for part, seconds in parts.items())
        + ".",
    ]


def of_default(folder: Path) -> list[tuple[Launch, Measurement]]:
    """The launches of the default that were measured."""
    with Ledger.open(folder) as ledger:
        return [
            (launch, launch.outcome)
            for launch in ledger.launches
            if launch.candidate == DEFAULT
            and launch.purpose not in ("evidence", "batch")
            and isinstance(launch.outcome, Measurement)
        ]


def main() -> None:
    """Print a table a study."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="*", type=Path, help="folders of studies")
    parser.add_argument("--launches", type=int, default=0)
    parser.add_argument("--workload", default="allreduce")
    parser.add_argument("--sizes")
    parser.add_argument("--batch-size")
    parser.add_argument("--emulate-nodes", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("spread"))
    asked = parser.parse_args()
    folders = list(asked.studies)
    if asked.launches:
        options = plans.Options(
            workload=asked.workload,
            given={"sizes": asked.sizes, "batch_size": asked.batch_size},
            emulate_nodes=asked.emulate_nodes,
            out=asked.out,
        )
        folders.append(fresh(options, asked.launches))
    for folder in folders:
        print(f"\n## {folder.name}\n")
        print("\n".join(table(of_default(folder))))


if __name__ == "__main__":
    main()
