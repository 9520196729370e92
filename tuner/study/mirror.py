"""A copy of the trials in an Optuna storage, for Optuna's own tools. It may fail without harm to the search."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import optuna

_log = logging.getLogger(__name__)

_LOCK_WAIT_S = 0.2
"""How long a trial waits for a locked SQLite file. Optuna itself would sleep and try again for up to ten seconds."""


class Mirror:
    """Finished trials, added in order.

    A locked SQLite file is passed over until it is free; any other failure ends the copying for this run. Either costs
    one warning.

    Args:
        url: An SQLAlchemy URL, or ``None`` for no copy.
        study_name: Name of the study in the storage.
    """

    def __init__(self, url: str | None, study_name: str) -> None:
        self._url = url
        self._name = study_name
        self._study: optuna.Study | None = None
        self._copied = 0
        self._warned = False

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
            if _is_locked(self._url):
                self._warn("the file is locked; the trials are added once it is free")
                return
            if self._study is None:
                self._study, self._copied = self._open(self._url, trials)
            for trial in trials[self._copied :]:
                self._study.add_trial(trial)
                self._copied += 1
        except Exception as error:  # whatever a storage can raise: the ledger has it all
            self._url, self._study = None, None
            self._warn((str(error).strip().splitlines() or [type(error).__name__])[0][:200])

    def _warn(self, why: str) -> None:
        if not self._warned:
            self._warned = True
            _log.warning("the Optuna storage cannot be written, the search goes on without it: %s", why)

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


def _is_locked(url: str) -> bool:
    """Say whether the URL is an SQLite file that another process is writing to just now."""
    from sqlalchemy import make_url

    file = make_url(url).database
    if not url.startswith("sqlite") or not file or not Path(file).exists():
        return False
    with closing(sqlite3.connect(file, timeout=_LOCK_WAIT_S, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            return "locked" in str(error)
        connection.execute("ROLLBACK")
    return False


def _mark(trial: optuna.trial.FrozenTrial) -> tuple[Any, ...]:
    return trial.state, trial.value, tuple(sorted(trial.params.items(), key=lambda item: item[0]))
