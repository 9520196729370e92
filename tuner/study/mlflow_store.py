"""What stands in MLflow, and how: the only module that calls it. Every call may raise; ``tracking`` sees to that."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..records import Candidate, Disturbed, Launch, Measurement, Verdict
from ..trial.paths import launch_paths
from . import disturbed
from .entries import NoiseFloor, TrialEntry
from .ranking import Ranked

if TYPE_CHECKING:
    from mlflow import MlflowClient

EXPERIMENT = "nccltune"
PARENT = "mlflow.parentRunId"
STUDY_ID = "nccltune.study_id"
GROUP = "nccltune.group"
STATE = "nccltune.state"
LAUNCH = "nccltune.launch."
DISTURBED = "nccltune.disturbed."

_BATCH = 100
"""Parameters or tags a call: the limit of MLflow's REST interface."""
_LONGEST = 500
"""Characters of a parameter or tag; the smallest limit among MLflow's stores of the last years."""


def clean_name(name: str) -> str:
    """Turn any text into a name that MLflow takes, the one place for that.

    MLflow refuses a whole batch for one name with a bracket, colon, comma or @ in it; and names that are no plain
    relative path (``a//b``, ``../a``).
    """
    cleaned = re.sub(r"[^A-Za-z0-9_\-./ ]", "_", name)
    cleaned = "/".join(part for part in cleaned.split("/") if part.strip(". "))
    return cleaned[:200] or "_"


@dataclass
class _Child:
    """A child run: its id and the ids of the launches that it holds."""

    run_id: str
    launches: set[str] = field(default_factory=set)
    state: str | None = None


@dataclass
class Store:
    """One study in MLflow.

    Attributes:
        uri: Where MLflow is.
        folder: The study folder, absolute.
        artifacts: Where artifacts go when the store is a database.
        owns_store: Whether the database is the study's own, in its folder.
        study: Name of the study.
        study_id: What finds the study's parent run again.
        plan: What the study is for; the parent's parameters.
    """

    uri: str
    folder: Path
    artifacts: Path
    owns_store: bool
    study: str
    study_id: str
    plan: Mapping[str, Any]
    _children: dict[str, _Child] = field(default_factory=dict)
    _parent: str = ""
    _experiment: str = ""
    _mlflow: MlflowClient | None = None

    @property
    def _client(self) -> MlflowClient:
        if self._mlflow is None:
            raise RuntimeError("not connected")
        return self._mlflow

    # ---- connect

    def connect(self) -> None:
        """Import MLflow, find or make experiment and parent run, and end what a killed run left running."""
        root = logging.getLogger()
        handlers, level = root.handlers[:], root.level
        try:
            from mlflow import MlflowClient

            for name in ("mlflow", "alembic", "urllib3.connectionpool"):
                logging.getLogger(name).setLevel(logging.CRITICAL)
            self._mlflow = MlflowClient(tracking_uri=self.uri)
            self._experiment = self._find_experiment()
        finally:
            # Before MLflow 3.7 its migrations of a database replace the root logger's handlers.
            if root.handlers != handlers:
                root.handlers[:] = handlers
                root.setLevel(level)
        self._parent = self._find_parent()
        for run in self._runs(f"tags.`{PARENT}` = '{self._parent}'"):
            tags = run.data.tags
            logged = {name.removeprefix(LAUNCH) for name in tags if name.startswith(LAUNCH)}
            self._children[tags.get(GROUP, "")] = _Child(run.info.run_id, logged, tags.get(STATE))
            if run.info.status == "RUNNING":
                self._client.set_terminated(run.info.run_id, "KILLED")

    def _find_experiment(self) -> str:
        place = None if self.uri.startswith(("http:", "https:", "databricks")) else self.artifacts.as_uri()
        found = self._client.get_experiment_by_name(EXPERIMENT)
        if found is not None and (not self.owns_store or found.artifact_location == place):
            return str(found.experiment_id)
        if found is not None:
            # The study folder was carried elsewhere; an experiment's place for artifacts cannot be changed.
            self._client.rename_experiment(found.experiment_id, f"{EXPERIMENT} before move {found.experiment_id}")
        return str(self._client.create_experiment(EXPERIMENT, artifact_location=place))

    def _find_parent(self) -> str:
        for run in self._runs(f"tags.`{STUDY_ID}` = '{self.study_id}'"):
            self._client.update_run(run.info.run_id, status="RUNNING")
            return str(run.info.run_id)
        tags = {STUDY_ID: self.study_id, "nccltune.study": self.study, "nccltune.folder": self.folder.name}
        run = self._client.create_run(self._experiment, run_name=self.study, tags=tags)
        self._log(run.info.run_id, params=dict(_flat(self.plan)))
        return str(run.info.run_id)

    def _runs(self, condition: str) -> Iterator[Any]:
        token = None
        while True:
            page = self._client.search_runs([self._experiment], condition, page_token=token)
            yield from page
            token = page.token
            if not token:
                return

    # ---- copy

    def catch_up(
        self,
        launches: Sequence[Launch],
        trials: Sequence[TrialEntry],
        noise: NoiseFloor | None,
        verdict: Verdict | None,
    ) -> None:
        """Add what the ledger has and MLflow has not."""
        if noise is not None:
            self.noise_floor(noise)
        for launch in launches:
            self.launch(launch)
        for trial in trials:
            self.trial(trial, None)
        if verdict is not None:
            self.verdict(verdict, disturbed.count(launches))

    def launch(self, launch: Launch) -> None:
        """Add a launch to the child run of its trial, once."""
        child = self._child(_group(launch), launch.candidate, _title(launch))
        if launch.launch_id in child.launches:
            return
        step = len(child.launches)
        metrics = {"wall_s": launch.wall_s, "launches": step + 1.0, **_metrics(launch)}
        paths = launch_paths(self.folder, launch.launch_id)
        for path in (paths.result, paths.log):
            if path.is_file():
                self._client.log_artifact(child.run_id, str(path), clean_name(launch.launch_id))
        outcome = launch.outcome
        if isinstance(outcome, Measurement) and outcome.batches is not None:
            self._log(self._parent, params={"batch_size": str(outcome.batches.batch_size)})
        tags = {LAUNCH + launch.launch_id: "ok" if isinstance(outcome, Measurement) else outcome.name}
        if seen := disturbed.seen(launch):
            tags[DISTURBED + launch.launch_id] = "; ".join(each.text for each in seen)
        # The tag says that the launch is there, so it goes last.
        self._log(child.run_id, metrics=metrics, step=step)
        self._log(child.run_id, tags=tags)
        child.launches.add(launch.launch_id)

    def trial(self, trial: TrialEntry, best: Ranked | None) -> None:
        """Add a trial's judgement to its child run, and the best so far to the parent."""
        child = self._child(_trial_group(trial.number), trial.candidate, f"trial {trial.number}")
        if child.state != trial.state:
            metrics = {} if trial.value_us is None else {"score_us": trial.value_us}
            self._log(child.run_id, metrics=metrics, tags={STATE: trial.state, "nccltune.reason": trial.reason})
            child.state = trial.state
        self._client.set_terminated(
            child.run_id, "FAILED" if trial.constraint > 0 or trial.state == "lost" else "FINISHED"
        )
        if best is not None:
            self._log(
                self._parent,
                metrics={"best_us": best.value_us, "trials": trial.number + 1.0},
                tags={"nccltune.best": best.candidate.key},
                step=trial.number,
            )

    def noise_floor(self, floor: NoiseFloor) -> None:
        """Add the noise floor to the parent run, and what the study can be expected to show at it."""
        metrics = {"noise_floor": floor.relative}
        reach = floor.reach
        if reach is not None:
            said = {
                "smallest_gain_shown": reach.smallest,
                "rounds_needed": reach.rounds_needed,
                "wall_needed_s": reach.seconds_needed,
            }
            metrics |= {name: float(value) for name, value in said.items() if value is not None}
        self._log(self._parent, metrics=metrics, tags={"nccltune.reach": "; ".join(reach.sentences)} if reach else {})

    def verdict(self, verdict: Verdict, disturbances: Disturbed) -> None:
        """Add the verdict to the parent run, and how many launches were disturbed."""
        metrics = {} if verdict.gain is None else {"gain": verdict.gain}
        if disturbances.watched:
            metrics |= {
                "launches_disturbed": float(disturbances.disturbed),
                "deciding_launches_disturbed": float(disturbances.deciding_disturbed),
            }
        tags = {
            "nccltune.disturbed": disturbances.sentence,
            "nccltune.verdict": verdict.word,
            "nccltune.sentence": verdict.sentence,
            "nccltune.settings": verdict.candidate.key,
        }
        self._log(self._parent, metrics=metrics, tags=tags)

    def end(self, status: str) -> None:
        """End the parent run, and every child that still runs."""
        for run in self._runs(f"tags.`{PARENT}` = '{self._parent}' and attributes.status = 'RUNNING'"):
            trial = run.data.tags.get(GROUP, "").startswith("trial")
            self._client.set_terminated(run.info.run_id, "KILLED" if trial else "FINISHED")
        self._client.set_terminated(self._parent, status)

    def _child(self, group: str, candidate: Candidate, title: str) -> _Child:
        if group not in self._children:
            tags = {PARENT: self._parent, GROUP: group, "nccltune.candidate": candidate.key}
            run = self._client.create_run(self._experiment, run_name=title, tags=_clean_tags(tags))
            self._log(run.info.run_id, params=candidate.settings)
            self._children[group] = _Child(run.info.run_id)
        return self._children[group]

    def _log(
        self,
        run_id: str,
        params: Mapping[str, str] = {},
        metrics: Mapping[str, float] = {},
        tags: Mapping[str, str] = {},
        step: int = 0,
    ) -> None:
        from mlflow.entities import Metric, Param, RunTag

        tags = dict(tags)
        for name in (*params, *metrics):
            if clean_name(name) != name:
                tags["nccltune.name." + clean_name(name)] = name
        now = int(time.time() * 1000)
        all_params = [Param(clean_name(name), value[:_LONGEST]) for name, value in params.items()]
        all_metrics = [
            Metric(clean_name(name), value, now, step) for name, value in metrics.items() if math.isfinite(value)
        ]
        all_tags = [RunTag(name, value) for name, value in _clean_tags(tags).items()]
        while all_params or all_metrics or all_tags:
            self._client.log_batch(run_id, all_metrics[:_BATCH], all_params[:_BATCH], all_tags[:_BATCH])
            del all_params[:_BATCH], all_metrics[:_BATCH], all_tags[:_BATCH]


def _trial_group(number: int) -> str:
    return f"trial-{number:04d}"


def _group(launch: Launch) -> str:
    """Return which child run a launch belongs to: its trial's, else one for its purpose and candidate."""
    if launch.trial is not None:
        return _trial_group(launch.trial)
    return f"{launch.purpose}-{hashlib.sha256(launch.candidate.key.encode()).hexdigest()[:8]}"


def _title(launch: Launch) -> str:
    return f"{launch.purpose} {launch.candidate.key}"[:100] if launch.trial is None else f"trial {launch.trial}"


def _metrics(launch: Launch) -> dict[str, float]:
    metrics: dict[str, float] = {}
    if (found := launch.disturbances) is not None:
        metrics["disturbances"] = float(len(found.seen))
        shares = {"cpu_others_share": found.cpu_others, "power_capped_share": found.power_capped}
        metrics |= {name: share for name, share in shares.items() if share is not None}
    if not isinstance(launch.outcome, Measurement):
        return metrics
    metrics |= {"median_step_us": launch.outcome.median_us, **launch.outcome.metrics}
    if launch.outcome.communication is not None:
        metrics["communication_share"] = launch.outcome.communication.share
        metrics["communication_exposed_share"] = launch.outcome.communication.exposed_share
    return metrics


def _clean_tags(tags: Mapping[str, str]) -> dict[str, str]:
    return {clean_name(name): value[:_LONGEST] for name, value in tags.items()}


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the leaves of a plan as parameters with dotted names."""
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from _flat(inner, f"{path}.{name}" if path else str(name))
    else:
        yield path or "plan", value if isinstance(value, str) else json.dumps(value)
