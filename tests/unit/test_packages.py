"""Every package of the tree is one that is installed."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_folder_with_code_is_named_in_pyproject():
    named = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    inside = {file.parent.relative_to(ROOT / "tuner") for file in (ROOT / "tuner").rglob("__init__.py")}
    found = {".".join(("nccltune", *folder.parts)) for folder in inside}
    assert set(named) == found | {"nccltune.workloads", "nccltune.search_spaces"}
