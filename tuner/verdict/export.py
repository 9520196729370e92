"""A profile in the words of its readers: env files, shells, Docker, Kubernetes. Pure.

Every format carries the same header and every setting: a part of what was measured was not measured.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Mapping
from typing import Literal, TypeAlias, get_args

import yaml

from ..errors import ProfileError
from ..quantities import format_share
from ..space.catalogue import DocsClass, load_catalogue
from . import guard
from .profile import ADVICE, Profile, env_text, header, one_line, setting_comments

Format: TypeAlias = Literal["env", "sh", "nccl-conf", "dockerfile", "k8s"]
FORMATS: tuple[Format, ...] = get_args(Format)

_LABEL = "nccltune."


def why_not(
    profile: Profile, *, emulated: bool = False, collective_only: bool = False, allow: Collection[DocsClass] = ()
) -> ProfileError | None:
    """Say why a profile must not leave the study, or ``None``.

    A profile that keeps the defaults may: its file has the header and no setting, so that who bakes it into an image
    needs no special case, and it takes an older file's place.

    Args:
        profile: What would be exported.
        emulated: Whether one from emulated nodes may.
        collective_only: Whether one that was measured on a collective alone may.
        allow: Documentation classes that may; empty for all.
    """
    why = guard.why_withheld(profile, emulated=emulated, collective_only=collective_only)
    return why or _forbidden(profile, allow)


def _forbidden(profile: Profile, allow: Collection[DocsClass]) -> ProfileError | None:
    knobs = load_catalogue().knobs
    for name in profile.settings if allow else ():
        docs = knobs[name].docs if name in knobs else "undocumented"
        if docs not in allow:
            return ProfileError(
                f"{name} is {docs} ({ADVICE[docs]}), and --allow leaves that class out; the settings were measured "
                "together, so none is left out",
                f"add {docs} to --allow, or search again with 'nccltune --allow {','.join(allow)}'",
            )
    return None


def conflicts(profile: Profile, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Name the settings that are set here already: NCCL lets the environment win over its files."""
    return tuple(
        f"conflict: {name} is set to {shlex.quote(one_line(environ[name]))} in this environment, which wins over files"
        + (f"; the profile has {shlex.quote(value)}" if environ[name] != value else ", as the profile has it")
        for name, value in profile.settings.items()
        if name in environ
    )


def too_late(profile: Profile) -> tuple[str, ...]:
    """The settings that no configuration file of NCCL can set: others read them, and before NCCL does."""
    return tuple(name for name in profile.settings if not name.startswith("NCCL_"))


def render(profile: Profile, form: Format) -> str:
    """Write the settings of a profile in one format.

    Args:
        profile: From ``read_profile``, whose names and values are known to be plain. What its own env file holds back
            is written: ``why_not`` has been asked.
        form: ``env`` and ``nccl-conf`` are one grammar: see ``profile.env_text``.
    """
    return _WRITERS[form](profile.model_copy(update={"withheld": ""}))


def _sh(profile: Profile) -> str:
    return _lines(profile, lambda name, value: f"export {name}={shlex.quote(value)}")


def _dockerfile(profile: Profile) -> str:
    labels = {
        "cluster": profile.cluster,
        "study": profile.study,
        "verdict": profile.verdict,
        "workload": profile.workload,
        "measured": profile.created,
        **({"gain": format_share(profile.numbers.gain)} if profile.numbers.gain is not None else {}),
        **({"emulated": str(profile.emulated)} if profile.emulated else {}),
        **({"collective-only": "true"} if not profile.on_a_model else {}),
        **{f"condition.{_label(name)}": value for name, value in profile.conditions.items()},
    }
    text = _lines(profile, lambda name, value: f"ENV {name}={_docker_quoted(value)}")
    text += "".join(f"LABEL {_LABEL}{name}={_docker_quoted(one_line(value))}\n" for name, value in labels.items())
    return text + "# These lines go after the FROM line of an image with PyTorch.\n"


def _docker_quoted(value: str) -> str:
    r"""Quote for ``ENV`` and ``LABEL``: within ``"`` Docker takes ``\``, ``"`` and ``$`` for its own."""
    return '"' + re.sub(r'([\\"$])', r"\\\1", value) + '"'


def _label(name: str) -> str:
    """A text as a part of a label's name or of an object's: lower-case letters, digits and single dashes."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "x"


def _k8s(profile: Profile) -> str:
    name = f"nccltune-{_label(profile.cluster)}"[:63].rstrip("-")
    notes = {"verdict": profile.verdict, "study": profile.study, "measured": profile.created, **profile.conditions}
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": name,
            "labels": {"app.kubernetes.io/managed-by": "nccltune"},
            "annotations": {f"nccltune/{_label(note)}": one_line(text) for note, text in notes.items()},
        },
        "data": dict(profile.settings),
    }
    use = {"envFrom": [{"configMapRef": {"name": name}}]}
    lines = [*header(profile), *setting_comments(profile).values()]
    lines += yaml.safe_dump(config_map, sort_keys=False, allow_unicode=True, width=10_000).splitlines()
    lines += ["# In the container of the job's pod:"]
    lines += [f"#   {line}" for line in yaml.safe_dump(use, sort_keys=False).splitlines()]
    return "".join(f"{line}\n" for line in lines)


def _lines(profile: Profile, line: Callable[[str, str], str]) -> str:
    lines, comments = list(header(profile)), setting_comments(profile)
    for name, value in profile.settings.items():
        lines += [comments[name], line(name, value)]
    return "".join(f"{each}\n" for each in lines)


_WRITERS: dict[Format, Callable[[Profile], str]] = {
    "env": env_text,
    "sh": _sh,
    "nccl-conf": env_text,
    "dockerfile": _dockerfile,
    "k8s": _k8s,
}
