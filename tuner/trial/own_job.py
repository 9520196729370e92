"""The user's own job: a function of a module that returns model, batch and step, or a whole script.

Nothing of it is imported or run here; its file is found and its content remembered, so that a study does not go on
with another one.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from ..errors import UsageError

_DIGITS = 16  # of the SHA-256: enough to tell two versions of a file apart, short enough to be read
_FACTORY = re.compile(r"(?P<module>[^\W\d]\w*(?:\.[^\W\d]\w*)*):(?P<function>[^\W\d]\w*(?:\.[^\W\d]\w*)*)\Z")


def is_script(word: str) -> bool:
    """Whether a value of ``--workload`` is the path of a script."""
    return word.endswith(".py")


def is_factory(word: str) -> bool:
    """Whether a value of ``--workload`` is a module and a function of it."""
    return ":" in word


def script_options(word: str, arguments: Sequence[str] = ()) -> dict[str, Any]:
    """Find a script.

    Args:
        word: Its path, from the working folder.
        arguments: What it is started with.

    Returns:
        The options of the workload ``script``.

    Raises:
        UsageError: There is no such file.
    """
    path = Path(word)
    if not path.is_file():
        raise UsageError(f"there is no script '{word}' in {Path.cwd()}", "give its path from this folder")
    return {"script": word, "arguments": list(arguments), "sha256": _digest(path)}


def factory_options(word: str) -> dict[str, Any]:
    """Find the module of a factory, as its ranks will: the working folder comes last on Python's path.

    Args:
        word: ``module:function``.

    Returns:
        The options of the workload ``factory``.

    Raises:
        UsageError: The word is something else, or there is no such module.
    """
    match = _FACTORY.match(word)
    if not match:
        raise UsageError(f"'{word}' names no function of a module", "write it as for an import: my_package.train:build")
    spec = _find(match["module"])
    if spec is None:
        raise UsageError(
            f"there is no module '{match['module']}' in {Path.cwd()} or on Python's path",
            "go to the folder that holds it, or put that folder into PYTHONPATH",
        )
    path = Path(spec.origin) if spec.origin and spec.has_location else None
    return {"factory": word, "sha256": _digest(path) if path else ""}


def _find(name: str) -> ModuleSpec | None:
    """Find a module without importing it or the packages around it."""
    here = Path.cwd()
    places: Sequence[str] | None = [*(place for place in sys.path if place and Path(place) != here), str(here)]
    spec: ModuleSpec | None = None
    parts = name.split(".")
    for depth in range(len(parts)):
        part = ".".join(parts[: depth + 1])
        spec = PathFinder.find_spec(part, places)
        if spec is None and depth == 0:
            spec = importlib.util.find_spec(part)  # built in, or of an editable install
        if spec is None:
            return None
        places = spec.submodule_search_locations or []
    return spec


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:_DIGITS]
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", "make it readable") from error
