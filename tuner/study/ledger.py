"""The ledger: an append-only file that is the truth of a study. Everything else can be rebuilt from it.

One JSON object a line. The first is ``{"schema_version": 1, "record": "study", "id": …, "plan": {…}}``; each further
one is ``{"record": KIND, KIND: {…}}``, with KIND one of ``intent``, ``launch``, ``batch``, ``trial``, ``space``,
``noise``, ``verdict`` and ``note``. A line is written whole and synced, or not at all.
"""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ..errors import LedgerError, StorageError
from ..records import SCHEMA_VERSION, BatchChoice, Launch, Record, Space, Verdict, first_problem
from .adoption import Conclude, orphans
from .entries import Intent, NoiseFloor, Note, TrialEntry

FILE = "ledger.jsonl"
TORN = "ledger.torn"

_RECORDS: dict[str, type[Record]] = {
    "intent": Intent,
    "launch": Launch,
    "batch": BatchChoice,
    "trial": TrialEntry,
    "space": Space,
    "noise": NoiseFloor,
    "verdict": Verdict,
    "note": Note,
}
_AGAIN = "run the same command again: it goes on from the last whole line"


class Ledger:
    """One study's ledger, in memory and on disk. One writer; who only reads never changes the file.

    Attributes:
        folder: The study folder.
        plan: What the study was made for.
        id: Random, made once; it stays when the folder is carried to another machine.
        torn: A last line that was cut off by a kill or a full disk; it is moved to ``ledger.torn`` at the next append.
    """

    def __init__(
        self, folder: Path, head: Mapping[str, Any], entries: Iterable[Record], size: int, torn: bytes
    ) -> None:
        self.folder = folder
        self.plan: dict[str, Any] = head["plan"]
        self.id = str(head.get("id", ""))
        self.torn = torn
        self._entries = list(entries)
        self._size = size
        self._descriptor: int | None = None

    @property
    def path(self) -> Path:
        """The ledger's file."""
        return self.folder / FILE

    # ---- open and create

    @staticmethod
    def exists(folder: Path) -> bool:
        """Say whether the folder holds a ledger."""
        return (folder / FILE).exists()

    @classmethod
    def create(cls, folder: Path, plan: Mapping[str, Any]) -> Ledger:
        """Make the study folder and a ledger with its first line.

        Args:
            folder: The study folder; made with its parents.
            plan: What the study is for, as plain JSON.

        Raises:
            LedgerError: There is one already.
            StorageError: The folder or file cannot be written.
        """
        path = folder / FILE
        if path.exists():
            raise LedgerError(f"{path} exists already", "continue it, or take another --study")
        head = {"schema_version": SCHEMA_VERSION, "record": "study", "id": uuid.uuid4().hex, "plan": dict(plan)}
        line = _line(head)
        draft = folder / f".{FILE}.{os.getpid()}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with draft.open("wb") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
            draft.rename(path)
            _sync_folder(folder)
        except OSError as error:
            with contextlib.suppress(OSError):
                draft.unlink()
            raise _storage_error(path, error) from error
        return cls(folder, json.loads(line), (), len(line), b"")

    @classmethod
    def open(cls, folder: Path) -> Ledger:
        """Read a ledger. A torn last line is tolerated; nothing is written.

        Raises:
            LedgerError: A line that cannot be understood, with its number; or a newer schema.
            StorageError: The file cannot be read.
        """
        path = folder / FILE
        try:
            if path.exists() and not path.is_file():
                raise StorageError(f"{path} is no file", "check --out and --study")  # a pipe would be waited for
            content = path.read_bytes()
        except OSError as error:
            raise StorageError(f"cannot read {path}: {error.strerror}", "check --out and --study") from error
        whole, torn = _split(content)
        lines = whole.split(b"\n")[:-1]
        if not lines:
            raise LedgerError(f"{path} is empty", "remove the study folder, or take another --study")
        head = _head(path, lines[0])
        entries = [_entry(path, number, line) for number, line in enumerate(lines[1:], start=2)]
        return cls(folder, head, entries, len(whole), torn)

    # ---- what it holds

    @property
    def entries(self) -> tuple[Record, ...]:
        """Everything after the first line, in order."""
        return tuple(self._entries)

    @property
    def launches(self) -> list[Launch]:
        """All launches, in order."""
        return [entry for entry in self._entries if isinstance(entry, Launch)]

    @property
    def trials(self) -> list[TrialEntry]:
        """All trials, in order."""
        return [entry for entry in self._entries if isinstance(entry, TrialEntry)]

    @property
    def intents(self) -> list[Intent]:
        """What was about to be launched, in order."""
        return [entry for entry in self._entries if isinstance(entry, Intent)]

    @property
    def notes(self) -> list[Note]:
        """All notes, in order."""
        return [entry for entry in self._entries if isinstance(entry, Note)]

    @property
    def batch(self) -> BatchChoice | None:
        """The batch size that was chosen; it stays."""
        return next((entry for entry in self._entries if isinstance(entry, BatchChoice)), None)

    @property
    def space(self) -> Space | None:
        """The narrowed space, as last written."""
        return next((entry for entry in reversed(self._entries) if isinstance(entry, Space)), None)

    @property
    def noise(self) -> NoiseFloor | None:
        """The noise floor, as last written."""
        return next((entry for entry in reversed(self._entries) if isinstance(entry, NoiseFloor)), None)

    @property
    def verdict(self) -> Verdict | None:
        """The verdict, as last written."""
        return next((entry for entry in reversed(self._entries) if isinstance(entry, Verdict)), None)

    # ---- append

    def append(self, *entries: Record) -> None:
        """Write entries, all or none, and sync; only then are they in memory.

        Raises:
            StorageError: They cannot be written; the file is as it was before.
        """
        if not entries:
            return
        data = b"".join(
            _line({"record": _kind(entry), _kind(entry): entry.model_dump(mode="json")}) for entry in entries
        )
        try:
            descriptor = self._open_to_write()
            self._write(descriptor, data)
        except OSError as error:
            raise _storage_error(self.path, error) from error
        self._size += len(data)
        self._entries.extend(entries)

    def adopt(self, folder: Path | None = None, conclude: Conclude | None = None) -> list[Launch]:
        """Append the launches whose complete results a killed run left on disk; see ``adoption``.

        Args:
            folder: The study folder, when not the ledger's own.
            conclude: What the runner makes of a result.

        Returns:
            The adopted launches.

        Raises:
            StorageError: The ledger cannot be written.
        """
        found = orphans(folder or self.folder, self.intents, self.launches, conclude)
        self.append(*found)
        return found

    def _write(self, descriptor: int, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            os.fsync(descriptor)
        except BaseException:
            # Half a line would be worse than none. A signal's exception may come here too, hence BaseException.
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, self._size)
            raise

    def _open_to_write(self) -> int:
        if self._descriptor is None:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            try:
                self._put_torn_aside(descriptor)
            except BaseException:
                os.close(descriptor)
                raise
            self._descriptor = descriptor
        return self._descriptor

    def _put_torn_aside(self, descriptor: int) -> None:
        if self.torn:
            with (self.folder / TORN).open("ab") as aside:
                aside.write(self.torn + b"\n")
        os.ftruncate(descriptor, self._size)
        self.torn = b""

    def close(self) -> None:
        """Close the file; a later append opens it again."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def plan_differences(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Name the fields in which two plans differ.

    Args:
        stored: The plan of the ledger.
        wanted: The plan of this run.

    Returns:
        One line a field, for instance ``placement.nproc_per_node: 2 there, 4 wanted``; empty when they are equal.
    """
    return _differences("", _plain(stored), _plain(wanted))


def _differences(path: str, stored: Any, wanted: Any) -> list[str]:
    if isinstance(stored, dict) and isinstance(wanted, dict):
        lines = []
        for name in [*stored, *(name for name in wanted if name not in stored)]:
            lines += _differences(f"{path}.{name}" if path else str(name), stored.get(name), wanted.get(name))
        return lines
    if isinstance(stored, list) and isinstance(wanted, list) and len(stored) == len(wanted):
        lines = []
        for index, (before, now) in enumerate(zip(stored, wanted, strict=True)):
            lines += _differences(f"{path}[{index}]", before, now)
        return lines
    if stored == wanted and isinstance(stored, bool) == isinstance(wanted, bool):
        return []
    return [f"{path}: {_short(stored)} there, {_short(wanted)} wanted"]


def _plain(value: Mapping[str, Any]) -> Any:
    return json.loads(json.dumps(dict(value)))


def _short(value: Any) -> str:
    text = "nothing" if value is None else json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "…"


def _kind(entry: Record) -> str:
    return next(kind for kind, record in _RECORDS.items() if isinstance(entry, record))


def _line(content: dict[str, Any]) -> bytes:
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def _split(content: bytes) -> tuple[bytes, bytes]:
    """Part whole lines from a torn last one."""
    end = content.rfind(b"\n") + 1
    return content[:end], content[end:]


def _object(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        content = json.loads(line, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise LedgerError(
            f"{path} line {number} is no JSON: {error}", "restore the file from a copy, or take another --study"
        ) from error
    if not isinstance(content, dict):
        raise LedgerError(f"{path} line {number} is no JSON object", "restore the file, or take another --study")
    return content


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is no number of JSON")


def _head(path: Path, line: bytes) -> dict[str, Any]:
    content = _object(path, 1, line)
    version = content.get("schema_version")
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise LedgerError(
            f"{path} has schema {version}, this release reads up to {SCHEMA_VERSION}",
            "use the release that wrote it, or take another --study",
        )
    if content.get("record") != "study" or version != SCHEMA_VERSION or not isinstance(content.get("plan"), dict):
        raise LedgerError(f"{path} line 1 is no study line of a ledger", "take another --study")
    return content


def _entry(path: Path, number: int, line: bytes) -> Record:
    content = _object(path, number, line)
    kind = content.get("record")
    record = _RECORDS.get(kind) if isinstance(kind, str) else None
    if record is None or not isinstance(kind, str):
        raise LedgerError(f"{path} line {number}: unknown record {kind!r}", "use the release that wrote it")
    try:
        return TypeAdapter(record).validate_python(content.get(kind))
    except ValidationError as error:
        raise LedgerError(
            f"{path} line {number}: {kind}.{first_problem(error)}", "restore the file, or take another --study"
        ) from error


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        pass  # some network file systems cannot sync a folder
    finally:
        os.close(descriptor)


def _storage_error(path: Path, error: OSError) -> StorageError:
    return StorageError(f"cannot write {path}: {error.strerror or error}", f"free space or change --out, then {_AGAIN}")
