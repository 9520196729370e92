"""Makes ``tests/fakes.py`` and ``tests/studies.py`` importable as ``fakes`` and ``studies`` in every test."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path


def _load(name: str) -> None:
    if name in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


_load("fakes")
_load("studies")
