"""The profile folder: ``nccl.env`` and ``profile.yaml``, written at once or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import yaml

from ..errors import ProfileError
from ..quantities import format_share, format_us
from ..records import Evidence, Pair, Record

ENV_FILE = "nccl.env"
PROFILE_FILE = "profile.yaml"
_SCOPE = "These settings act on every communicator of a job, not only on the one that was tuned."


class Numbers(Record):
    """What was measured; times in microseconds.

    Attributes:
        noise_floor: Relative spread of identical launches of the default.
        trials: Candidates measured or found unusable in the search.
        launches: Of the whole study.
        gpu_s: Wall time of all launches times the ranks.
    """

    default_step_us: float | None = None
    candidate_step_us: float | None = None
    gain: float | None = None
    pairs: tuple[Pair, ...] = ()
    noise_floor: float | None = None
    trials: int = 0
    launches: int = 0
    gpu_s: float = 0.0


class Profile(Record):
    """The product: settings, the verdict they stand on, and the conditions under which it holds.

    Attributes:
        cluster: Name of the profile's folder.
        settings: Name to value; empty when the defaults are to be kept.
        emulated: NCCL nodes that were emulated on one machine, 0 for none; such a profile is for study only.
        collective_only: The workload was a collective alone, so that the effect on a model step is unknown.
        conditions: What has to be the same for the profile to hold.
        proof: What NCCL itself said under the settings.
        inherited: NCCL settings that were already there, part of the baseline.
        commands: How to repeat the study.
    """

    schema_version: Literal[1] = 1
    cluster: str
    study: str
    created: str
    verdict: str
    sentence: str
    settings: dict[str, str] = {}
    workload: str
    workload_options: dict[str, Any] = {}
    backend: str
    emulated: int = 0
    collective_only: bool = False
    min_gain: float
    numbers: Numbers
    conditions: dict[str, str]
    proof: Evidence | None = None
    inherited: dict[str, str] = {}
    commands: tuple[str, ...] = ()


def env_text(profile: Profile) -> str:
    """Render ``nccl.env``: ``NAME=VALUE`` lines, ``#`` in column one only.

    Such a file is valid both for ``docker --env-file`` and as NCCL's own ``nccl.conf`` (``src/misc/param.cc``,
    ``setEnvFile``: split at the first ``=``, no quotes, no trimming).
    """
    lines = [f"# nccltune {profile.verdict.upper()}: {profile.sentence}."]
    if profile.emulated:
        lines.append(f"# EMULATED: {profile.emulated} NCCL nodes on one machine. For study, not for production.")
    if profile.collective_only:
        lines.append("# COLLECTIVE ONLY: measured on a collective alone; what helps it can cost a model step.")
    if profile.backend == "gloo":
        lines.append("# GLOO: measured without a GPU; the settings are for processes on CPUs, not for NCCL.")
    if profile.verdict == "unconfirmed":
        lines.append("# UNCONFIRMED: all fresh rounds were faster, but no confidence bound backs the gain.")
    lines += _number_lines(profile.numbers)
    lines += [f"# {name}: {value}" for name, value in _conditions(profile).items()]
    lines.append(f"# {_SCOPE}")
    if not profile.settings:
        lines.append("# No setting: keep the defaults.")
    lines += [f"{name}={value}" for name, value in profile.settings.items()]
    return "".join(f"{_one_line(line)}\n" for line in lines)


def write(profile: Profile, folder: Path) -> tuple[Path, Path]:
    """Write both files of a profile, each by rename, ``profile.yaml`` last.

    Args:
        profile: What to write.
        folder: Created if it is missing.

    Returns:
        The paths of ``nccl.env`` and ``profile.yaml``.

    Raises:
        ProfileError: If the folder cannot be written.
    """
    env_file, profile_file = folder / ENV_FILE, folder / PROFILE_FILE
    document = yaml.safe_dump(profile.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=120)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _replace(env_file, env_text(profile))
        _replace(profile_file, document)
    except OSError as error:
        raise ProfileError(
            f"cannot write the profile {folder}: {error.strerror}",
            "free space or choose another folder with --out, then run the same command again; the study is kept",
        ) from error
    return env_file, profile_file


def _number_lines(numbers: Numbers) -> list[str]:
    lines = []
    if numbers.default_step_us is not None:
        step = f"step {format_us(numbers.default_step_us)} by default"
        if numbers.candidate_step_us is not None and numbers.gain is not None:
            step += f", {format_us(numbers.candidate_step_us)} with these settings ({format_share(numbers.gain)})"
        lines.append(f"# {step}")
    if numbers.noise_floor is not None:
        lines.append(f"# noise floor {100 * numbers.noise_floor:.2g} %, {numbers.launches} launches")
    return lines


def _conditions(profile: Profile) -> Mapping[str, str]:
    workload = " ".join([profile.workload, *(f"{name}={value}" for name, value in profile.workload_options.items())])
    inherited = " ".join(f"{name}={value}" for name, value in profile.inherited.items())
    rest = {"workload": workload, "measured": profile.created, "study": profile.study}
    if inherited:
        rest["set already, part of the baseline"] = inherited
    return {**profile.conditions, **rest}


def _one_line(text: str) -> str:
    # A line break in a value would end the comment and make a setting of what follows.
    return "".join(character if character.isprintable() else " " for character in text)


def _replace(path: Path, text: str) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
            os.fchmod(stream.fileno(), 0o644)
        Path(temporary).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise
