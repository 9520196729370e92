"""Files that another process reads while we write: made beside their place and renamed into it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from pathlib import Path
from typing import Any

from .failure import WorkloadFailure

SCHEMA_VERSION = 1


def write(path: Path, document: dict[str, Any], *, durable: bool = True) -> None:
    """Write a JSON document so that a reader sees all of it or nothing.

    Args:
        path: Where it will be.
        document: The document; NaN and infinity are refused.
        durable: Whether it must survive a power cut.

    Raises:
        OSError: The folder cannot be written.
        ValueError: A number of the document is not finite.
    """
    beside = _beside(path, document, durable)
    beside.replace(path)
    if durable:
        _sync_folder(path.parent)


def measured(path: Path, token: str, measurement: dict[str, Any]) -> None:
    """Write the result of a launch that came to its end.

    Args:
        path: The result file.
        token: The request's.
        measurement: Fields of ``records.Measurement``.

    Raises:
        OSError: The file cannot be written.
        ValueError: A number is not finite.
    """
    write(
        path,
        {"schema_version": SCHEMA_VERSION, "token": token, "status": "ok", "measurement": measurement},
    )


def failed(path: Path, token: str, failure: WorkloadFailure) -> None:
    """Write the result of a launch that failed in a known way, unless a rank has left one already.

    Any rank may call this: the rank that fails may not be rank 0, and torchrun ends the others as soon as
    one is gone. The first failure is the cause, what follows is often only its echo.

    Args:
        path: The result file.
        token: The request's.
        failure: What happened.
    """
    document = {
        "schema_version": SCHEMA_VERSION,
        "token": token,
        "status": "failed",
        "failure": failure.name,
        "detail": failure.detail,
    }
    with contextlib.suppress(OSError):
        beside = _beside(path, document, durable=True)
        try:
            os.link(beside, path)  # fails where the file exists; a rename would replace it
        finally:
            beside.unlink()
        _sync_folder(path.parent)


def _beside(path: Path, document: dict[str, Any], durable: bool) -> Path:
    beside = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}")
    with beside.open("w", encoding="utf-8") as stream:
        json.dump(document, stream, allow_nan=False)
        if durable:
            stream.flush()
            os.fsync(stream.fileno())
    return beside


def _sync_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):  # some network file systems refuse to sync a folder
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
