"""Does a profile hold on this machine? Answered here in Python, and by a script that needs no Python. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from importlib import resources

from ..errors import ProfileError
from ..machine.facts import Facts, differences, fingerprint
from ..space.foreign import foreign_names
from ..trial.environment import replaced
from .profile import Profile, header, one_line

#: Conditions that a machine cannot show before a job runs on it.
_NOT_OF_A_MACHINE = ("world size", "batch size", "GPU idle", "nccltune")
_TEMPLATE = "guard.sh.j2"


def differing(profile: Profile, now: Facts, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Name what is not as it was when the profile was measured, one line each; empty when the profile holds.

    A setting that is there already with another value counts: it stays as it is, and without it the others were
    never measured.

    Args:
        profile: What would be set.
        now: This machine.
        environ: Of the job that would get the settings.
    """
    measured = machine_conditions(profile)
    compared = set(measured) | ({"mig"} if profile.backend == "nccl" else set())
    here = {name: text for name, text in fingerprint(now).items() if name in compared}
    lines = differences(measured, here)
    if profile.backend == "nccl":
        lines += differences(_baseline(profile.inherited, profile), _baseline(now.inherited.settings, profile))
    return (*map(one_line, lines), *_conflicts(profile, {**now.inherited.settings, **environ}))


def machine_conditions(profile: Profile) -> dict[str, str]:
    """The conditions of a profile that a machine can show."""
    return {name: text for name, text in profile.conditions.items() if name not in _NOT_OF_A_MACHINE}


def _baseline(settings: Mapping[str, str], profile: Profile) -> dict[str, str]:
    """What NCCL sees besides the profile; how much it logs and where is no part of it, nor what it never reads."""
    left_out = {*profile.settings, *replaced(settings), *foreign_names()}
    return {name: value for name, value in settings.items() if name.startswith("NCCL_") and name not in left_out}


def _conflicts(profile: Profile, settings: Mapping[str, str]) -> list[str]:
    return [
        f"{name}: {value} in the profile, already set to {one_line(settings[name])}"
        for name, value in profile.settings.items()
        if settings.get(name, value) != value
    ]


def why_withheld(profile: Profile, *, emulated: bool = False, collective_only: bool = False) -> ProfileError | None:
    """Say why a profile's settings must not reach a job by their verdict or their origin, or ``None``.

    Args:
        profile: Whose settings would be used.
        emulated: Whether those from emulated nodes may.
        collective_only: Whether those that were measured on a collective alone may.
    """
    if profile.verdict == "no-verdict" and profile.confirmed is None:
        return ProfileError(
            "the study came to no verdict, so there is nothing to export", "run it again with more trials or rounds"
        )
    if not profile.settings:
        return None
    if not profile.verdict.startswith("ship") and profile.confirmed is None:
        return ProfileError(
            f"the verdict is {one_line(profile.verdict)}, so no confidence bound backs the settings",
            "run 'nccltune validate' on the profile first",
        )
    if profile.emulated and not emulated:
        return ProfileError(
            f"the profile comes from {profile.emulated} NCCL nodes that were emulated on one machine, so it is for "
            "study only",
            "measure on real nodes, or add --emulated to look at it all the same",
        )
    if not profile.on_a_model and not collective_only:
        return ProfileError(
            "the profile was measured on a collective alone, and what helps that can cost a model step",
            "run 'nccltune validate' on it with --workload MODEL, or add --collective-only",
        )
    return None


def exports(profile: Profile, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The lines for a shell's ``eval`` that set what is not set yet."""
    return tuple(
        f"export {name}={shlex.quote(value)}" for name, value in profile.settings.items() if name not in environ
    )


def script(profile: Profile) -> str:
    """Write the guard: a POSIX shell script that sets the profile's settings where its conditions hold.

    It compares what a shell can see: the NCCL library's version, GPUs and driver by ``nvidia-smi`` (on gloo the
    processor and its cores), and the settings that are there already. What it cannot see counts as different.

    Args:
        profile: From ``read_profile``, whose names are known to be plain; every value is quoted.
    """
    import jinja2

    baseline = _baseline(profile.inherited, profile)
    template = (resources.files(__package__) / "templates" / _TEMPLATE).read_text(encoding="utf-8")
    engine = jinja2.Environment(  # noqa: S701 - a shell script: every value passes the filter 'quoted'
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    engine.filters["quoted"] = lambda text: shlex.quote(one_line(text))
    return engine.from_string(template).render(
        header=header(profile),
        settings=profile.settings,
        backend=profile.backend,
        conditions=machine_conditions(profile),
        baseline=baseline,
        expected={**profile.settings, **baseline},
        foreign=sorted(foreign_names()),
    )
