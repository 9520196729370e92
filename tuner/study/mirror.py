"""A copy of the trials in an Optuna storage, for Optuna's own tools. It may fail without harm to the search."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import optuna

_log = logging.getLogger(__name__)

_LOCK_WAIT_S = 1
"""How long a locked SQLite file may hold up a trial, once; after that the mirror is given up for this run."""


class Mirror:
    """Finished trials, added in order. The first failure costs one warning and ends the copying for this run.

    Args:
        url: An SQLAlchemy URL, or ``None`` for no copy.
        study_name: Name of the study in the storage.
    """

    def __init__(self, url: str | None, study_name: str) -> None:
        self._url = url
        self._name = study_name
        self._study: optuna.Study | None = None
        self._copied = 0

    @property
    def alive(self) -> bool:
        """Whether trials are still copied."""
        return self._url is not None

    def sync(self, trials: Sequence[optuna.trial.FrozenTrial]) -> None:
        """Add the trials that the storage lacks.

        Args:
            trials: All of the study so far, in order.
        """
        if self._url is None:
            return
        try:
            if self._study is None:
                self._study, self._copied = self._open(self._url, trials)
            for trial in trials[self._copied :]:
                self._study.add_trial(trial)
                self._copied += 1
        except Exception as error:  # whatever a storage can raise: the ledger has it all
            self._url, self._study = None, None
            first = str(error).strip().splitlines() or [type(error).__name__]
            _log.warning("the Optuna storage cannot be written, the search goes on without it: %s", first[0][:200])

    def _open(self, url: str, trials: Sequence[optuna.trial.FrozenTrial]) -> tuple[optuna.Study, int]:
        import optuna

        options: dict[str, Any] = {"connect_args": {"timeout": _LOCK_WAIT_S}} if url.startswith("sqlite") else {}
        storage = optuna.storages.RDBStorage(url, engine_kwargs=options)
        study = optuna.create_study(storage=storage, study_name=self._name, direction="minimize", load_if_exists=True)
        if study.direction != optuna.study.StudyDirection.MINIMIZE:
            raise ValueError(f"the study {self._name} in the storage maximizes")
        stored = study.get_trials(deepcopy=False)
        if [_mark(trial) for trial in stored] == [_mark(trial) for trial in trials[: len(stored)]]:
            return study, len(stored)
        # Somebody else's trials, or those of a ledger that was removed: what stands there is not this study.
        _log.info("the Optuna study %s does not match the ledger; it is written anew", self._name)
        optuna.delete_study(study_name=self._name, storage=storage)
        return optuna.create_study(storage=storage, study_name=self._name, direction="minimize"), 0


def _mark(trial: optuna.trial.FrozenTrial) -> tuple[Any, ...]:
    return trial.state, trial.value, tuple(sorted(trial.params.items(), key=lambda item: item[0]))
