"""What this program says: results on standard output, remarks and logs on standard error. Only this package prints."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType

_PLAIN_WIDTH = 400  # a file or a pipe has no width to fold a table to


def show(lines: Iterable[str]) -> None:
    """Write lines to standard output."""
    for line in lines:
        sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def show_rich(parts: Iterable[RenderableType]) -> None:
    """Write tables and styled text to standard output: plain and unfolded where that is no terminal."""
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _PLAIN_WIDTH
    for part in parts:
        console.print(part, markup=False)


def show_json(data: Any) -> None:
    """Write data to standard output for a program to read."""
    import json

    show([json.dumps(data, indent=1)])


def named(out: Path) -> Path:
    """The file that a user names with ``--out``: what a link leads to, so that the link stays (``/dev/stdout``)."""
    return out.resolve() if out.is_file() else out


def warn(text: str) -> None:
    """Write one remark to standard error."""
    sys.stderr.write(f"nccltune: {text}\n")


def configure_logging(verbose: bool) -> None:
    """Send log records to standard error: warnings alone, or everything with times and names."""
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.DEBUG if verbose else logging.WARNING,
        format="nccltune: %(message)s" if not verbose else "%(asctime)s %(name)s: %(message)s",
    )


def open_standard_streams() -> None:
    """Put the null device where a standard stream was closed: the next file that is opened would take its number.

    Whatever a library then prints would go into that file, which might be the ledger.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) < 3:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - for good
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
