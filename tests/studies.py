"""A finished study that nobody launched, for what reads studies.

``tests/conftest.py`` makes this module importable as ``studies``.
"""

from __future__ import annotations

from pathlib import Path

from fakes import failure

from nccltune.records import (
    DEFAULT,
    Candidate,
    Communication,
    Dimension,
    Disturbance,
    Disturbances,
    Launch,
    Measurement,
    Outcome,
    Space,
)
from nccltune.study.entries import NoiseFloor, Note, TrialEntry
from nccltune.study.ledger import Ledger
from nccltune.verdict.decision import Account, conclude
from nccltune.verdict.rounds import pairs
from nccltune.verdict.sequence import Ended, Entry, Rule, judge

FAST = Candidate(settings={"NCCL_BUFFSIZE": "8388608", "NCCL_MIN_NCHANNELS": "32"})
SLOWER = Candidate(settings={"NCCL_BUFFSIZE": "1048576"})
HANGS = Candidate(settings={"NCCL_PROTO": "allreduce:ll"})
REFUSED = Candidate(settings={"NCCL_MIN_NCHANNELS": "32", "NCCL_MAX_NCHANNELS": "2"})
CRAWLS = Candidate(settings={"NCCL_MAX_NCHANNELS": "1"})
ROUNDS = 6

PLAN = {
    "workload": {"name": "resnet", "options": {"batch_size": 256}},
    "space": {"name": "nvlink"},
    "machine": {"backend": "nccl", "torch": "2.11.0+cu130", "gpus": "2x NVIDIA H200", "nccl": "2.28.9"},
    "placement": {"nnodes": 1, "nproc_per_node": 2, "emulated_nodes": 0, "launch_prefix": []},
    "inherited": {"NCCL_NVLS_ENABLE": "0"},
    "seed": 0,
}


def measured(median_us: float, **fields: object) -> Measurement:
    """A launch of thirty steps around a median."""
    times = tuple(median_us * (1 + 0.001 * offset) for offset in range(-15, 16))
    defaults = {
        "clock": "cuda-events",
        "warmup_steps": 5,
        "parts_s": {"start": 2.0, "timed": 0.5},
        "metrics": {"bus_bandwidth_gbytes_per_s": 3e5 / median_us},
    }
    return Measurement(step_times_us=times, **{**defaults, **fields})


def communication(step_us: float, exposed_us: float) -> Communication:
    """Half of the step is communication, most of it overlapped."""
    busy_us = step_us / 2
    return Communication(
        source="cuda",
        steps=4,
        step_us=step_us,
        busy_us=busy_us,
        exposed_us=exposed_us,
        overlapped_us=busy_us - exposed_us,
        compute_us=step_us - exposed_us - 10.0,
        idle_us=10.0,
        share=0.5,
        exposed_share=exposed_us / step_us,
        inflation=1.1,
    )


class Builder:
    """Appends launches and trials to a ledger, with numbers that count up."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    def launch(self, purpose: str, candidate: Candidate, outcome: Outcome, **fields: object) -> None:
        """Add a launch of eleven seconds."""
        number = len(self.ledger.launches)
        self.ledger.append(
            Launch(
                launch_id=f"{number:04d}-{purpose}",
                purpose=purpose,
                candidate=candidate,
                started_at=f"2026-01-02T03:{number:02d}:05.123+00:00",
                wall_s=11.0,
                outcome=outcome,
                **fields,
            )
        )

    def trial(self, candidate: Candidate, state: str, outcome: Outcome | None = None, reason: str = "") -> None:
        """Add a trial, with its launch where there was one."""
        number = len(self.ledger.trials)
        if outcome is not None:
            self.launch("search", candidate, outcome, trial=number)
        value = outcome.median_us if isinstance(outcome, Measurement) else None
        self.ledger.append(TrialEntry(number=number, candidate=candidate, state=state, value_us=value, reason=reason))

    def noise(self, medians: tuple[float, ...] = (1000.0, 1002.0, 999.0)) -> None:
        """Add the noise floor and the default's trial."""
        for index, median_us in enumerate(medians):
            profiled = communication(1100.0, 200.0) if index == 0 else None
            self.launch("noise-floor", DEFAULT, measured(median_us, communication=profiled), trial=0)
        self.ledger.append(NoiseFloor(relative=0.0018, medians=medians, n=len(medians)))
        self.ledger.append(TrialEntry(number=0, candidate=DEFAULT, state="measured", value_us=1000.0))

    def rounds(self, candidate: Candidate, median_us: float) -> None:
        """Add fresh rounds, and the verdict on them."""
        for number in range(1, ROUNDS + 1):
            drift = 1 + 0.001 * number
            self.launch("confirm", DEFAULT, measured(1000.0 * drift), round=number)
            self.launch("confirm", candidate, measured(median_us * drift + 0.1 * number), round=number)
        rule = Rule(min_gain=0.01, rounds=ROUNDS)
        launches = self.ledger.launches
        ended = judge([Entry(candidate=candidate, rounds=pairs(launches, candidate))], rule)
        assert isinstance(ended, Ended)
        spent = Account(
            launches=len(launches),
            round_launches=2 * ROUNDS,
            wall_s=sum(launch.wall_s for launch in launches),
            ranks=2,
            noise_floor=0.0018,
        )
        self.ledger.append(conclude(ended, rule, spent))


def create(folder: Path, hostile: str = "") -> Ledger:
    """Write a study that ships, with trials of every kind.

    Args:
        folder: Of the study; its parents are made.
        hostile: Put into what a file may hold: a setting's value, a message, an advice, a warning, a note.
    """

    def said(text: str) -> str:
        return f"{text} {hostile}".strip()

    ledger = Ledger.create(folder, PLAN)
    study = Builder(ledger)
    study.noise()
    names = {*FAST.settings, *SLOWER.settings, *HANGS.settings, *REFUSED.settings}
    dimensions = tuple(Dimension(name=name, values=(None, "1")) for name in sorted(names))
    ledger.append(Space(name="nvlink", dimensions=dimensions, removed={"NCCL_ALGO": said("switched off")}))
    study.trial(FAST, "measured", measured(900.0, communication=communication(980.0, 120.0)))
    shared = Disturbances(seen=(Disturbance(kind="cpu", text=said("others used 40 % of the cores"), share=0.4),))
    warnings = (said("the step time drifted"),)
    study.trial(SLOWER, "measured", measured(1010.0, warnings=warnings, disturbances=shared))
    hang = failure(message=said("no progress for 60 s"), advice=said("look at rank 1"))
    study.trial(HANGS, "infeasible", hang, reason="hang_timeout: no progress for 60 s")
    study.trial(REFUSED, "illegal", reason="the minimum is above the maximum")
    study.trial(CRAWLS, "measured", measured(2500.0))
    if hostile:
        study.trial(Candidate(settings={"NCCL_NTHREADS": hostile}), "measured", measured(1005.0))
    ledger.append(Note(at="2026-01-02T03:00:00+00:00", text=said("a note")))
    study.rounds(FAST, 900.0)
    ledger.close()
    return ledger
