"""Which study a person means by a path, and the profile that goes with it."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from ..errors import LedgerError, ProfileError, StudyError
from ..study.ledger import FILE, Ledger
from ..verdict.profile import PROFILE_FILE, Profile
from ..verdict.reading import profile_file, read_profile

_log = logging.getLogger(__name__)
_SHOWN = 5
_PARTS = ("workload", "space", "machine", "placement", "inherited")
_COUNTS = ("nnodes", "nproc_per_node", "emulated_nodes")


@dataclass(frozen=True, kw_only=True)
class Source:
    """What a report is made from.

    Attributes:
        ledger: Of the study; only read.
        profile: The profile that names this study, where there is one.
        profile_file: Its ``profile.yaml``.
    """

    ledger: Ledger
    profile: Profile | None = None
    profile_file: Path | None = None

    @property
    def folder(self) -> Path:
        """Of the study, as the user named it."""
        return self.ledger.folder

    @property
    def study(self) -> str:
        """Name of the study."""
        return self.folder.resolve().name


def find(path: Path) -> Source:
    """Read the study that a path means.

    Args:
        path: A study's folder or its ledger, a folder that holds exactly one study, or a profile that names its study.

    Raises:
        StudyError: There is no study there, or more than one.
        LedgerError: The study's ledger cannot be understood.
        ProfileError: The profile cannot be understood.
    """
    folder = _study_folder(path)
    with Ledger.open(folder) as ledger:
        _check_plan(ledger)
        file, profile = _profile_of(folder)
        return Source(ledger=ledger, profile=profile, profile_file=file)


def _check_plan(ledger: Ledger) -> None:
    """Refuse a plan whose parts cannot be read: a ledger takes its first line's plan as it stands."""
    wrong = [name for name in _PARTS if not isinstance(ledger.plan.get(name, {}), dict)]
    if not wrong:
        placement = ledger.plan.get("placement", {})
        wrong = [f"placement.{name}" for name in _COUNTS if not isinstance(placement.get(name, 0), int)]
    if wrong:
        raise LedgerError(f"{ledger.path} line 1: plan.{wrong[0]} is none", "restore the file, or give another study")


def _study_folder(path: Path) -> Path:
    if path.name == FILE and path.is_file():
        return path.parent
    if Ledger.exists(path):
        return path
    if profile_file(path).is_file():
        return _named_by(profile_file(path))
    if not path.is_dir():
        raise StudyError(f"there is no study {path}", "give a study's folder, for instance runs/NAME")
    found = sorted({*path.glob(f"*/{FILE}"), *path.glob(f"runs/*/{FILE}")})
    if not found:
        raise StudyError(f"there is no study in {path}: no {FILE}", "give a study's folder, for instance runs/NAME")
    if len(found) > 1:
        names = ", ".join(str(file.parent) for file in found[:_SHOWN]) + (", …" if len(found) > _SHOWN else "")
        raise StudyError(f"{path} holds {len(found)} studies: {names}", "give one of them")
    return found[0].parent


def _named_by(file: Path) -> Path:
    """The folder of the study that a profile names: both lie below the same ``--out``."""
    study = read_profile(file, thoroughly=False).study
    folder = _out_of(file.parent) / "runs" / Path(study).name
    if not Ledger.exists(folder):
        raise StudyError(f"the profile names the study {study}, and {folder} does not hold it", "give its folder")
    return folder


def _profile_of(folder: Path) -> tuple[Path, Profile] | tuple[None, None]:
    for file in sorted((_out_of(folder) / "profiles").glob(f"*/{PROFILE_FILE}")):
        try:
            profile = read_profile(file, thoroughly=False)
        except ProfileError as error:
            _log.info("left aside: %s", error)
            continue
        if profile.study == folder.resolve().name:
            return file, profile
    return None, None


def _out_of(folder: Path) -> Path:
    """``--out``, two folders above a study's or a profile's; the way the user wrote it where that goes so far up."""
    return folder.parents[1] if len(folder.parents) > 1 else folder.absolute().parents[1]
