"""The wheel, not the checkout: built from the sdist, installed into a fresh environment, run from a hostile folder."""

import importlib.metadata
import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.packaging, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
MAPPED = {"nccltune/workloads/": "workloads/", "nccltune/search_spaces/": "search_spaces/", "nccltune/": "tuner/"}


def tracked(folder):
    """Files of a folder that belong to the project; generated ones left out."""
    return {
        str(path.relative_to(ROOT))
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder)]
    # The wheel comes from the unpacked sdist, so that a stale build/ of the tree cannot leak into it.
    subprocess.run([*build, "--sdist", str(ROOT)], check=True, capture_output=True)
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (source,) = (folder / "unpacked").iterdir()
    subprocess.run([*build, "--wheel", str(source)], check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def fresh(wheel, tmp_path_factory):
    """A fresh venv with the wheel; its requirements are seen from the testing environment, not copied (2 GB)."""
    folder = tmp_path_factory.mktemp("fresh")
    venv.create(folder, with_pip=False, system_site_packages=False, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    # pip works on the fresh environment itself: with --prefix it would take the testing environment's install away.
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel)], check=True, capture_output=True)
    # A path file adds the folder to the path without reading the path files in it, so the editable install stays out.
    others = [path for path in sys.path if path.endswith("-packages")] or [sysconfig.get_path("purelib")]
    (site / "requirements.pth").write_text("".join(f"{path}\n" for path in others))
    return folder


def test_the_wheel_has_every_file_of_the_tree_and_no_other(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    expected = set()
    for inside, outside in MAPPED.items():
        expected |= {inside + name.removeprefix(outside) for name in tracked(outside)}
    assert names == expected


def test_the_package_list_names_every_folder():
    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    found = {"nccltune"} | {
        "nccltune." + ".".join(path.parent.relative_to(ROOT / "tuner").parts)
        for path in (ROOT / "tuner").rglob("*/__init__.py")
    }
    assert listed == found | {"nccltune.workloads", "nccltune.search_spaces"}


def test_a_two_trial_run_from_a_folder_with_its_own_tuner_and_workloads(fresh, tmp_path):
    for name in ("tuner", "workloads", "search_spaces", "nccltune"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('the user own folder was imported')\n")
    for name in ("queue.py", "statistics.py"):
        (tmp_path / name).write_text("raise SystemExit('the user own module was imported')\n")
    keep = ("PATH", "HOME", "LANG", "TMPDIR", "OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
    environ = {name: os.environ[name] for name in keep if name in os.environ}
    command = [str(fresh / "bin" / "nccltune")]

    shown = subprocess.run([*command, "--help"], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60)
    assert shown.returncode == 0, shown.stderr
    assert "--workload" in shown.stdout

    words = ["--workload", "allreduce", "--sizes", "64K", "--trials", "2", "--rounds", "1", "--json"]
    run = subprocess.run([*command, *words], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["verdict"]["word"] in ("keep-default", "no-verdict")
    (profile,) = (tmp_path / "profiles").iterdir()
    assert {path.name for path in profile.iterdir()} == {"nccl.env", "profile.yaml"}
    (study,) = (tmp_path / "runs").iterdir()
    assert {"ledger.jsonl", "optuna.db", "mlflow.db", "trials.csv", "report.html"} <= {
        path.name for path in study.iterdir()
    }
    installed = subprocess.run(
        [str(fresh / "bin" / "python"), "-I", "-c", "import nccltune; print(nccltune.__file__)"],
        capture_output=True,
        text=True,
    )
    assert installed.stdout.startswith(str(fresh))
    assert importlib.metadata.version("nccltune"), "the testing environment still has its own install"
