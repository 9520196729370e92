"""What NCCL would see before a candidate is set: environment, configuration files, plugins.

``src/misc/param.cc`` (``initEnvFunc``, ``setEnvFile``): the real environment comes first, then the user's file, then
``/etc/nccl.conf``; within a file the first line of a name holds. Values are taken as they stand: nothing is trimmed
and quotes are kept.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Collection, Mapping
from pathlib import Path

from ..records import Record
from .loader import Dynamic, find_library

CONF_FILE = "NCCL_CONF_FILE"

_PREFIXES = ("NCCL_", "TORCH_NCCL_")
_SYSTEM_FILE = "/etc/nccl.conf"
#: kind → (variable that names another plugin or ``none``, library loaded when that variable is unset)
_PLUGINS = {
    "tuner": ("NCCL_TUNER_PLUGIN", "libnccl-tuner.so"),
    "env": ("NCCL_ENV_PLUGIN", "libnccl-env.so"),
    "net": ("NCCL_NET_PLUGIN", "libnccl-net.so"),
    "profiler": ("NCCL_PROFILER_PLUGIN", "libnccl-profiler.so"),
}
_LONGEST = 1023  # bytes of a name or a value


class Plugin(Record):
    """A plugin that NCCL would load by itself.

    Attributes:
        kind: ``tuner``, ``env``, ``net`` or ``profiler``.
        path: The file, or the word that the variable gives where no such file was found.
        source: The variable that names it, or the loader's rule by which it is found.
    """

    kind: str
    path: str
    source: str


class Inherited(Record):
    """Settings that belong to the baseline.

    Attributes:
        settings: ``NCCL_*`` and ``TORCH_NCCL_*`` names with the values that NCCL or torch would see. An empty value
            is a set one.
        sources: Name to ``environment`` or the file it comes from.
        files: Configuration files that NCCL would read and that exist.
        missing_file: The file that ``NCCL_CONF_FILE`` names, where it does not exist; NCCL does not say so.
        shadowed: ``"<name> <file>"`` for each line of a file that something before it outweighs.
        others: Further names that the files set, values left out.
        plugins: What would load by itself or by a variable.
    """

    settings: dict[str, str] = {}
    sources: dict[str, str] = {}
    files: tuple[str, ...] = ()
    missing_file: str | None = None
    shadowed: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    plugins: tuple[Plugin, ...] = ()


def read_inherited(
    environ: Mapping[str, str],
    *,
    nccl_version: tuple[int, int, int] | None = None,
    names: Collection[str] = (),
    library: Dynamic | None = None,
    root: Path = Path("/"),
    passwd_home: str | None = None,
) -> Inherited:
    """Collect what NCCL would see.

    Args:
        environ: The caller's environment.
        nccl_version: Decides which files are read and how; the newest rules where unknown.
        names: ``NCCL_*`` names the library knows; a plugin whose variable is not among them is left out.
        library: The NCCL library's dynamic section, for the search of plugins.
        root: Where ``/etc`` is and the loader looks.
        passwd_home: Home by the password database; looked up where ``None``.
    """
    version = nccl_version or (999, 0, 0)
    settings = {name: value for name, value in environ.items() if name.startswith(_PREFIXES)}
    sources = dict.fromkeys(settings, "environment")
    files: list[str] = []
    shadowed: list[str] = []
    others: set[str] = set()
    user_file = _user_file(environ, version, passwd_home)
    missing = None
    for shown, path in ((user_file, Path(user_file or "")), (_SYSTEM_FILE, root / _SYSTEM_FILE.lstrip("/"))):
        if not shown:
            continue
        content = _content(path)
        if content is None:
            missing = shown if shown == environ.get(CONF_FILE) and version >= (2, 23, 0) else missing
            continue
        files.append(shown)
        for name, value in parse_conf(content, version):
            if not name.startswith("NCCL_"):
                others.add(name)
            elif name in settings:
                shadowed.append(f"{name} {shown}")
            else:
                settings[name] = value
                sources[name] = shown
    return Inherited(
        settings=dict(sorted(settings.items())),
        sources=dict(sorted(sources.items())),
        files=tuple(files),
        missing_file=missing,
        shadowed=tuple(shadowed),
        others=tuple(sorted(others)),
        plugins=find_plugins(settings, environ, names=names, library=library, root=root),
    )


def _user_file(environ: Mapping[str, str], version: tuple[int, int, int], passwd_home: str | None) -> str | None:
    if version >= (2, 23, 0) and environ.get(CONF_FILE):
        return environ[CONF_FILE]
    home = environ.get("HOME") if version >= (2, 30, 0) else passwd_home or _passwd_home()
    return f"{home}/.nccl.conf" if home else None


def _passwd_home() -> str | None:
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except (KeyError, OSError):
        return None


def _content(path: Path) -> bytes | None:
    """The bytes of a file; devices such as ``/dev/null`` are empty, a missing or unreadable file is ``None``."""
    try:
        return path.read_bytes() if path.is_file() else b"" if path.exists() and not path.is_dir() else None
    except OSError:
        return None


def parse_conf(content: bytes, version: tuple[int, int, int]) -> list[tuple[str, str]]:
    """Read a configuration file as NCCL does.

    ``#`` opens a comment in column one only; a line is split at its first ``=`` and nothing is trimmed, so that a
    blank before ``=`` is part of the name. A carriage return at the line's end is dropped from 2.30 on.

    Returns:
        Names and values in the file's order.
    """
    pairs: list[tuple[str, str]] = []
    for raw in content.split(b"\n"):
        line = raw.split(b"\0", 1)[0]
        if version >= (2, 30, 0) and line.endswith(b"\r"):
            line = line[:-1]
        name, equals, value = line.partition(b"=")
        if line.startswith(b"#") or not equals or not name:
            continue
        pairs.append((os.fsdecode(name[:_LONGEST]), os.fsdecode(value[:_LONGEST])))
    return pairs


def find_plugins(
    settings: Mapping[str, str],
    environ: Mapping[str, str],
    *,
    names: Collection[str] = (),
    library: Dynamic | None = None,
    root: Path = Path("/"),
) -> tuple[Plugin, ...]:
    """The plugins that NCCL would load (``src/plugin/plugin_open.cc``).

    A variable holds a path, a suffix (``libnccl-<kind>-<suffix>.so``) or ``none``; when it is unset the plain library
    loads where the loader finds one.
    """
    found: list[Plugin] = []
    for kind, (variable, default) in _PLUGINS.items():
        if names and variable not in names:
            continue
        for word in [word for word in settings.get(variable, "").split(",") if word] or [""]:
            if word.lower() == "none":
                continue
            wanted = [default] if not word else [word, f"{default[:-3]}-{word}.so"]
            hits = [_locate(name, library, environ, root) for name in wanted]
            hit = next((hit for hit in hits if hit is not None), None)
            if word:
                found.append(Plugin(kind=kind, path=hit[0] if hit else word, source=variable))
            elif hit:
                found.append(Plugin(kind=kind, path=hit[0], source=hit[1]))
    return tuple(found)


def _locate(name: str, library: Dynamic | None, environ: Mapping[str, str], root: Path) -> tuple[str, str] | None:
    if "/" in name:
        return (name, "path") if Path(name).is_file() else None
    hit = find_library(name, library, environ, root)
    return (str(hit.path), hit.how) if hit else None
