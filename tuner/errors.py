"""The exception tree. Only ``cli`` turns these into exit codes.

::

    NccltuneError                     1
    ├── UsageError                    2   an option, name or value that cannot be used
    │   ├── SpaceError                2   a space or catalogue file with a wrong field
    │   └── HostBound                 2   a step in which the GPU waits for the host: no NCCL setting can help it
    ├── MachineError                  1   this machine cannot run what was asked
    ├── StorageError                  1   a file or folder that cannot be read or written
    │   └── LedgerError               1   a ledger that cannot be trusted
    ├── StudyError                    1   a study that cannot go on
    │   ├── StudyMismatch             1   an explicit study made for something else
    │   └── StudyBusy                 1   another run holds the folder or a GPU
    ├── LaunchError                   1   the launcher itself cannot start
    ├── EnvironmentFault              1   every candidate would fail here
    ├── ProfileError                  1   a profile that cannot be used or written
    └── Interrupted                 130   the user or the system asked to stop

A failed candidate is not an exception but a value: see ``records.Failure``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class NccltuneError(Exception):
    """One line: what is wrong, why, and what to do next.

    Args:
        what: What is wrong and why, without a full stop at the end.
        do: What to do next, as an imperative; empty where nothing can be advised.
    """

    exit_status = 1

    def __init__(self, what: str, do: str = "") -> None:
        self.what = what.rstrip(".")
        self.do = do.rstrip(".")
        separator = "; " if self.do[:1].islower() else ". "
        super().__init__(f"{self.what}{separator if self.do else ''}{self.do}.")


class UsageError(NccltuneError):
    """An option, name or value that cannot be used."""

    exit_status = 2


class SpaceError(UsageError):
    """A space or catalogue file with a wrong field; the message names file, line and field."""


class HostBound(UsageError):
    """A step in which the GPU waits for the host, so that tuning NCCL would be wasted."""


class MachineError(NccltuneError):
    """This machine cannot run what was asked."""


class StorageError(NccltuneError):
    """A file or folder that cannot be read or written."""


class LedgerError(StorageError):
    """A ledger that cannot be trusted."""


class StudyError(NccltuneError):
    """A study that cannot go on."""


class StudyMismatch(StudyError):
    """An explicitly named study that was made for another space, machine, workload or plan."""


class StudyBusy(StudyError):
    """Another run holds the study folder or a GPU."""


class LaunchError(NccltuneError):
    """The launcher itself cannot start."""


class EnvironmentFault(NccltuneError):
    """A fault of the machine or container under which every candidate would fail."""


class ProfileError(NccltuneError):
    """A profile that cannot be used or written."""


class Interrupted(NccltuneError):
    """The user or the system asked to stop."""

    exit_status = 130


def nearest(word: str, known: Iterable[str]) -> str:
    """Say which known words are nearest to a mistyped one.

    Args:
        word: What the user wrote.
        known: All words that would have been right.

    Returns:
        ``Did you mean 'resnet'`` or, when nothing is near, ``Known: a, b, c``.
    """
    names = sorted(set(known))
    folded = {name.lower(): name for name in names}
    close = difflib.get_close_matches(word.lower(), folded, n=2, cutoff=0.6)
    if close:
        return "Did you mean " + " or ".join(f"'{folded[name]}'" for name in close)
    return "Known: " + ", ".join(names)
