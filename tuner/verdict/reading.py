"""A profile read back: every way in which a file can be wrong ends in one line that says where."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path
from typing import Any

from ..errors import ProfileError, SpaceError
from ..space.document import Document, read_document
from .profile import ENV_FILE, PROFILE_FILE, SCHEMA_VERSION, Profile, one_line

_NCCL_NAME = re.compile(r"NCCL_[A-Z0-9_]+", re.ASCII)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_LONGEST = 1023  # bytes of a value that NCCL's reader keeps (src/misc/param.cc, setEnvFile)
_LARGEST = 1 << 20  # bytes of a profile
_SHOWN = 80  # characters of a wrong name in a message
_AGAIN = "correct the line, or run the study's command again to write the profile anew"
# A knob's own line in the catalogue. The whole catalogue costs a quarter of the time that `nccltune check` may take.
_CATALOGUE_NAME = re.compile(r"^  ([A-Z][A-Z0-9_]*):", re.MULTILINE)


def read_profile(path: Path, *, thoroughly: bool = True) -> Profile:
    """Read a profile.

    Args:
        path: The profile's folder, its ``profile.yaml``, or the ``nccl.env`` beside it.
        thoroughly: Whether each value is held against the catalogue, which takes a tenth of a second. Without it a
            name is still one of NCCL's form or of the catalogue, and a value one printable line.

    Raises:
        ProfileError: There is none, it is broken, of a newer release, or names what cannot be set; with file, line
            and field.
    """
    file = profile_file(path)
    document = _document(file)
    version = document.data.get("schema_version") if isinstance(document.data, dict) else None
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise ProfileError(
            f"{file}: schema_version: {version} is newer than this release of nccltune, which reads {SCHEMA_VERSION}",
            "use the release that wrote it, or a newer one",
        )
    try:
        profile = document.parse(Profile)
        _check(document, profile, thoroughly)
    except SpaceError as error:
        raise ProfileError(one_line(error.what), one_line(error.do) or _AGAIN) from None
    return profile


def profile_file(path: Path) -> Path:
    """The ``profile.yaml`` that a user means by a folder, by the file itself, or by the ``nccl.env`` beside it."""
    if path.is_dir():
        return path / PROFILE_FILE
    return path.with_name(PROFILE_FILE) if path.name == ENV_FILE else path


def _document(file: Path) -> Document:
    try:
        size = file.stat().st_size
    except OSError as error:
        raise ProfileError(
            f"there is no profile {file}: {error.strerror}", f"give the folder that holds {PROFILE_FILE}"
        ) from None
    if size > _LARGEST:
        raise ProfileError(f"{file} is larger than 1 MiB, so it is no profile", f"give the {PROFILE_FILE} of a study")
    try:
        return read_document(file)
    except SpaceError as error:
        raise ProfileError(one_line(error.what), one_line(error.do) or _AGAIN) from None


def _check(document: Document, profile: Profile, thoroughly: bool) -> None:
    for name, value in profile.settings.items():
        where = ("settings", name)
        if not _NCCL_NAME.fullmatch(name) and name not in catalogue_names():
            raise document.problem(where, f"'{name[:_SHOWN]}' is no setting of NCCL and none of the catalogue")
        if not value or not value.isprintable():
            raise document.problem(where, "the value is empty or not one printable line")
        if len(value.encode()) > _LONGEST:
            raise document.problem(where, f"the value is longer than the {_LONGEST} bytes that NCCL reads")
    for name in profile.inherited:
        if not _NAME.fullmatch(name):
            raise document.problem(("inherited", name), f"'{name[:_SHOWN]}' is no name of an environment variable")
    if thoroughly:
        _check_values(document, profile)


def _check_values(document: Document, profile: Profile) -> None:
    from ..space.catalogue import load_catalogue, nearest_knob, parse_version
    from ..space.values import why_no_value

    catalogue, version = load_catalogue(), parse_version(profile.conditions.get("nccl"))
    for name, value in profile.settings.items():
        where = ("settings", name)
        if name not in catalogue.knobs:
            raise document.problem(where, f"{name} is unknown to this release", nearest_knob(name, catalogue))
        why = why_no_value(value, catalogue.knobs[name], catalogue, version)
        if why:
            raise document.problem(where, f"the value {value!r} {why}")


def catalogue_names() -> frozenset[str]:
    """The names of the catalogue, read from its text alone."""
    text = (resources.files("nccltune.search_spaces") / "knobs.yaml").read_text(encoding="utf-8")
    return frozenset(_CATALOGUE_NAME.findall(text[text.index("\nknobs:") :]))


def json_schema() -> dict[str, Any]:
    """The JSON schema of ``profile.yaml``; published as ``profile.schema.json`` in this folder."""
    return {**Profile.model_json_schema(), "$schema": "https://json-schema.org/draft/2020-12/schema"}
