"""From a planted step to the verdict, with real launches on gloo: a gain is shipped, none is not."""

import json

import pytest

from nccltune import cli

pytestmark = [pytest.mark.launch, pytest.mark.timeout(500)]

JOB = """
import os
import time

import torch

SLOW_S = 0.2
FACTOR = {factor}


def make(context):
    model = torch.nn.Linear(8, 8)
    took_s = SLOW_S * (FACTOR if os.environ.get("OMP_NUM_THREADS") == "2" else 1)

    def step(model, batch):
        time.sleep(took_s)
        return model(batch).sum()

    return model, torch.zeros(4, 8), step
"""
SPACE = """
schema_version: 1
name: planted
backend: gloo
knobs:
  OMP_NUM_THREADS: [null, 2]
"""


def verdict_of(factor, folder, monkeypatch, capsys):
    """Run the main job on a step that the setting makes ``factor`` times as long."""
    monkeypatch.chdir(folder)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    (folder / "planted_job.py").write_text(JOB.format(factor=factor))
    (folder / "planted.yaml").write_text(SPACE)
    words = ["--workload", "planted_job:make", "--space", "planted.yaml", "--trials", "2", "--rounds", "4"]
    assert cli.run([*words, "--no-mlflow", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    (env_file,) = (folder / "profiles").glob("*/nccl.env")
    settings = [line for line in env_file.read_text().splitlines() if not line.startswith("#")]
    return told["verdict"], settings


def test_a_setting_that_halves_the_step_is_shipped(tmp_path, monkeypatch, capsys):
    verdict, settings = verdict_of(0.5, tmp_path, monkeypatch, capsys)
    assert verdict["word"] == "ship", verdict["sentence"]
    assert settings == ["OMP_NUM_THREADS=2"]
    assert 0.8 < verdict["gain"] < 1.1
    assert verdict["round_launches"] == 8
    assert verdict["pays_after_steps"] > 100


def test_a_setting_that_does_nothing_is_not(tmp_path, monkeypatch, capsys):
    verdict, settings = verdict_of(1.0, tmp_path, monkeypatch, capsys)
    assert verdict["word"] in ("keep-default", "no-verdict")
    assert settings == []
