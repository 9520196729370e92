"""What to measure next: Optuna's TPE where the space is large, every candidate in turn where it is small.

The sampler works on a study in memory, which is rebuilt from the ledger's trials; the storage is only a mirror. Each
proposal draws with a seed made from the study's seed and the number of trials so far, so that a resumed search
proposes what the uninterrupted one would have.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..records import DEFAULT, Candidate, Space
from ..space.enumeration import candidates
from .entries import NEVER_AGAIN, TrialEntry
from .mirror import Mirror

if TYPE_CHECKING:
    import optuna

_log = logging.getLogger(__name__)

SAMPLE_CAP = 3
"""Launched trials of one candidate after which a further proposal of it is answered from what is known."""
_SKIP_LIMIT = 20
"""Proposals in a row that cost no launch before the sampler is passed over for a uniform draw."""
_REPEAT_AMONG = 3
"""How many of the best share the repeats once every candidate is measured."""
_NEAR = 1.5
"""How far behind the best, as a factor, a candidate may be and still get one of these repeats."""
_DRAWS = 2000
_LISTED = 200_000
"""Most combinations that are looked at one by one."""


@dataclass(frozen=True)
class Proposal:
    """A candidate to launch.

    Attributes:
        number: Of the trial.
        repeat_of: The trial that measured the same candidate first; ``None`` for a new one.
        skipped: Trials that were told before it without a launch; they belong in the ledger first.
    """

    number: int
    candidate: Candidate
    repeat_of: int | None = None
    skipped: tuple[TrialEntry, ...] = ()


class Search:
    """Ask and tell over a space.

    Args:
        space: What may be tried, narrowed to the machine.
        illegal: Reason why a candidate must not be launched, or ``None``.
        budget: Trials with a launch, in all, those of ``history`` among them.
        seed: Of every draw.
        storage_url: Where Optuna's copy goes; ``None`` for nowhere.
        study_name: Name in that storage.
        history: Trials so far, in order, as the ledger holds them.
    """

    def __init__(
        self,
        space: Space,
        illegal: Callable[[Candidate], str | None],
        budget: int,
        seed: int,
        storage_url: str | None,
        study_name: str,
        history: Sequence[TrialEntry] = (),
    ) -> None:
        self._space = space
        self._illegal = illegal
        self._budget = budget
        self._seed = seed
        self._trials: list[TrialEntry] = []
        self._asked: optuna.Trial | None = None
        self._mirror = Mirror(storage_url, study_name)
        self._optuna = _quiet_optuna()
        self._distributions = {
            dimension.name: self._optuna.distributions.CategoricalDistribution(_choices(dimension.values))
            for dimension in space.dimensions
        }
        self._study = self._optuna.create_study(direction="minimize")
        self._all = self._list_if_few()
        self.rebuild(history)

    @property
    def trials(self) -> tuple[TrialEntry, ...]:
        """All that was told, in order."""
        return tuple(self._trials)

    @property
    def exhaustive(self) -> bool:
        """Whether the budget is enough to measure every distinct legal candidate."""
        return self._all is not None

    @property
    def spent(self) -> int:
        """Trials that cost a launch."""
        return sum(trial.launched for trial in self._trials)

    # ---- ask

    def propose(self) -> Proposal | None:
        """Return what to launch next, or ``None`` when the budget is spent or nothing is left to learn."""
        if self.spent >= self._budget:
            return None
        if not self._trials:
            return self._proposal(DEFAULT, ())
        if self._all is not None:
            candidate = self._next_listed(self._all)
            return None if candidate is None else self._proposal(candidate, ())
        for candidate in self._space.start:
            if self._is_new(candidate) and not self._illegal(candidate):
                return self._proposal(candidate, ())
        return self._sampled()

    def _sampled(self) -> Proposal | None:
        skipped: list[TrialEntry] = []
        while len(skipped) < _SKIP_LIMIT:
            candidate = self._ask()
            refusal = self._refusal(candidate)
            if refusal is None:
                return self._proposal(candidate, tuple(skipped))
            self._remember(refusal)
            skipped.append(refusal)
        fresh = self._draw_untried()
        if fresh is not None:
            return self._proposal(fresh, tuple(skipped))
        again = self._best_to_repeat()
        return None if again is None else self._proposal(again, tuple(skipped))

    def _ask(self) -> Candidate:
        startup = min(10, max(4, self._budget // 4))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", self._optuna.exceptions.ExperimentalWarning)
            self._study.sampler = self._optuna.samplers.TPESampler(
                seed=self._draw_seed(), multivariate=True, n_startup_trials=startup
            )
            self._asked = self._study.ask(self._distributions)
        return _candidate(self._asked.params)

    def _refusal(self, candidate: Candidate) -> TrialEntry | None:
        """Tell a proposal that is not worth a launch, as the trial that it becomes; ``None`` when it is worth one."""
        number = len(self._trials)
        reason = self._outside(candidate) or self._illegal(candidate)
        if reason:
            return TrialEntry(
                number=number, candidate=candidate, state="illegal", constraint=NEVER_AGAIN, reason=reason
            )
        barred = self._barred(candidate)
        if barred is not None:
            return TrialEntry(
                number=number, candidate=candidate, state="known", constraint=barred.constraint, reason=barred.reason
            )
        if candidate.is_default or self._launched(candidate) >= SAMPLE_CAP:
            value = self._value(candidate)
            return TrialEntry(
                number=number,
                candidate=candidate,
                state="known",
                value_us=value,
                constraint=0.0 if value is not None else NEVER_AGAIN,
                reason="sampled often enough",
            )
        return None

    def _proposal(self, candidate: Candidate, skipped: tuple[TrialEntry, ...]) -> Proposal:
        first = next((trial.number for trial in self._trials if trial.candidate == candidate and trial.launched), None)
        return Proposal(len(self._trials), candidate, first, skipped)

    def again(self, candidate: Candidate) -> Proposal:
        """Return the next trial with a given candidate: the one that a killed run was about to measure."""
        return self._proposal(candidate, ())

    # ---- tell

    def tell(self, trial: TrialEntry) -> None:
        """Tell what became of a proposal. Entries come in the order of their numbers.

        Raises:
            ValueError: The number is not the next one.
        """
        self._remember(trial)
        self._mirror.sync(self._study.get_trials(deepcopy=False))

    def rebuild(self, history: Sequence[TrialEntry]) -> None:
        """Tell trials of an earlier run, and bring the mirror up to date."""
        for trial in history:
            self._remember(trial)
        if history:
            self._mirror.sync(self._study.get_trials(deepcopy=False))

    def _remember(self, trial: TrialEntry) -> None:
        if trial.number != len(self._trials):
            raise ValueError(f"trial {trial.number} told where {len(self._trials)} is next")
        asked, self._asked = self._asked, None
        state, value = self._as_optuna(trial)
        params = self._params(trial.candidate)
        failed = self._optuna.trial.TrialState.FAIL
        about = {"state": trial.state, "candidate": trial.candidate.key}
        if asked is not None:
            if asked.params != params:
                raise ValueError(f"trial {trial.number} told with {trial.candidate}, not with what was proposed")
            for name, text in about.items():
                asked.set_user_attr(name, text)
            asked.set_constraint("feasible", trial.constraint)
            self._study.tell(asked, None if state == failed else value, state)
        else:
            self._study.add_trial(
                self._optuna.trial.create_trial(
                    state=state,
                    value=None if state == failed else value,
                    params=params or {},
                    distributions=self._distributions if params else {},
                    constraints={"feasible": trial.constraint},
                    user_attrs=about,
                )
            )
        self._trials.append(trial)

    def _as_optuna(self, trial: TrialEntry) -> tuple[optuna.trial.TrialState, float]:
        """Optuna's state and value of a trial.

        Infeasible trials are complete ones with a constraint above 0 and a finite value: FAIL is ignored by TPE, which
        then goes on proposing the crashing half of a space. FAIL is for what is charged to nobody.
        """
        states = self._optuna.trial.TrialState
        measured = [other.value_us for other in self._trials if other.value_us is not None]
        value = trial.value_us if trial.value_us is not None else max(measured, default=0.0)
        if trial.state == "lost" or self._params(trial.candidate) is None:
            return states.FAIL, value
        return states.COMPLETE, value

    # ---- what is known

    def _value(self, candidate: Candidate) -> float | None:
        values = [
            trial.value_us for trial in self._trials if trial.candidate == candidate and trial.value_us is not None
        ]
        return values[-1] if values else None

    def _launched(self, candidate: Candidate) -> int:
        return sum(trial.launched for trial in self._trials if trial.candidate == candidate)

    def _barred(self, candidate: Candidate) -> TrialEntry | None:
        for trial in self._trials:
            if trial.candidate == candidate and trial.constraint >= NEVER_AGAIN and trial.state != "illegal":
                return trial
        return None

    def _is_new(self, candidate: Candidate) -> bool:
        return not any(trial.candidate == candidate for trial in self._trials)

    def _best_to_repeat(self) -> Candidate | None:
        """Return the least sampled of the best; the default is left out, since it is measured anyway.

        A candidate that is far behind the best gets no further launch: more samples of it decide nothing.
        """
        scored: dict[Candidate, float] = {}
        for trial in self._trials:
            if trial.value_us is not None and not trial.candidate.is_default and not self._barred(trial.candidate):
                scored[trial.candidate] = trial.value_us
        best = sorted(scored, key=lambda candidate: scored[candidate])[:_REPEAT_AMONG]
        near = [candidate for candidate in best if scored[candidate] <= _NEAR * scored[best[0]]]
        return min(near, key=self._launched, default=None)

    # ---- small spaces

    def _list_if_few(self) -> list[Candidate] | None:
        """Return all legal candidates in a seeded order when the budget covers them, the default and starts first."""
        combinations = 1
        for choices in (distribution.choices for distribution in self._distributions.values()):
            combinations *= len(choices)
        if combinations > _LISTED:
            return None
        legal = list(itertools.islice(self._legal(), self._budget + 1))
        if len(legal) > self._budget:
            return None
        first = [DEFAULT, *(candidate for candidate in self._space.start if not self._illegal(candidate))]
        rest = [candidate for candidate in legal if candidate not in first]
        random.Random(self._seed).shuffle(rest)
        return [*dict.fromkeys(first), *rest]

    def _legal(self) -> Iterator[Candidate]:
        """Yield all legal candidates of the space, the default first whether the space holds it or not."""
        yield DEFAULT
        yield from candidates(self._space, lambda candidate: not candidate.is_default and not self._illegal(candidate))

    def _next_listed(self, listed: Sequence[Candidate]) -> Candidate | None:
        return next((candidate for candidate in listed if self._is_new(candidate)), None) or self._best_to_repeat()

    def _draw_untried(self) -> Candidate | None:
        draw = random.Random(self._draw_seed())
        tried = {trial.candidate for trial in self._trials}
        for _ in range(_DRAWS):
            candidate = _candidate({name: draw.choice(kind.choices) for name, kind in self._distributions.items()})
            if candidate not in tried and not self._outside(candidate) and not self._illegal(candidate):
                return candidate
        return next(
            (candidate for candidate in itertools.islice(self._legal(), _LISTED) if candidate not in tried), None
        )

    # ---- encoding

    def _outside(self, candidate: Candidate) -> str | None:
        """Say which knob is unset although the space always sets it; the default may leave all unset."""
        if candidate.is_default:
            return None
        for dimension in self._space.dimensions:
            if candidate.settings.get(dimension.name) not in dimension.values:
                return f"{dimension.name} is always set in the space {self._space.name}"
        return None

    def _params(self, candidate: Candidate) -> dict[str, Any] | None:
        """Return the candidate as Optuna's parameters; ``None`` when the space cannot say it."""
        if not set(candidate.settings) <= set(self._distributions):
            return None
        params = {name: candidate.settings.get(name) for name in self._distributions}
        if any(value not in self._distributions[name].choices for name, value in params.items()):
            return None
        return params

    def _draw_seed(self) -> int:
        digest = hashlib.sha256(f"{self._seed} {len(self._trials)}".encode()).digest()
        return int.from_bytes(digest[:4], "big")


def _choices(values: Sequence[str | None]) -> tuple[str | None, ...]:
    """Return the choices, ``None`` for unset among them, so that the default can be told in every space."""
    return tuple(values) if None in values else (None, *values)


def _candidate(params: dict[str, Any]) -> Candidate:
    return Candidate(settings={name: str(value) for name, value in params.items() if value is not None})


def _quiet_optuna() -> Any:
    """Import Optuna; its messages go to its logger without its own handler on stderr."""
    import optuna

    optuna.logging.disable_default_handler()
    optuna.logging.enable_propagation()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
