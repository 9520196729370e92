"""NCCL's own reader takes an exported nccl.conf as it was meant. Needs two GPUs or more.

With ``NCCLTUNE_PROFILE=FOLDER`` the profile of a real study (on two emulated nodes) is exported; else one made up.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nccltune.machine import facts as machine
from nccltune.records import Candidate
from nccltune.space.catalogue import load_catalogue
from nccltune.trial.evidence import evidence, read_logs
from nccltune.verdict import profile as profiles
from nccltune.verdict.reading import read_profile

FACTS = machine.gather(os.environ)
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(180),
    pytest.mark.skipif(FACTS.backend != "nccl" or len(FACTS.gpus) < 2, reason="needs two GPUs and a torch with NCCL"),
]
SETTINGS = {
    "NCCL_ALGO": "allreduce:ring",
    "NCCL_PROTO": "allreduce:simple",
    "NCCL_MIN_NCHANNELS": "8",
    "NCCL_SOCKET_NTHREADS": "2",
    "NCCL_NSOCKS_PERTHREAD": "2",
}


def the_profile(folder: Path) -> Path:
    if given := os.environ.get("NCCLTUNE_PROFILE"):
        return Path(given)
    made_up = profiles.Profile(
        cluster="two nodes",
        study="s",
        created="2026-01-01",
        verdict="ship",
        sentence="Ship it",
        settings=SETTINGS,
        workload="allreduce",
        backend="nccl",
        emulated=2,
        collective_only=True,
        min_gain=0.01,
        numbers=profiles.Numbers(gain=1.0),
        conditions={},
    )
    return profiles.write(made_up, folder / "profile")[1]


def command(*words: object) -> str:
    done = subprocess.run([sys.executable, "-m", "nccltune", *map(str, words)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_nccl_says_that_it_read_the_exported_file(tmp_path: Path) -> None:
    profile, conf = the_profile(tmp_path), tmp_path / "nccl.conf"
    command("export", profile, "--format", "nccl-conf", "--emulated", "--collective-only", "--out", conf)
    assert "EMULATED" in conf.read_text()
    wanted = {name: value for name, value in read_profile(profile).settings.items() if name.startswith("NCCL_")}
    assert wanted
    logs = tmp_path / "logs"
    logs.mkdir()
    say = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV,NET", "NCCL_DEBUG_FILE": f"{logs}/%h.%p.log"}
    job = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]

    done = subprocess.run(
        [*job, str(Path(__file__).with_name("plain_job.py"))],
        env={**os.environ, **say, "NCCL_CONF_FILE": str(conf)},
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert done.returncode == 0, done.stderr
    found = evidence(read_logs(sorted(logs.glob("*.log"))), Candidate(settings=wanted), load_catalogue())
    assert wanted.items() <= found.echoed.items()
    assert (found.refused, found.inert) == ({}, ())
    assert found.nnodes == 2
    if kept := os.environ.get("NCCLTUNE_RECORDINGS"):
        Path(kept, "nccl-conf-echo.log").write_text("".join(log.read_text() for log in sorted(logs.glob("*.log"))))
        Path(kept, "nccl.conf").write_text(conf.read_text())
