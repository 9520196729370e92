"""The MLflow mirror: one parent run a study, a child run a trial, written by a thread beside the search.

The ledger has it all, so MLflow may be dead, slow or missing: that costs one warning and nothing else. What a run could
not log is added by the next one, which finds in the tags what is already there.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from typing import Literal, TypeAlias

from ..records import Disturbed, Launch, Verdict
from .entries import Intent, NoiseFloor, TrialEntry
from .ledger import Ledger
from .mlflow_store import Store
from .ranking import Ranked

_log = logging.getLogger(__name__)

Ending: TypeAlias = Literal["FINISHED", "FAILED", "KILLED"]
_Job: TypeAlias = Callable[[Store], None]

DATABASE = "mlflow.db"
ARTIFACTS = "mlflow-artifacts"
CLOSE_S = 15.0
"""Longest wait for the last writes at the end. A dead server ends the thread sooner, by its request timeout."""

_SETTINGS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",  # by default a dead server blocks a call for minutes
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "3",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",
}


class Tracker:
    """Copies a study to MLflow; an ``Observer`` of the campaign.

    Args:
        ledger: The study; what it holds already is copied first.
        study: Name of the study.
        uri: Where MLflow is; else ``MLFLOW_TRACKING_URI``, else an SQLite file in the study folder.
        environ: Where that is looked up, and where MLflow's own limits are set unless the user has set them.
    """

    def __init__(
        self,
        ledger: Ledger,
        study: str,
        uri: str | None = None,
        environ: MutableMapping[str, str] = os.environ,
    ) -> None:
        folder = ledger.folder.absolute()
        given = uri or environ.get("MLFLOW_TRACKING_URI") or None
        self.uri = given or f"sqlite:///{folder / DATABASE}"
        self._environ = environ
        self._store = Store(
            uri=self.uri,
            folder=folder,
            artifacts=folder / ARTIFACTS,
            owns_store=given is None,
            study=study,
            study_id=ledger.id or study,
            plan=ledger.plan,
        )
        self._launches, self._trials = ledger.launches, ledger.trials
        self._noise, self._verdict = ledger.noise, ledger.verdict
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._over = threading.Event()
        self._warned = False
        self._thread = threading.Thread(target=self._work, name="mlflow", daemon=True)
        self._started = False

    @property
    def alive(self) -> bool:
        """Whether anything is still copied."""
        return not self._over.is_set()

    def start(self) -> None:
        """Start copying; returns at once."""
        # Here and not in the thread: another thread may be reading the environment while a launch is started.
        for name, value in _SETTINGS.items():
            self._environ.setdefault(name, value)
        launches, trials, noise, verdict = self._launches, self._trials, self._noise, self._verdict
        self._jobs.put(lambda store: store.catch_up(launches, trials, noise, verdict))
        self._started = True
        self._thread.start()

    # ---- Observer

    def on_launch_start(self, intent: Intent) -> None:
        """Nothing: a launch is copied when it has ended."""

    def on_launch_end(self, launch: Launch) -> None:
        """Copy a launch."""
        self._put(lambda store: store.launch(launch))

    def on_trial(self, trial: TrialEntry, best: Ranked | None) -> None:
        """Copy a trial's judgement, and who is best."""
        self._put(lambda store: store.trial(trial, best))

    def on_note(self, text: str) -> None:
        """Nothing: notes are for people."""

    def noise_floor(self, floor: NoiseFloor) -> None:
        """Copy the noise floor, and what the study can show at it."""
        self._put(lambda store: store.noise_floor(floor))

    # ---- the end

    def verdict(self, verdict: Verdict, disturbances: Disturbed) -> None:
        """Copy the verdict, and how many launches were disturbed."""
        self._put(lambda store: store.verdict(verdict, disturbances))

    def close(self, ending: Ending = "FINISHED", wait_s: float = CLOSE_S) -> None:
        """End the parent run and wait for the last writes, no longer than ``wait_s`` seconds."""
        if not self._started:
            return
        self._put(lambda store: store.end(ending))
        self._jobs.put(None)
        self._thread.join(wait_s)
        if self._thread.is_alive():
            self._warn(f"it did not take everything within {wait_s:.0f} s; the next run of this study adds the rest")
        self._over.set()

    # ---- the thread

    def _put(self, job: _Job) -> None:
        if self.alive:
            self._jobs.put(job)

    def _work(self) -> None:
        try:
            with suppress(OSError, AttributeError):
                # The launches need the cores more than this thread does; on Linux a thread has a nice value of its own.
                # Not the lowest: while it holds the interpreter's lock, the main thread waits for it.
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
            start = time.monotonic()
            self._store.connect()
            _log.debug("MLflow at %s after %.1f s", self.uri, time.monotonic() - start)
            while (job := self._jobs.get()) is not None:
                if not self.alive:
                    return
                job(self._store)
        except Exception as error:  # whatever MLflow, its database or its server can raise
            first = str(error).strip().splitlines() or [type(error).__name__]
            self._warn(first[0][:200])
        finally:
            self._over.set()

    def _warn(self, why: str) -> None:
        if not self._warned and self.alive:
            self._warned = True
            _log.warning(
                "MLflow at %s is not used any further, nothing else is lost: %s", _without_password(self.uri), why
            )


def _without_password(uri: str) -> str:
    scheme, separator, rest = uri.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}" if separator else uri
