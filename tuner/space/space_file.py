"""Space files: which knobs are searched over which values, for one kind of cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field

from ..errors import SpaceError, UsageError, nearest
from ..machine.facts import Facts
from ..records import Backend, Candidate, Dimension, Placement, Record, Space
from .catalogue import Catalogue, Knob, data_folder, nearest_knob
from .conditions import Condition, as_data, names_of
from .document import Document, Loc, read_document
from .hardware import links_in_use
from .values import canonical_value, why_no_value

Value: TypeAlias = str | Annotated[int, Field(strict=True)] | None


class SpaceFile(Record):
    """A space as it stands in its file.

    Attributes:
        name: Of the space; part of a study's default name.
        description: For whom it is, in a sentence or two.
        backend: The process-group backend that it is for.
        knobs: Name to the values that may be tried, null for unset; no list at all takes what the catalogue suggests.
        pins: Name to a value that every candidate but the default carries.
        conditions: Rules between knobs, on top of the catalogue's.
        start: Candidates worth trying first.
    """

    schema_version: Literal[1] = 1
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=64)]
    description: str = ""
    backend: Backend = "nccl"
    knobs: Annotated[dict[str, Annotated[tuple[Value, ...], Field(min_length=1)] | None], Field(min_length=1)]
    pins: dict[str, str | int] = {}
    conditions: tuple[Condition, ...] = ()
    start: tuple[dict[str, str | int], ...] = ()


def space_names() -> tuple[str, ...]:
    """The spaces of this installation, without ``auto``."""
    files = (path for path in data_folder().glob("*.yaml") if path.stem != "knobs")
    return tuple(sorted(path.stem for path in files if "\nknobs:\n" in path.read_text(encoding="utf-8")))


def choose(facts: Facts, placement: Placement) -> str:
    """Pick the space for this machine: what ``auto`` stands for."""
    if facts.backend == "gloo":
        return "cpu"
    if placement.nccl_nodes > 1:
        return "infiniband" if facts.has_infiniband and not placement.emulated_nodes else "tcp"
    return "nvlink" if links_in_use(facts, placement) == "nvlink" else "pcie"


def load_space(name_or_path: str, catalogue: Catalogue) -> Space:
    """Read a space by name or from a file.

    Raises:
        UsageError: If there is neither such a space nor such a file.
        SpaceError: With file, line and path of the first wrong field.
    """
    path = data_folder() / f"{name_or_path}.yaml"
    if name_or_path not in space_names():
        path = Path(name_or_path).expanduser()
        if not path.is_file():
            does = nearest(name_or_path, [*space_names(), "auto"])
            raise UsageError(f"there is no space and no file {name_or_path!r}", does)
    document = read_document(path)
    return _space(document.parse(SpaceFile), document, catalogue)


def _space(file: SpaceFile, document: Document, catalogue: Catalogue) -> Space:
    dimensions = [_dimension(name, values, file, document, catalogue) for name, values in file.knobs.items()]
    for name, pinned in file.pins.items():
        if name in file.knobs:
            raise document.problem(("pins", name), "is searched under 'knobs' as well", "Keep one of the two")
        dimensions.append(
            Dimension(name=name, values=(_value(pinned, ("pins", name), name, file, document, catalogue),))
        )
    known = {dimension.name: dimension.values for dimension in dimensions}
    for index, condition in enumerate(file.conditions):
        for name in names_of(condition):
            if name not in catalogue.knobs:
                loc = ("conditions", index)
                raise document.problem(loc, f"{name} is no knob of the catalogue", nearest_knob(name, catalogue))
    start = tuple(_start(index, known, file, document, catalogue) for index in range(len(file.start)))
    return Space(
        name=file.name,
        dimensions=tuple(dimensions),
        start=start,
        backend=file.backend,
        conditions=as_data(file.conditions),
    )


def _dimension(
    name: str, values: tuple[Value, ...] | None, file: SpaceFile, document: Document, catalogue: Catalogue
) -> Dimension:
    loc: Loc = ("knobs", name)
    knob = _knob(name, loc, file, document, catalogue)
    wanted = knob.suggest if values is None else values
    texts = [
        None if value is None else _value(value, (*loc, index), name, file, document, catalogue)
        for index, value in enumerate(wanted)
    ]
    for index, text in enumerate(texts):
        if text in texts[:index]:
            shown = "null" if text is None else text
            raise document.problem((*loc, index), f"{shown} stands here twice", "Keep one of the two")
    return Dimension(name=name, values=tuple(texts))


def _value(value: str | int, loc: Loc, name: str, file: SpaceFile, document: Document, catalogue: Catalogue) -> str:
    knob = _knob(name, loc, file, document, catalogue)
    text = canonical_value(str(value), knob, catalogue)
    why = why_no_value(text, knob, catalogue)
    if why:
        raise document.problem(loc, f"{value!r} {why}", knob.accepts)
    return text


def _knob(name: str, loc: Loc, file: SpaceFile, document: Document, catalogue: Catalogue) -> Knob:
    try:
        knob = catalogue.knob(name)
    except SpaceError as error:
        raise document.problem(loc, error.what, error.do) from None
    if knob.never:
        raise document.problem(loc, f"is never searched: {knob.never}")
    if file.backend not in knob.backends:
        raise document.problem(loc, f"does not act with backend {file.backend}")
    return knob


def _start(
    index: int, known: dict[str, tuple[str | None, ...]], file: SpaceFile, document: Document, catalogue: Catalogue
) -> Candidate:
    settings = {}
    for name, value in file.start[index].items():
        loc: Loc = ("start", index, name)
        if name not in known:
            raise document.problem(loc, "is not searched in this space", nearest(name, known))
        settings[name] = _value(value, loc, name, file, document, catalogue)
        if settings[name] not in known[name]:
            raise document.problem(loc, f"{settings[name]} is none of the values under 'knobs'")
    pins = {name: values[0] for name, values in known.items() if name in file.pins}
    return Candidate(settings={name: value for name, value in pins.items() if value is not None} | settings)


def json_schema(model: type[Record]) -> dict[str, Any]:
    """The JSON schema of a file, for editors; published beside the files."""
    schema = model.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    knob = schema.get("$defs", {}).get("Knob")
    if knob:
        del knob["properties"]["name"]  # the key of the mapping, filled in on reading
    return schema
