"""Names that look like NCCL's and are none: images and builds set them for themselves."""

from __future__ import annotations

from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Literal

from ..records import Record
from .document import read_document


class Foreign(Record):
    """The file of foreign names.

    Attributes:
        names: Each with what it is for.
    """

    schema_version: Literal[1]
    names: dict[str, str]


@lru_cache(maxsize=1)
def foreign_names() -> frozenset[str]:
    """Give the names that NCCL does not read although they look like its own.

    Raises:
        SpaceError: With file, line and path of the first wrong field.
    """
    path = Path(str(resources.files("nccltune.search_spaces"))) / "foreign.yaml"
    return frozenset(read_document(path).parse(Foreign).names)
