"""What every value that crosses a boundary has in common."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict

SCHEMA_VERSION = 1

Backend: TypeAlias = Literal["nccl", "gloo"]


class Record(BaseModel):
    """Base of all values that cross a boundary: frozen, and strict about unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def first_problem(error: Any) -> str:
    """Turn a pydantic ``ValidationError`` into one line with the path of the first bad field.

    Args:
        error: The ``pydantic.ValidationError``.

    Returns:
        For instance ``limits.total_s: Input should be a valid number``.
    """
    problem = error.errors(include_url=False)[0]
    path = ".".join(str(part) for part in problem["loc"]) or "the whole"
    return f"{path}: {problem['msg']}"
