"""What validations of a profile came to: ``validation.json`` beside it, and its own line about the last one."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any, Literal, TypeAlias

from ..errors import ProfileError, StorageError
from ..quantities import format_share
from ..records import Pair, Record, Verdict
from . import profile as profiles

_log = logging.getLogger(__name__)

Word: TypeAlias = Literal["confirmed", "not confirmed", "no verdict"]
WORDS: dict[str, Word] = {
    "ship": "confirmed",
    "keep-default": "not confirmed",
    "no-verdict": "no verdict",
    "unconfirmed": "no verdict",
}
STATUS: dict[Word, int] = {"confirmed": 0, "not confirmed": 3, "no verdict": 4}


class Result(Record):
    """What a validation came to: one entry of ``validation.json``.

    Attributes:
        at: UTC, ISO 8601.
        changed: What is not as it was when the profile was measured.
        conditions: Of this machine now.
        interval: Two-sided 95 % confidence interval of the gain.
        pairs: The rounds behind the word.
        runs: Folder of the launches.
    """

    at: str
    word: Word
    sentence: str
    settings: dict[str, str]
    workload: str
    workload_options: dict[str, Any]
    collective_only: bool
    emulated: int
    min_gain: float
    gain: float | None = None
    interval: tuple[float, float] | None = None
    pairs: tuple[Pair, ...] = ()
    changed: tuple[str, ...] = ()
    conditions: dict[str, str] = {}
    runs: str = ""


def sentence(word: Word, verdict: Verdict) -> str:
    """Say what a validation came to.

    Args:
        word: Of its result.
        verdict: Of its rounds.
    """
    head = word.capitalize()
    if verdict.gain is None or verdict.interval is None:
        said = f"{head}: {verdict.sentence.partition(': ')[2] or verdict.sentence}"
        return f"{said}; {verdict.needed}" if verdict.needed else said
    low, high = map(format_share, verdict.interval)
    said = (
        f"{head}: {format_share(verdict.gain)} against the default (95 % interval {low} to {high}, "
        f"{len(verdict.pairs)} fresh mirrored rounds)"
    )
    reasons = {"confirmed": "", "not confirmed": _reason(verdict), "no verdict": verdict.needed}
    return f"{said}; {reasons[word]}" if reasons[word] else said


def _reason(verdict: Verdict) -> str:
    return verdict.finalists[0].reason if verdict.finalists else ""


def keep(file: Path, profile: profiles.Profile, result: Result) -> None:
    """Write a result beside its profile, and into it whether it passed; a read-only image keeps its profile.

    Args:
        file: Of the profile.
        profile: What it holds.
        result: Of the validation.

    Raises:
        StorageError: The results of earlier validations cannot be read.
    """
    path = file.with_name(profiles.VALIDATION_FILE)
    entries = [*earlier(path), result.model_dump(mode="json")]
    document = {"schema_version": 1, "validations": entries}
    try:
        profiles.replace_file(path, json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    except OSError as error:
        _log.warning("cannot write %s (%s); the result is in %s", path, error.strerror, result.runs)
    confirmed = profile.model_copy(update={"confirmed": confirmation(profile, result)})
    if confirmed == profile:
        return
    try:
        profiles.write(confirmed, file.parent)
    except ProfileError as error:
        _log.warning("%s", error)


def confirmation(profile: profiles.Profile, result: Result) -> profiles.Confirmation | None:
    """What a profile says of its last validation after this one.

    One on a collective alone says less than one on a model, and so does not take its place.
    """
    before = profile.confirmed
    if result.word == "no verdict" or (result.collective_only and before is not None and not before.collective_only):
        return before
    if result.word == "not confirmed":
        return None
    return profiles.Confirmation(
        at=result.at,
        workload=result.workload,
        workload_options=result.workload_options,
        collective_only=result.collective_only,
        gain=result.gain,
        rounds=len(result.pairs),
        conditions=result.conditions,
    )


def earlier(path: Path) -> list[Any]:
    """Read the results of earlier validations, as plain data.

    Args:
        path: Of ``validation.json``; where there is none, there are no results.

    Raises:
        StorageError: It is something else.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["validations"]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StorageError(f"{path} cannot be read: {error}", "move it away, then run the same command again") from None
    if not isinstance(found, list):
        raise StorageError(f"{path} holds no list of validations", "move it away, then run the same command again")
    return found
