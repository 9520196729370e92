"""What the tests of launches share: a quick launcher, scripted workloads, and the proof that nobody is left."""

from __future__ import annotations

import os
import secrets
import shlex
import sys
import time
from pathlib import Path

import pytest
from fakes import request

from nccltune.records import Limits
from nccltune.trial import process
from nccltune.trial.runner import LaunchRunner

HERE = Path(__file__).parent


def script(path: Path, program: Path) -> str:
    """An executable that runs one of the programs of this folder with this interpreter."""
    path.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {shlex.quote(str(program))} "$@"\n')
    path.chmod(0o755)
    return str(path)


def wait_for(condition, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


class Launches:
    """Makes requests for scripted workloads and runs them below ``folder``."""

    def __init__(self, folder: Path, quick: str) -> None:
        self.folder = folder
        self.quick = quick
        self.tokens: list[str] = []
        self.environ = {**os.environ, "PYTHONPATH": str(HERE)}

    def request(self, act: str, launch_id: str = "0000-search", **fields):
        fields = {
            "limits": Limits(startup_s=60, no_progress_s=60, grace_s=1, shutdown_s=0),
            "token": secrets.token_hex(8),
        } | fields
        self.tokens.append(fields["token"])
        return request(launch_id, workload="act", options={"act": act}, **fields)

    def runner(self, *, real: bool = False, **options) -> LaunchRunner:
        options = {"environ": self.environ, "python": sys.executable if real else self.quick} | options
        return LaunchRunner(self.folder, package="scripted_workloads", **options)

    def run(self, act: str, *, real: bool = False, **fields):
        outcome = self.runner(real=real).run(self.request(act, **fields))
        self.nobody_left()
        return outcome

    def left(self) -> list[int]:
        return list(process.holders(self.tokens))

    def nobody_left(self) -> None:
        assert self.left() == []

    def phase(self, launch_id: str = "0000-search") -> str:
        try:
            return (self.folder / "launches" / launch_id / "heartbeat").read_text()
        except OSError:
            return ""


@pytest.fixture
def launches(tmp_path):
    """Scripted launches in a folder with a nasty name; whatever a failed test leaves running is ended."""
    folder = tmp_path / "a b'c-%d"
    folder.mkdir()
    made = Launches(folder, script(tmp_path / "quick python", HERE / "quick_torchrun.py"))
    yield made
    process.sweep(made.tokens)
