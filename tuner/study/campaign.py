"""Run many launches: noise floor, search, drift. Every decision is taken from the ledger, so any run can go on."""

from __future__ import annotations

import dataclasses
import datetime
import logging
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from ..errors import EnvironmentFault, StudyError
from ..records import DEFAULT, Candidate, Failure, Launch, Measurement, Outcome, Purpose, Reach, Request
from ..trial import model_check, runner
from ..trial.paths import LaunchPaths
from .entries import NEVER_AGAIN, Intent, NoiseFloor, Note, TrialEntry
from .judgement import INFRASTRUCTURE_TRIES, Judgement, accuses_machine, judge
from .ledger import Ledger
from .ranking import Ranked, best, merged
from .search import Proposal, Search
from .stats import relative_spread

_log = logging.getLogger(__name__)

DRIFT_EVERY = 8
"""Trials between two launches of the default."""
FAILED_IN_A_ROW = 4
"""Failed trials in a row after which the default is asked whether the machine still works."""
SIMPLER_COSTS_AT_MOST = 0.01
"""Of two candidates within the noise the simpler one is taken, yet never when it seems slower by more than this: where
the noise is large, a tie is no reason to give up the faster one before the fresh rounds have looked at it."""
LOST_IN_A_ROW = 3
"""Trials in a row lost to the infrastructure after which going on makes no sense."""


class Runner(Protocol):
    """What runs one launch: ``trial.runner`` for real, a fake in tests."""

    def run(self, request: Request) -> Outcome:
        """Run one launch to its end.

        Raises:
            Interrupted: The user or the system asked to stop.
        """
        ...


def held_against_default(outcome: Outcome, request: Request, launches: Iterable[Launch]) -> Outcome:
    """Hold the first step of a model against that of the default's launches.

    Settings of a CPU change how the model computes: another number of threads sums in another order, which
    normalization over few values blows up. There the known-answer collectives must do.

    Args:
        outcome: Of a launch.
        request: The same launch's.
        launches: Of the study so far.

    Returns:
        The outcome, or a failure where the model came to something else.
    """
    if request.candidate.is_default or request.backend != "nccl":
        return outcome
    return model_check.judged(outcome, [each.outcome for each in launches if each.candidate.is_default])


def take_over(ledger: Ledger) -> list[Launch]:
    """Take over the complete results that a killed run left, as far as they would have counted had it lived on.

    Args:
        ledger: Of the study; gets the launches.

    Raises:
        StorageError: The ledger cannot be written.
    """

    def conclude(request: Request, _measurement: Measurement, _paths: LaunchPaths) -> Outcome | None:
        outcome = runner.adopt(ledger.folder, request.launch_id)
        return outcome and held_against_default(outcome, request, ledger.launches)

    return ledger.adopt(conclude=conclude)


class Observer(Protocol):
    """Who wants to know how it goes: the terminal, the tracking."""

    def on_launch_start(self, intent: Intent) -> None:
        """A launch is about to start."""

    def on_launch_end(self, launch: Launch) -> None:
        """A launch has ended and stands in the ledger."""

    def on_trial(self, trial: TrialEntry, best: Ranked | None) -> None:
        """A trial is judged and stands in the ledger; ``best`` is the best candidate so far."""

    def on_note(self, text: str) -> None:
        """Something worth saying happened."""


class Observers:
    """Several observers as one.

    Args:
        observers: Told in this order.
    """

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers

    def on_launch_start(self, intent: Intent) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.on_launch_start(intent)

    def on_launch_end(self, launch: Launch) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.on_launch_end(launch)

    def on_trial(self, trial: TrialEntry, best: Ranked | None) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.on_trial(trial, best)

    def on_note(self, text: str) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.on_note(text)


@dataclasses.dataclass(frozen=True)
class Budget:
    """What a search may spend in all, earlier runs of the study included.

    Attributes:
        trials: Trials that cost a launch.
        seconds: Wall time of launches; ``None`` for no limit.
        least: Trials that are launched however long it takes, the default's own included.
    """

    trials: int
    seconds: float | None = None
    least: int = 0


class Campaign:
    """Launches, and what is made of them.

    Args:
        ledger: Where everything is written first.
        runner: Runs one launch.
        request_for: Candidate, launch id and purpose to the request.
        observer: Is told after the ledger is written.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        ledger: Ledger,
        runner: Runner,
        request_for: Callable[[Candidate, str, Purpose], Request],
        observer: Observer | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ledger = ledger
        self._runner = runner
        self._request_for = request_for
        self._observer: Observer = observer or Observers()
        self._clock = clock

    # ---- one launch

    def launch(
        self, candidate: Candidate, purpose: Purpose, trial: int | None = None, round: int | None = None
    ) -> Launch:
        """Launch a candidate; after a fault of the infrastructure up to two times more. Each try is in the ledger.

        Returns:
            The last try.

        Raises:
            Interrupted: Asked to stop; what was measured before is kept.
            StorageError: The ledger cannot be written.
        """
        for attempt in range(1, INFRASTRUCTURE_TRIES + 1):
            launch = self._launch_once(candidate, purpose, trial, round, attempt)
            outcome = launch.outcome
            if not (isinstance(outcome, Failure) and outcome.blame == "infrastructure") or outcome.stop:
                break
        return launch

    def _launch_once(
        self, candidate: Candidate, purpose: Purpose, trial: int | None, round: int | None, attempt: int
    ) -> Launch:
        launch_id = f"{len(self._ledger.intents):04d}-{purpose}"
        intent = Intent(
            launch_id=launch_id,
            purpose=purpose,
            candidate=candidate,
            trial=trial,
            round=round,
            attempt=attempt,
            started_at=_now(),
            folder=f"launches/{launch_id}",
        )
        request = self._request_for(candidate, launch_id, purpose)
        self._ledger.append(intent)
        self._observer.on_launch_start(intent)
        start = self._clock()
        outcome = held_against_default(self._runner.run(request), request, self._ledger.launches)
        launch = Launch(**dict(intent), wall_s=self._clock() - start, outcome=outcome)
        self._ledger.append(launch)
        self._observer.on_launch_end(launch)
        return launch

    def note(self, text: str) -> None:
        """Write a note into the ledger and say it."""
        self._ledger.append(Note(at=_now(), text=text))
        self._observer.on_note(text)

    # ---- the default

    def default(self, purpose: Purpose, trial: int | None = None) -> Launch:
        """Measure the default; a second try is given where a first fails.

        Raises:
            EnvironmentFault: The machine is at fault, every candidate would fail.
            StudyError: The default fails, so that there is nothing to compare with.
        """
        launch = self.launch(DEFAULT, purpose, trial)
        if isinstance(launch.outcome, Failure) and not launch.outcome.stop:
            launch = self.launch(DEFAULT, purpose, trial)
        if isinstance(launch.outcome, Failure):
            raise self._default_fails(launch, launch.outcome)
        return launch

    def _default_fails(self, launch: Launch, outcome: Failure) -> StudyError | EnvironmentFault:
        kind = EnvironmentFault if accuses_machine(outcome) else StudyError
        return kind(
            f"the default settings fail here ({outcome.name}): {outcome.message}",
            outcome.advice or f"read launch.log in {self._ledger.folder / launch.folder}",
        )

    def noise_floor(self, n: int, foresee: Callable[[NoiseFloor], Reach | None] = lambda _: None) -> NoiseFloor:
        """Measure how much launches of the default differ; launches of an earlier run count.

        Args:
            n: Launches wanted, at least two.
            foresee: Says what the study can show at this noise; kept with it.

        Raises:
            EnvironmentFault: See ``default``.
            StudyError: See ``default``.
        """
        self.noise_launches(max(2, n))
        medians = self._noise_medians()
        floor = NoiseFloor(relative=relative_spread(medians), medians=tuple(medians), n=len(medians))
        floor = floor.model_copy(update={"reach": foresee(floor)})
        if floor != self._ledger.noise:
            self._ledger.append(floor)
        return floor

    def noise_launches(self, n: int) -> None:
        """Launch the default until there are so many launches for the noise floor; see ``noise_floor``."""
        while len(self._noise_medians()) < n:
            self.default("noise-floor", trial=0)

    def _noise_medians(self) -> list[float]:
        return [
            launch.outcome.median_us
            for launch in self._ledger.launches
            if launch.purpose == "noise-floor" and isinstance(launch.outcome, Measurement)
        ]

    # ---- the search

    def search(self, search: Search, budget: Budget) -> None:
        """Measure what the search proposes until the budget is spent. A study that was cut off goes on in its trial.

        Raises:
            EnvironmentFault: Every candidate would fail here.
            StudyError: The default fails, or the infrastructure does again and again.
            Interrupted: Asked to stop.
        """
        while True:
            if self._drift_due() and not self._spent(search, budget):
                self.default("drift")
            proposal = self._unfinished(search) or (None if self._spent(search, budget) else search.propose())
            if proposal is None:
                return
            self._ledger.append(*proposal.skipped)
            self._trial(search, proposal)
            self._check_lost()

    def _spent(self, search: Search, budget: Budget) -> bool:
        if search.spent >= budget.trials:
            return True
        if budget.seconds is None or search.spent < budget.least:
            return False
        return sum(launch.wall_s for launch in self._ledger.launches) >= budget.seconds

    def _unfinished(self, search: Search) -> Proposal | None:
        """Return the trial whose launches are in the ledger without a judgement, after a kill."""
        number = len(search.trials)
        if number == 0:
            return None  # trial 0 is the default; the search proposes it
        for launch in reversed(self._ledger.launches):
            if launch.trial == number:
                return search.again(launch.candidate)
        return None

    def _trial(self, search: Search, proposal: Proposal) -> None:
        purpose: Purpose = "search" if proposal.repeat_of is None else "repeat"
        while True:
            step = judge(self._ledger.launches, proposal.candidate, proposal.number)
            if isinstance(step, Judgement):
                break
            if step == "ask the default":
                self.default("drift")
            elif proposal.candidate.is_default:
                self.default(purpose, proposal.number)
            else:
                self.launch(proposal.candidate, purpose, proposal.number)
        trial = TrialEntry(number=proposal.number, candidate=proposal.candidate, **dataclasses.asdict(step))
        self._ledger.append(trial)
        search.tell(trial)
        self._observer.on_trial(trial, next(iter(ranked(self._ledger)), None))
        self._note_merged(proposal.candidate)

    def _note_merged(self, candidate: Candidate) -> None:
        same = merged(self._ledger.launches).get(candidate)
        if same is None:
            return
        inert = " ".join(name for name in candidate.settings if name not in same.settings)
        text = f"{inert} was never consulted: {candidate} counts as {same}"
        if text not in {note.text for note in self._ledger.notes}:
            self.note(text)

    def _check_lost(self) -> None:
        last = self._ledger.trials[-LOST_IN_A_ROW:]
        if len(last) == LOST_IN_A_ROW and all(trial.state == "lost" for trial in last):
            raise StudyError(
                f"{LOST_IN_A_ROW} trials in a row were lost to the infrastructure; the last: {last[-1].reason}",
                "mend it, then run the same command again",
            )

    def _drift_due(self) -> bool:
        """Say whether the default is to be measured: at intervals, and when nothing else works any more."""
        since: list[TrialEntry] = []
        for entry in reversed(self._ledger.entries):
            if isinstance(entry, Launch) and entry.candidate.is_default:
                break
            if isinstance(entry, TrialEntry) and entry.launched and not entry.candidate.is_default:
                since.append(entry)
        failed = since[:FAILED_IN_A_ROW]
        return len(since) >= DRIFT_EVERY or (
            len(failed) == FAILED_IN_A_ROW and all(trial.state == "infeasible" for trial in failed)
        )


def ranked(ledger: Ledger) -> list[Ranked]:
    """Rank the candidates of a study, best first; see ``ranking.best``."""
    return _ranked(ledger, ledger.launches)


def ranked_by_search(ledger: Ledger) -> list[Ranked]:
    """Rank as the search left it: what befell a candidate in its fresh rounds does not change who entered them."""
    return _ranked(ledger, [launch for launch in ledger.launches if launch.purpose != "confirm"])


def _ranked(ledger: Ledger, launches: list[Launch]) -> list[Ranked]:
    barred = [trial.candidate for trial in ledger.trials if trial.constraint >= NEVER_AGAIN and trial.launched]
    noise = ledger.noise.relative if ledger.noise else 0.0
    return best(launches, min(noise, SIMPLER_COSTS_AT_MOST), barred)


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
