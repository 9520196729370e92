"""A validation with real launches on gloo."""

import json
import os

import pytest

from nccltune import cli
from nccltune.machine import facts as machine
from nccltune.verdict import profile as profiles

pytestmark = pytest.mark.launch


def test_one_real_round_is_too_few_for_a_verdict_and_leaves_its_result(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")  # as in an image that has the exported setting
    profile = profiles.Profile(
        cluster="cpu",
        study="s",
        created="2026-01-01",
        verdict="ship",
        sentence="Ship it",
        settings={"OMP_NUM_THREADS": "2"},
        workload="allreduce",
        workload_options={"sizes": [[65536, 1]], "dtype": "fp32"},
        backend="gloo",
        collective_only=True,
        min_gain=0.01,
        numbers=profiles.Numbers(),
        conditions={**machine.fingerprint(machine.gather(dict(os.environ))), "world size": "2"},
    )
    profiles.write(profile, tmp_path / "p")
    assert cli.run(["validate", str(tmp_path / "p"), "--rounds", "1", "--out", str(tmp_path), "--json"]) == 4
    told = json.loads(capsys.readouterr().out)
    assert told["word"] == "no verdict"
    assert told["changed"] == []
    (kept,) = json.loads((tmp_path / "p" / "validation.json").read_text())["validations"]
    assert kept == told
    (study,) = (tmp_path / "runs").iterdir()
    lines = [json.loads(line) for line in (study / "ledger.jsonl").read_text().splitlines()]
    outcomes = [line["launch"]["outcome"] for line in lines if line["record"] == "launch"]
    assert [outcome["outcome"] for outcome in outcomes] == ["measurement"] * 2
    files = [
        (study / line["launch"]["folder"] / "nccl.env").read_text() for line in lines if line["record"] == "launch"
    ]
    threads = [line for text in files for line in text.splitlines() if line.startswith("OMP_NUM_THREADS=")]
    # torchrun's own default on one side, the profile's on the other; the caller's on neither
    assert sorted(threads) == ["OMP_NUM_THREADS=1", "OMP_NUM_THREADS=2"]
