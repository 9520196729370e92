"""Which file the dynamic loader takes for a library name, found without loading anything.

The order is the one of ``ld.so(8)``: ``LD_PRELOAD``, the asking object's ``DT_RPATH`` (when it has no ``DT_RUNPATH``),
``LD_LIBRARY_PATH``, ``DT_RUNPATH``, ``/etc/ld.so.cache``, the default folders. PyTorch's Linux wheels carry a
``DT_RPATH`` on purpose, so that ``LD_LIBRARY_PATH`` does not replace their NCCL.
"""

from __future__ import annotations

import mmap
import os
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

_DEFAULT_FOLDERS = ("lib64", "usr/lib64", "lib", "usr/lib")
_LOAD, _DYNAMIC = 1, 2  # kinds of segment
_NEEDED, _STRTAB, _RPATH, _RUNPATH = 1, 5, 15, 29  # tags of a dynamic entry
_LONGEST = 2**20  # bytes of a text in a string table
_CACHE_MAGIC = b"glibc-ld.so.cache1.1"


class Dynamic(NamedTuple):
    """What an ELF file asks of the loader."""

    needed: tuple[str, ...] = ()
    rpath: tuple[str, ...] = ()
    runpath: tuple[str, ...] = ()
    rodata: tuple[int, int] | None = None  # begin and end of the section in the file


class _Segment(NamedTuple):
    kind: int
    flags: int
    offset: int
    address: int
    physical: int
    size: int


class Found(NamedTuple):
    """A library file and the rule by which the loader comes to it."""

    path: Path
    how: str


def read_dynamic(path: Path) -> Dynamic | None:
    """Read the dynamic section of a 64-bit little-endian ELF file.

    Returns:
        ``None`` when the file cannot be read or is something else.
    """
    try:
        with mapped(path) as data:
            return _dynamic(data, str(path.resolve().parent))
    except (OSError, ValueError, struct.error, OverflowError):
        return None


@contextmanager
def mapped(path: Path) -> Iterator[mmap.mmap]:
    """Map a file for reading; an empty one raises ``ValueError``."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        yield data


def _dynamic(data: mmap.mmap, origin: str) -> Dynamic | None:
    if data[:6] != b"\x7fELF\x02\x01":
        return None
    begin = struct.unpack_from("<Q", data, 32)[0]
    size, count = struct.unpack_from("<HH", data, 54)
    segments = [_Segment(*struct.unpack_from("<IIQQQQ", data, begin + at * size)) for at in range(count)]
    entries: list[tuple[int, int]] = []
    for segment in segments:
        if segment.kind == _DYNAMIC:
            entries = list(struct.iter_unpack("<qQ", data[segment.offset : segment.offset + segment.size // 16 * 16]))
    table = next((_offset(segments, value) for tag, value in entries if tag == _STRTAB), 0)

    def texts(tag: int) -> list[str]:
        return [_text(data, table + value) for found, value in entries if found == tag]

    def folders(tag: int) -> tuple[str, ...]:
        words = [word for text in texts(tag) for word in text.split(":") if word]
        return tuple(re.sub(r"\$(?:ORIGIN|\{ORIGIN\})", lambda _: origin, word) for word in words)

    return Dynamic(tuple(texts(_NEEDED)), folders(_RPATH), folders(_RUNPATH), _rodata(data))


def _offset(segments: Iterable[_Segment], address: int) -> int:
    for segment in segments:
        if segment.kind == _LOAD and segment.address <= address < segment.address + segment.size:
            return address - segment.address + segment.offset
    raise ValueError(f"no segment holds {address:#x}")


def _rodata(data: mmap.mmap) -> tuple[int, int] | None:
    """Where the literals stand in the file; ``None`` in a file without section headers."""
    begin = struct.unpack_from("<Q", data, 40)[0]
    size, count, names_at = struct.unpack_from("<HHH", data, 58)
    headers = [struct.unpack_from("<IIQQQQ", data, begin + at * size) for at in range(count)]
    if names_at >= len(headers):
        return None
    for name, _, _, _, offset, length in headers:
        if _text(data, headers[names_at][4] + name) == ".rodata" and offset + length <= len(data):
            return offset, offset + length
    return None


def _text(data: mmap.mmap, begin: int) -> str:
    end = data.find(b"\0", begin, begin + _LONGEST)
    if end < 0:
        raise ValueError(f"no text at {begin:#x}")
    return data[begin:end].decode()


def find_library(name: str, asking: Dynamic | None, environ: Mapping[str, str], root: Path = Path("/")) -> Found | None:
    """Say which file the loader takes when an object asks for ``name``.

    Args:
        name: For instance ``libnccl.so.2``.
        asking: The object that asks; ``None`` where unknown.
        environ: Of the process in which it happens.
        root: Where the file system of that process begins.
    """
    asking = asking or Dynamic()
    if preload := _preloaded(name, environ):
        return Found(preload, "LD_PRELOAD")
    own = Path()
    steps: list[tuple[str, Iterable[Path]]] = [
        ("RPATH", [own / folder for folder in (() if asking.runpath else asking.rpath)]),
        ("LD_LIBRARY_PATH", [own / (folder or ".") for folder in library_path(environ)]),
        ("RUNPATH", [own / folder for folder in asking.runpath]),
    ]
    for how, folders in steps:
        for folder in folders:
            if (folder / name).is_file():
                return Found(folder / name, how)
    if cached := cached_library(name, root):
        return Found(cached, "ldconfig")
    for default in _DEFAULT_FOLDERS:
        if (root / default / name).is_file():
            return Found(root / default / name, "system")
    return None


def library_path(environ: Mapping[str, str]) -> list[str]:
    """The folders of ``LD_LIBRARY_PATH``; an empty one is the working folder."""
    value = environ.get("LD_LIBRARY_PATH", "")
    return re.split("[:;]", value) if value else []


def _preloaded(name: str, environ: Mapping[str, str]) -> Path | None:
    stem = name.split(".so", 1)[0]
    for word in re.split(r"[:\s]+", environ.get("LD_PRELOAD", "")):
        if Path(word).name.split(".so", 1)[0] == stem and Path(word).is_file():
            return Path(word)
    return None


def cached_library(name: str, root: Path = Path("/")) -> Path | None:
    """Look a name up in ``/etc/ld.so.cache`` (glibc's format of 1997 and later, ``sysdeps/generic/dl-cache.h``)."""
    try:
        data = (root / "etc/ld.so.cache").read_bytes()
        begin = data.index(_CACHE_MAGIC)
        count = struct.unpack_from("<I", data, begin + len(_CACHE_MAGIC))[0]
        wanted = name.encode()
        for at in range(min(count, (len(data) - begin) // 24)):
            _, key, value = struct.unpack_from("<iII", data, begin + 48 + at * 24)
            if data[begin + key : data.index(b"\0", begin + key)] == wanted:
                path = data[begin + value : data.index(b"\0", begin + value)]
                found = root / os.fsdecode(path).lstrip("/")
                if found.is_file():
                    return found
    except (OSError, ValueError, struct.error):
        return None
    return None
