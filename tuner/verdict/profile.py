"""The profile folder: ``nccl.env`` and ``profile.yaml``, each written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import yaml

from ..errors import ProfileError
from ..quantities import format_percent, format_share, format_us
from ..records import Disturbed, Evidence, Finalist, Pair, Reach, Record

ENV_FILE = "nccl.env"
PROFILE_FILE = "profile.yaml"
VALIDATION_FILE = "validation.json"
SCHEMA_VERSION = 1

#: What a documentation class means for who keeps the setting, after the sections of NVIDIA's page on environment
#: variables.
ADVICE = {
    "system": "NVIDIA documents it for system configuration, so it may stay set",
    "debugging": "NVIDIA documents it for debugging and advises against it in production",
    "undocumented": "NVIDIA does not document it, so any NCCL version may change it",
}
_SCOPE = "These settings act on every communicator of a job, not only on the one that was tuned."


class Numbers(Record):
    """What was measured; times in microseconds.

    Attributes:
        gain: Of the settings, or of the best finalist, in the fresh rounds; of the search alone where there were none.
        interval: Two-sided 95 % confidence interval of the gain.
        bounds: The one-sided bounds that decided.
        pairs: The rounds behind it.
        finalists: What the rounds showed of each that entered them.
        pays_after_steps: Steps until the time saved equals the time of all launches.
        needed: What would change the verdict.
        noise_floor: Relative spread of identical launches of the default.
        reach: What the rounds could be expected to show at that noise, foreseen before the search.
        disturbed: How many launches were disturbed, and the worst of it; ``None`` in profiles of the first release.
        trials: Candidates measured or found unusable in the search.
        launches: Of the whole study.
        gpu_s: Wall time of all launches times the ranks.
    """

    default_step_us: float | None = None
    candidate_step_us: float | None = None
    gain: float | None = None
    interval: tuple[float, float] | None = None
    bounds: tuple[float, float] | None = None
    pairs: tuple[Pair, ...] = ()
    finalists: tuple[Finalist, ...] = ()
    pays_after_steps: int | None = None
    needed: str = ""
    noise_floor: float | None = None
    reach: Reach | None = None
    disturbed: Disturbed | None = None
    trials: int = 0
    launches: int = 0
    gpu_s: float = 0.0


class Confirmation(Record):
    """A later test of the settings against the default that they passed; see ``nccltune validate``.

    Attributes:
        at: UTC, ISO 8601.
        workload: What was timed.
        collective_only: Whether that was a collective alone.
        gain: Against the default.
        rounds: Fresh mirrored rounds behind it.
        conditions: What they were measured on.
    """

    at: str
    workload: str
    workload_options: dict[str, Any] = {}
    collective_only: bool = False
    gain: float | None = None
    rounds: int = 0
    conditions: dict[str, str] = {}


class Profile(Record):
    """The product: settings, the verdict they stand on, and the conditions under which it holds.

    Attributes:
        cluster: Name of the profile's folder.
        settings: Name to value; empty when the defaults are to be kept.
        classes: Setting to its documentation class, as the release that measured it knew it.
        emulated: NCCL nodes that were emulated on one machine, 0 for none; such a profile is for study only.
        collective_only: The workload was a collective alone, so that the effect on a model step is unknown.
        withheld: The command that writes the settings into the env file, where it has none since they were measured
            on a collective alone; empty where nothing is held back.
        conditions: What has to be the same for the profile to hold.
        proof: What NCCL itself said under the settings.
        inherited: NCCL settings that were already there, part of the baseline.
        commands: How to repeat the study.
        confirmed: The last validation, where the settings passed it.
    """

    schema_version: Literal[1] = 1
    cluster: str
    study: str
    created: str
    verdict: str
    sentence: str
    settings: dict[str, str] = {}
    classes: dict[str, str] = {}
    workload: str
    workload_options: dict[str, Any] = {}
    backend: str
    emulated: int = 0
    collective_only: bool = False
    withheld: str = ""
    min_gain: float
    numbers: Numbers
    conditions: dict[str, str]
    proof: Evidence | None = None
    inherited: dict[str, str] = {}
    commands: tuple[str, ...] = ()
    confirmed: Confirmation | None = None

    @property
    def shipped(self) -> dict[str, str]:
        """The settings that may be written where a job reads them."""
        return self.settings if self.on_a_model or not self.withheld else {}

    @property
    def on_a_model(self) -> bool:
        """Whether the settings were measured on a model's step, by the study or by a validation since."""
        return not self.collective_only or (self.confirmed is not None and not self.confirmed.collective_only)


def env_text(profile: Profile) -> str:
    """Render ``nccl.env``: ``NAME=VALUE`` lines, ``#`` in column one only.

    Such a file is valid both for ``docker --env-file`` and as NCCL's own ``nccl.conf`` (``src/misc/param.cc``,
    ``setEnvFile``: split at the first ``=``, no quotes, no trimming).
    """
    lines = list(header(profile))
    comments = setting_comments(profile)
    for name, value in profile.shipped.items():
        lines += [comments[name], f"{name}={value}"]
    return "".join(f"{line}\n" for line in map(one_line, lines))


def header(profile: Profile) -> tuple[str, ...]:
    """The comment lines that open every file with a profile's settings: verdict, limits, numbers, conditions, dates."""
    lines = [f"# nccltune {profile.verdict.upper()}: {profile.sentence}."]
    if profile.emulated:
        lines.append(f"# EMULATED: {profile.emulated} NCCL nodes on one machine. For study, not for production.")
    if not profile.on_a_model:
        lines.append("# COLLECTIVE ONLY: measured on a collective alone; what helps it can cost a model step.")
    if profile.backend == "gloo":
        lines.append("# GLOO: measured without a GPU; the settings are for processes on CPUs, not for NCCL.")
    lines += _number_lines(profile.numbers)
    lines += [f"# {name}: {value}" for name, value in _conditions(profile).items()]
    lines.append(f"# {_SCOPE}")
    if not profile.settings:
        lines.append("# No setting: keep the defaults.")
    elif not profile.shipped:
        lines.append(
            f"# No setting is written. To try them on a model: nccltune validate {PROFILE_FILE} --workload MODEL"
        )
        lines.append(f"# To write them as they are: {profile.withheld}")
    return tuple(map(one_line, lines))


def setting_comments(profile: Profile) -> dict[str, str]:
    """Each setting's comment: its documentation class and what NVIDIA says of that class."""
    from ..space.catalogue import load_catalogue  # not at the top: who only reads a profile need not pay for it

    knobs = load_catalogue().knobs
    comments = {}
    for name in profile.settings:
        knob = knobs.get(name)
        if knob is None:
            said = "no knob of the catalogue"
        elif "nccl" in knob.backends:
            said = f"{knob.docs}: {ADVICE[knob.docs]}"
        else:
            said = f"{knob.docs}: no setting of NCCL, acts on the processes themselves"
        comments[name] = f"# {name} is {said}"
    return comments


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
        replace_file(env_file, env_text(profile))
        replace_file(profile_file, document)
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
    if numbers.interval is not None:
        low, high = numbers.interval
        lines.append(
            f"# gain {format_share(low)} to {format_share(high)} (95 % interval), {len(numbers.pairs)} fresh rounds"
        )
    if numbers.pays_after_steps is not None:
        lines.append(f"# the study is paid back after {numbers.pays_after_steps} steps")
    if numbers.noise_floor is not None:
        lines.append(f"# noise floor {format_percent(numbers.noise_floor)}, {numbers.launches} launches")
    if numbers.disturbed is not None and numbers.disturbed.counted:  # who it was is nobody's business in an image
        lines.append(f"# disturbed: {numbers.disturbed.counted}")
    return lines


def _conditions(profile: Profile) -> Mapping[str, str]:
    workload = " ".join([profile.workload, *(f"{name}={value}" for name, value in profile.workload_options.items())])
    inherited = " ".join(f"{name}={value}" for name, value in profile.inherited.items())
    rest = {"workload": workload, "measured": profile.created, "study": profile.study}
    if (last := profile.confirmed) is not None:
        gain = f" ({format_share(last.gain)})" if last.gain is not None else ""
        rest["confirmed"] = f"{last.at} on {last.workload}{gain}, {last.rounds} fresh rounds"
    if inherited:
        rest["set already, part of the baseline"] = inherited
    return {**profile.conditions, **rest}


def one_line(text: str) -> str:
    """The text with a blank for everything that is not printable."""
    # A line break in a value would end the comment and make a setting of what follows.
    return "".join(character if character.isprintable() else " " for character in text)


def write_file(path: Path, text: str, mode: int = 0o644) -> None:
    """Write an exported file; see ``replace_file``.

    Raises:
        ProfileError: It cannot be written.
    """
    try:
        replace_file(path, text, mode)
    except OSError as error:
        raise ProfileError(f"cannot write {path}: {error.strerror}", "choose another --out") from error


def replace_file(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a file by rename, so that a reader sees the old text or the new one.

    A pipe or a device is written to as it is: a rename would put a file in its place.

    Args:
        path: In a folder that exists.
        text: All of it.
        mode: Who may read, write and run it.

    Raises:
        OSError: It cannot be written; the old file is as it was.
    """
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")
        return
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
            os.fchmod(stream.fileno(), mode)
        Path(temporary).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise
