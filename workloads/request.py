"""The request file, as plain JSON: what this launch is to do.

The fields and their meaning are those of ``nccltune.records.Request``; they are spelled out again here
because a rank starts with the standard library and torch alone.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

SCHEMA_VERSION = 1

T = TypeVar("T")


class RequestError(ValueError):
    """A request file that does not say what this harness understands."""


@dataclass(frozen=True)
class Candidate:
    """The settings under test."""

    settings: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Limits:
    """How long a launch may take, in seconds."""

    startup_s: float = 120.0
    no_progress_s: float = 60.0
    total_s: float = 600.0
    grace_s: float = 5.0
    shutdown_s: int = 3


@dataclass(frozen=True)
class Steps:
    """How a launch is measured; counts of steps, and seconds where the name says so."""

    warmup_min: int = 5
    warmup_max: int = 60
    warmup_s: float = 0.2
    timed_min: int = 10
    timed_max: int = 200
    block: int = 10
    relative_error: float = 0.002
    timed_s: float = 30.0
    profiled: int = 0


@dataclass(frozen=True)
class Placement:
    """Where the ranks run."""

    nnodes: int = 1
    nproc_per_node: int = 2
    emulated_nodes: int = 0
    launch_prefix: tuple[str, ...] = ()
    rendezvous_host: str = "127.0.0.1"


@dataclass(frozen=True)
class Ladder:
    """A search for a batch size; without ``first`` there is none."""

    first: int = 0
    last: int = 0
    idle_share: float = 0.03
    memory_share: float = 0.8


@dataclass(frozen=True)
class Request:
    """What one launch is to do."""

    study: str
    launch_id: str
    token: str
    workload: str
    backend: str
    schema_version: int = SCHEMA_VERSION
    options: dict[str, Any] = field(default_factory=dict)
    candidate: Candidate = Candidate()
    environment: dict[str, str] = field(default_factory=dict)
    per_rank_env: dict[str, dict[str, str]] = field(default_factory=dict)
    placement: Placement = Placement()
    steps: Steps = Steps()
    limits: Limits = Limits()
    ladder: Ladder = Ladder()
    checks: bool = True
    log_choices: bool = False
    seed: int = 0


def parse(document: Any) -> Request:
    """Turn the JSON document of a request file into a request.

    Args:
        document: What ``json.loads`` returned.

    Returns:
        The request.

    Raises:
        RequestError: A field is missing, unknown, or of another type; the message begins with its path.
    """
    if isinstance(document, dict) and document.get("schema_version", SCHEMA_VERSION) != SCHEMA_VERSION:
        raise RequestError(f"schema_version: this harness reads {SCHEMA_VERSION}, not {document['schema_version']!r}")
    return _build(Request, document, "")


def read(path: Path) -> Request:
    """Read and parse a request file.

    Args:
        path: The file.

    Returns:
        The request.

    Raises:
        RequestError: The file is not a request.
        OSError: The file cannot be read.
    """
    try:
        return parse(json.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise RequestError(f"{path}: {error}") from error


def _build(kind: type[T], value: Any, path: str) -> T:
    if not isinstance(value, Mapping):
        raise RequestError(f"{path or 'the whole'}: an object is needed, not {type(value).__name__}")
    hints = typing.get_type_hints(kind)
    known = {item.name: item for item in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for name in value:
        if name not in known:
            raise RequestError(f"{_join(path, name)}: unknown field")
    for name, item in known.items():
        if name not in value and item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING:
            raise RequestError(f"{_join(path, name)}: missing")
    return kind(**{name: _convert(hints[name], given, _join(path, name)) for name, given in value.items()})


def _convert(hint: Any, value: Any, path: str) -> Any:
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _build(hint, value, path)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is dict:
        if not isinstance(value, dict):
            raise RequestError(f"{path}: an object is needed, not {type(value).__name__}")
        return {str(key): _convert(arguments[1], item, _join(path, str(key))) for key, item in value.items()}
    if origin is tuple:
        if not isinstance(value, list):
            raise RequestError(f"{path}: a list is needed, not {type(value).__name__}")
        return tuple(_convert(arguments[0], item, f"{path}.{index}") for index, item in enumerate(value))
    return _scalar(hint, value, path)


def _scalar(hint: Any, value: Any, path: str) -> Any:
    if hint is Any:
        return value
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(hint, types.UnionType) or not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        raise RequestError(f"{path}: {hint.__name__} is needed, not {value!r}")
    return value


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
