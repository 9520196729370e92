"""The file names of a launch's folder, in one place."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LAUNCHES = "launches"


@dataclass(frozen=True)
class LaunchPaths:
    """The folder of one launch: ``<study>/launches/<launch_id>``.

    Attributes:
        folder: Absolute, so that no path of it begins with a dash and a changed working directory does no harm.
    """

    folder: Path

    @property
    def request(self) -> Path:
        """What the launch is to do, written by the runner."""
        return self.folder / "request.json"

    @property
    def result(self) -> Path:
        """What came of it, left by rank 0 by rename."""
        return self.folder / "result.json"

    @property
    def heartbeat(self) -> Path:
        """Where rank 0 says how far it is."""
        return self.folder / "heartbeat"

    @property
    def log(self) -> Path:
        """Standard output and error of all processes, capped."""
        return self.folder / "launch.log"

    @property
    def env_file(self) -> Path:
        """The settings of the launch, as the text of an env file."""
        return self.folder / "nccl.env"

    @property
    def elastic(self) -> Path:
        """Torchrun's own folder: one ``error.json`` for each rank that raised."""
        return self.folder / "torchelastic"

    @property
    def nccl(self) -> Path:
        """NCCL's logs, one for each rank."""
        return self.folder / "nccl"

    @property
    def guardian(self) -> Path:
        """The guardian's report, written when nobody of the launch was left."""
        return self.folder / "guardian.json"

    def error_files(self) -> tuple[Path, ...]:
        """Return torchrun's error files, oldest first: the first rank to fail is usually the cause."""
        return tuple(sorted(self.elastic.glob("**/error.json"), key=_age))

    def nccl_logs(self) -> tuple[Path, ...]:
        """Return NCCL's logs by name."""
        return tuple(sorted(self.nccl.glob("*.log")))


def launch_paths(study_folder: Path, launch_id: str) -> LaunchPaths:
    """Return the file names of one launch; creates nothing.

    Args:
        study_folder: The folder of the study.
        launch_id: Unique within the study.

    Raises:
        ValueError: ``launch_id`` is no plain name of a folder.
    """
    if not launch_id or launch_id.startswith(".") or "/" in launch_id or "\0" in launch_id:
        raise ValueError(f"{launch_id!r} is no plain name of a folder")
    return LaunchPaths(Path.cwd() / study_folder / LAUNCHES / launch_id)


def unfinished_tokens(study_folder: Path) -> Iterator[str]:
    """Yield the tokens of launches whose guardian left no report: some of their processes may still run.

    Args:
        study_folder: The folder of the study; may be absent.
    """
    for request in sorted((study_folder / LAUNCHES).glob("*/request.json")):
        paths = LaunchPaths(request.parent)
        if paths.guardian.exists():
            continue
        try:
            token = json.loads(request.read_text())["token"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if isinstance(token, str) and token:
            yield token


def _age(path: Path) -> tuple[float, str]:
    try:
        return path.stat().st_mtime, str(path)
    except OSError:
        return float("inf"), str(path)
