"""The one seam to the hardware: a request goes in, an outcome comes out."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from pydantic import ValidationError

from ..errors import Interrupted, StorageError
from ..machine.disturbances import Watch
from ..records import Evidence, Failure, Measurement, Outcome, Request, ResultFile, first_problem
from ..space.catalogue import load_catalogue
from . import diagnose, environment, evidence, launch
from .paths import LaunchPaths, launch_paths
from .process import Ended, run_guarded, sweep

_log = logging.getLogger(__name__)

SHARED_FOLDER_S = 3.0
"""How long a result may take to be seen on this machine after another one wrote it."""
_PROBE_BYTES = 1 << 18
"""As much as a result takes at most, by and large."""


class Runner(Protocol):
    """Runs one launch. Whatever implements it passes ``tests/contract/test_runner.py``."""

    def run(self, request: Request) -> Outcome:
        """Run a launch to its end.

        Args:
            request: What to launch.

        Returns:
            A measurement, or a failure: a candidate that fails is a value.

        Raises:
            Interrupted: Somebody asked to stop; nothing of the launch is left running.
            StorageError: The folder of the launch cannot be written.
            UsageError: The request cannot be launched at all.
        """


class LaunchRunner:
    """Starts torchrun under a guardian.

    Args:
        study_folder: Launches go into its folder ``launches``.
        stop: Asked at least 20 times a second; true ends the running launch.
        environ: The caller's environment; this process's own by default.
        python: Interpreter of agents and workers; this process's own by default.
        package: Where the workload modules are.
        subsystems: What NCCL logs.
        watch: Says who else used the machine; watches this one by default.
    """

    def __init__(
        self,
        study_folder: Path,
        stop: Callable[[], bool] = lambda: False,
        *,
        environ: Mapping[str, str] | None = None,
        python: str = sys.executable,
        package: str = launch.WORKLOADS,
        subsystems: str = environment.SUBSYSTEMS,
        watch: Watch | None = None,
    ) -> None:
        self._study_folder = study_folder
        self._stop = stop
        self._environ = dict(os.environ if environ is None else environ)
        self._python = python
        self._package = package
        self._subsystems = subsystems
        self._watch = watch or Watch(self._environ)

    def run(self, request: Request) -> Outcome:
        """Run a launch; see ``Runner.run``. A complete result that this launch left earlier is returned as it is."""
        paths = launch_paths(self._study_folder, request.launch_id)
        if (kept := _kept(paths, request)) is not None:
            return kept
        if self._stop():
            raise Interrupted("stopped before the launch")
        request = environment.in_folder(request, paths, self._environ, subsystems=self._subsystems)
        env_text = self._env_text(request, paths)
        argv = launch.arguments(
            request, paths, port=launch.free_port(), python=self._python, package=self._package
        )  # fmt: skip
        _prepare(paths, request, env_text)
        has_prefix = bool(request.placement.launch_prefix)
        gpus = request.placement.nproc_per_node if request.backend == "nccl" else 0
        # What a cluster's launcher starts does not descend from this process, so others cannot be told from it.
        with self._watch.over(gpus=gpus, ours_known=not has_prefix) as seen:
            ended = run_guarded(
                argv,
                env=environment.child(env_text, self._environ, request.placement),
                paths=paths,
                limits=request.limits,
                token=request.token,
                stop=self._stop,
                sweep_after=has_prefix,
            )
        _log.debug("launch %s: %s", request.launch_id, ended)
        outcome = self._judge(request, paths, ended)
        if has_prefix and not _ran_here(outcome):
            return outcome  # this machine's state says nothing of the others'
        return outcome.model_copy(update={"disturbances": seen.result})

    def _env_text(self, request: Request, paths: LaunchPaths) -> str:
        comments = [f"launch {request.launch_id}: {request.candidate}"]
        if request.backend == "nccl":
            comments += [
                f"replaced for this launch: {name}={value}"
                for name, value in environment.replaced(self._environ).items()
            ]
        settings = environment.settings(request, paths, self._environ, subsystems=self._subsystems)
        return environment.render(settings, comments)

    def _judge(self, request: Request, paths: LaunchPaths, ended: Ended) -> Outcome:
        if request.placement.launch_prefix and ended.reason == "exited":
            _await_shared_folder(paths)
        result = read_result(paths, request.token)
        if isinstance(result, ResultFile) and result.measurement is not None:
            return _accept(request, paths, result.measurement, ended)
        if self._is_stopping(ended):
            raise Interrupted("stopped during a launch, which is thrown away")
        _check_writable(paths)
        return _failure(request, paths, result, ended)

    def _is_stopping(self, ended: Ended) -> bool:
        """Whether the end was wished for; a signal to all processes may reach the guardian before it reaches us."""
        until = time.monotonic() + (0.5 if ended.reason == "stopped" else 0.0)
        while not (stopping := self._stop()) and time.monotonic() < until:
            time.sleep(0.02)
        return stopping


def _ran_here(outcome: Outcome) -> bool:
    """Whether a rank is known to have run on this machine."""
    ranks = outcome.ranks if isinstance(outcome, Measurement) else ()
    return any(report.host == socket.gethostname() for report in ranks)


def _await_shared_folder(paths: LaunchPaths) -> None:
    """Wait for a result that rank 0 wrote on another machine: NFS may have cached that there is none."""
    until = time.monotonic() + SHARED_FOLDER_S
    while not paths.result.exists() and time.monotonic() < until:
        os.listdir(paths.folder)  # noqa: PTH208 - opening the folder makes NFS ask the server again
        time.sleep(0.05)


def read_result(paths: LaunchPaths, token: str) -> ResultFile | str:
    """Read what rank 0 left.

    Args:
        paths: Of the launch.
        token: Of the launch.

    Returns:
        The result, or why there is none that can be used.
    """
    try:
        result = ResultFile.model_validate_json(paths.result.read_bytes())
    except FileNotFoundError:
        return "the processes ended without leaving a result"
    except OSError as error:
        return f"the result cannot be read: {error}"
    except ValidationError as error:
        return f"the result is cut off or of another schema: {first_problem(error)}"
    if result.token != token:
        return "the result in the launch's folder is another launch's"
    if result.status == "ok" and result.measurement is None:
        return "the result says ok but holds no measurement"
    return result


def adopt(study_folder: Path, launch_id: str) -> Outcome | None:
    """Take over the complete result of a launch whose tuner died before it could write it down.

    Args:
        study_folder: The folder of the study.
        launch_id: The launch.

    Returns:
        The measurement, or ``None`` where there is no complete one.
    """
    paths = launch_paths(study_folder, launch_id)
    stored = _stored(paths)
    if stored is None:
        return None
    result = read_result(paths, stored.token)
    if isinstance(result, str) or result.measurement is None:
        return None
    ended = Ended(reason="exited", returncode=None, wall_s=0.0, survivors=(), phase=None)
    outcome = _accept(stored, paths, result.measurement, ended)
    return outcome if isinstance(outcome, Measurement) else None


def _kept(paths: LaunchPaths, request: Request) -> Outcome | None:
    """Return the outcome that this very launch left earlier; clear away what an earlier, broken-off try left."""
    stored = _stored(paths)
    if stored is None:
        return None
    if (outcome := adopt(paths.folder.parent.parent, request.launch_id)) is None:
        sweep([stored.token])
        return None
    if _essence(stored) != _essence(request):
        raise StorageError(
            f"{paths.folder} holds the result of another launch ({stored.candidate})",
            "go on with the study that made it, or give another --study",
        )
    return outcome


def _essence(request: Request) -> Request:
    """What makes two requests the same launch: not the token, nor what the runner fills in itself."""
    return request.model_copy(update={"token": "", "environment": {}, "per_rank_env": {}})


def _stored(paths: LaunchPaths) -> Request | None:
    try:
        return Request.model_validate_json(paths.request.read_bytes())
    except (OSError, ValidationError):
        return None


def _prepare(paths: LaunchPaths, request: Request, env_text: str) -> None:
    try:
        if paths.folder.exists():
            shutil.rmtree(paths.folder)
        for folder in (paths.folder, paths.elastic, paths.nccl):
            folder.mkdir(parents=True)
        paths.env_file.write_text(env_text, encoding="utf-8")
        paths.request.write_text(request.model_dump_json(indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise StorageError(
            f"the folder of a launch cannot be written: {error}", "free space there, or give another --out"
        ) from error


def _check_writable(paths: LaunchPaths) -> None:
    """Refuse to judge a launch that had nowhere to leave its result: no candidate is to blame for a full disk."""
    probe = paths.folder / ".space"
    try:
        with probe.open("wb") as file:
            file.write(b"\0" * _PROBE_BYTES)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise StorageError(
            f"a launch could not write to its folder {paths.folder}: {error.strerror}",
            "free space there, then run the same command again: that launch is made anew",
        ) from error
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()


def _accept(request: Request, paths: LaunchPaths, measurement: Measurement, ended: Ended) -> Outcome:
    """Take a measurement, unless its ranks are not the ones that were launched under these settings."""
    ranks = sorted(report.rank for report in measurement.ranks)
    if ranks != list(range(request.placement.world_size)):
        return diagnose.failure(
            "ranks_disagree",
            f"{request.placement.world_size} ranks were launched, the result has {ranks}",
            log_tail=diagnose.tail(paths.log),
        )
    for report in measurement.ranks:
        wanted = request.environment | request.per_rank_env.get(str(report.rank), {})
        seen = {name: value for name, value in report.echo.items() if name in wanted or value}
        differing = sorted(name for name in wanted.keys() | seen.keys() if wanted.get(name) != seen.get(name))
        if differing:
            return diagnose.failure(
                "environment_changed",
                f"rank {report.rank} saw another {', '.join(differing)} than was asked for",
                names=list(differing),
            )
    parts = dict(measurement.parts_s)
    if ended.first_beat_s is not None:
        parts["start"] = round(ended.first_beat_s, 3)  # the harness knows only the age of its own process
    if ended.result_s is not None:
        parts["end"] = round(max(0.0, ended.wall_s - ended.result_s), 3)
    return measurement.model_copy(
        update={
            "parts_s": parts,
            "warnings": (*measurement.warnings, *_end_warnings(ended)),
            "evidence": measurement.evidence or _evidence(request, paths, completed=True),
        }
    )


def _end_warnings(ended: Ended) -> list[str]:
    warnings = []
    if ended.reason != "exited":
        warnings.append(f"the processes did not end by themselves after the result was written ({ended.reason})")
    elif ended.returncode:
        warnings.append(f"the launcher ended with status {ended.returncode} after the result was written")
    if ended.survivors:
        warnings.append(f"processes {', '.join(map(str, ended.survivors))} could not be ended")
    return warnings


def _failure(request: Request, paths: LaunchPaths, result: ResultFile | str, ended: Ended) -> Failure:
    failure = diagnose.diagnose(
        result=result if isinstance(result, ResultFile) else None,
        ended=ended,
        error_files=paths.error_files(),
        log=paths.log,
        nccl_logs=paths.nccl_logs(),
    )
    update: dict[str, object] = {}
    if ended.error:
        update["message"] = ended.error
    elif failure.name == "no_result" and isinstance(result, str):
        update["message"] = result
    if failure.evidence is None:
        update["evidence"] = _evidence(request, paths, completed=False)
    return failure.model_copy(update=update)


def _evidence(request: Request, paths: LaunchPaths, *, completed: bool) -> Evidence | None:
    """What NCCL's logs say; a log that cannot be read costs the evidence, never the outcome."""
    logs = paths.nccl_logs()
    if not logs:
        return None
    try:
        log = evidence.read_logs(logs)
    except OSError as error:
        _log.warning("NCCL's logs of %s cannot be read: %s", request.launch_id, error)
        return None
    return evidence.evidence(log, request.candidate, load_catalogue(), completed=completed)
