"""A YAML file with the line of every field, so that an error can point at it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from ..errors import SpaceError, nearest

_MAX_BYTES = 1 << 20
"""A catalogue or space file is text that people write; anything larger is the wrong file."""
_MAX_FIELDS = 100_000
"""A field counts as often as an alias repeats it: nine aliases of nine aliases of … fit into one short file."""

_SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C one is ten times as fast, and not everywhere

Model = TypeVar("Model", bound=BaseModel)
Loc = tuple[str | int, ...]


@dataclass(frozen=True)
class Document:
    """The content of a YAML file.

    Attributes:
        path: Where it was read.
        data: Plain values.
        lines: Path of a field to its line, counted from 1.
    """

    path: Path
    data: Any
    lines: Mapping[Loc, int]

    def problem(self, loc: Iterable[str | int], message: str, do: str = "") -> SpaceError:
        """Make the error for one field: file, line and path of the field in front.

        Args:
            loc: Path of the field; parts that the file does not have (pydantic's own) are left out.
            message: What is wrong with it.
            do: What to do next.
        """
        known: Loc = ()
        missing = ""
        for part in loc:
            if (*known, part) in self.lines:
                known = (*known, part)
            else:
                missing = str(part)
        shown = ".".join(str(part) for part in known)
        if missing and "field required" in message.lower():
            shown = f"{shown}.{missing}" if shown else missing
        line = self.lines.get(known, 1)
        return SpaceError(f"{self.path}:{line}: {shown or 'the whole file'}: {message}", do)

    def parse(self, model: type[Model]) -> Model:
        """Check the content against a model.

        Raises:
            SpaceError: With file, line and path of the first wrong field.
        """
        if not isinstance(self.data, dict):
            raise self.problem((), "is no mapping of fields", f"Write one of {', '.join(model.model_fields)}")
        try:
            return model.model_validate(self.data)
        except ValidationError as error:
            # A misspelt field is also a missing one: the misspelling says more.
            first = min(error.errors(include_url=False), key=lambda each: each["type"] != "extra_forbidden")
            loc, message = first["loc"], first["msg"].removeprefix("Value error, ")
            do = ""
            if first["type"] == "extra_forbidden":
                message = "is no field here"
                do = nearest(str(loc[-1]), model.model_fields) if len(loc) == 1 else ""
            raise self.problem(loc, message, do) from None


def read_document(path: Path) -> Document:
    """Read a YAML file together with its line numbers.

    Raises:
        SpaceError: If it cannot be read, is no YAML, or names a field twice.
    """
    text = _text(path)
    try:
        loader = _SafeLoader(text)  # one parse for both: the catalogue is long
        root = loader.get_single_node()
        data = loader.construct_document(root) if root is not None else None
        lines: dict[Loc, int] = {}
        if root is not None:
            _collect(path, root, (), lines, frozenset())
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else 1
        reason = getattr(error, "problem", None) or getattr(error, "reason", None) or "cannot be parsed"
        raise SpaceError(f"{path}:{line}: is no YAML: {reason}") from None
    except (ValueError, RecursionError) as error:  # an impossible date, a file nested thousands deep
        raise SpaceError(f"{path}:1: is no YAML that can be read: {type(error).__name__}") from None
    return Document(path, data, lines)


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise SpaceError(f"{path}:1: is larger than 1 MiB, so it is no space file")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise SpaceError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SpaceError(f"{path}:1: is not UTF-8 text") from None


def _collect(path: Path, node: yaml.Node, loc: Loc, lines: dict[Loc, int], above: frozenset[int]) -> None:
    lines.setdefault(loc, node.start_mark.line + 1)
    if len(lines) > _MAX_FIELDS:
        line = node.start_mark.line + 1
        raise SpaceError(f"{path}:{line}: more than {_MAX_FIELDS:,} fields, with what aliases repeat", "write fewer")
    if id(node) in above:
        raise SpaceError(f"{path}:{node.start_mark.line + 1}: an alias that contains itself")
    above = above | {id(node)}
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            here = (*loc, str(key.value))
            if here in lines:
                line = key.start_mark.line + 1
                raise SpaceError(f"{path}:{line}: {'.'.join(map(str, here))}: stands here twice")
            lines[here] = key.start_mark.line + 1
            _collect(path, value, here, lines, above)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _collect(path, item, (*loc, index), lines, above)
