"""Results that a killed run left without a line in the ledger: read them instead of measuring again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias

from ..records import Launch, Measurement, Outcome, Request, ResultFile
from ..trial.paths import LaunchPaths, launch_paths
from .entries import Intent

Conclude: TypeAlias = Callable[[Request, Measurement, LaunchPaths], Outcome | None]
"""Turns a result into an outcome, as the runner would have: evidence from NCCL's log, checks of what the ranks saw.
``None`` where the runner would not have taken it."""


def orphans(
    folder: Path, intents: Iterable[Intent], launches: Iterable[Launch], conclude: Conclude | None = None
) -> list[Launch]:
    """Return a launch for every intent that has a complete, good result on disk and no launch.

    A result that says ``failed``, or that ``conclude`` refuses, is left alone: without the launcher's end it cannot be
    said whose fault it was, so its candidate is launched again.

    Args:
        folder: The study folder.
        intents: What was about to be launched.
        launches: What is known of already.
        conclude: What the runner makes of a result; else the measurement is taken as it stands.

    Returns:
        In the order of the intents.
    """
    known = {launch.launch_id for launch in launches}
    read = (_read(folder, intent, conclude) for intent in intents if intent.launch_id not in known)
    return [launch for launch in read if launch is not None]


def _read(folder: Path, intent: Intent, conclude: Conclude | None) -> Launch | None:
    paths = launch_paths(folder, intent.launch_id)
    try:
        request = Request.model_validate(json.loads(paths.request.read_bytes()))
        result = ResultFile.model_validate(json.loads(paths.result.read_bytes()))
        ended = datetime.fromtimestamp(paths.result.stat().st_mtime, UTC)
    except (OSError, ValueError):
        return None  # missing, cut off or of another release: nothing to adopt
    if result.token != request.token or request.candidate != intent.candidate:
        return None
    if result.status != "ok" or result.measurement is None:
        return None
    outcome: Outcome | None = result.measurement
    if conclude is not None:
        outcome = conclude(request, result.measurement, paths)
    if outcome is None:
        return None
    wall_s = max(0.0, (ended - datetime.fromisoformat(intent.started_at)).total_seconds())
    return Launch(**dict(intent), wall_s=wall_s, outcome=outcome)
