"""``make setup`` where a torch is there already, in a Python that is itself in a venv, as in many training images."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = [pytest.mark.packaging, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("tuner", "workloads", "search_spaces", "Makefile", "pyproject.toml", "constraints.txt", "README.md", "LICENSE")


def test_the_torch_of_the_image_is_used_and_none_is_installed(tmp_path):
    for name in PARTS:
        source, target = ROOT / name, tmp_path / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, target)
    made = subprocess.run(
        ["make", "setup", f"PYTHON={sys.executable}"], cwd=tmp_path, capture_output=True, text=True, timeout=280
    )
    assert made.returncode == 0, made.stderr
    told = subprocess.run([".venv/bin/nccltune"], cwd=tmp_path, capture_output=True, text=True, timeout=60).stderr
    assert told.startswith(f"torch {torch.__version__} ({Path(torch.__file__).parent})")
    assert not list((tmp_path / ".venv").glob("lib/python*/site-packages/torch"))
