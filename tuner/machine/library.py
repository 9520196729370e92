"""Which torch and which NCCL the workers will load, found without importing torch.

What is said here is expected, not seen: each launch reports the library that was really mapped into its ranks.
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from ..records import Record
from .loader import Dynamic, Found, find_library, mapped, read_dynamic

NCCL_FILE = "libnccl.so.2"

_WHEEL = Path("nvidia/nccl/lib") / NCCL_FILE
_DISTRIBUTIONS = ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11")
_VERSION = re.compile(rb"NCCL version ([0-9]{1,3}\.[0-9]{1,3}(?:\.[0-9]{1,3})?[^\0\s+]{0,16})(?:\+cuda([0-9.]{1,8}))?")
# A literal stands whole in the string table; the linker may have made it the tail of a longer one.
_NAME = re.compile(rb"(?<![A-Z0-9_])NCCL_[A-Z0-9_]{1,80}(?=\0)")


class TorchFacts(Record):
    """The torch that ``import torch`` finds.

    Attributes:
        version: As the package says, for instance ``2.13.0+cpu``.
        path: Its folder.
        cuda: The CUDA version it was built with; ``None`` for none.
        has_nccl: Whether it was built with NCCL.
    """

    version: str
    path: str
    cuda: str | None = None
    has_nccl: bool = False

    @property
    def release(self) -> tuple[int, int] | None:
        """Major and minor version, ``None`` where the text has none."""
        match = re.match(r"([0-9]{1,4})\.([0-9]{1,4})", self.version)
        return (int(match[1]), int(match[2])) if match else None


class NcclFacts(Record):
    """The NCCL that torch's workers are expected to load.

    Attributes:
        version: For instance ``2.30.7``; ``None`` where the file does not say.
        cuda: The CUDA version it was built with.
        library: The file; torch's own library where NCCL is linked into it; ``None`` where none was found.
        how: The rule by which the loader comes to it: ``RPATH``, ``LD_LIBRARY_PATH``, ``linked into torch`` …
        names: The ``NCCL_*`` names in its string table; empty where unknown.
    """

    version: str | None = None
    cuda: str | None = None
    library: str | None = None
    how: str | None = None
    names: tuple[str, ...] = ()

    @property
    def version_tuple(self) -> tuple[int, int, int] | None:
        """The version as three numbers."""
        return version_tuple(self.version)


def version_tuple(version: str | None) -> tuple[int, int, int] | None:
    """Read ``2.30.7`` or ``2.4`` (third number 0); ``None`` for anything else."""
    match = re.match(r"([0-9]{1,4})\.([0-9]{1,4})(?:\.([0-9]{1,4}))?", version or "")
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else None


def torch_folder() -> Path | None:
    """The folder of the torch that an import would take; torch itself is not executed."""
    try:
        spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError, AttributeError):
        return None
    return Path(spec.origin).parent if spec and spec.origin else None


def read_torch(folder: Path | None) -> TorchFacts | None:
    """Read what a torch package says of itself (``torch/version.py``, ``torch/lib``).

    Returns:
        ``None`` where there is no such package, or it does not say its version.
    """
    if folder is None:
        return None
    try:
        said = _assignments((folder / "version.py").read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
    version = said.get("__version__")
    if version is None:
        return None
    return TorchFacts(version=version, path=str(folder), cuda=said.get("cuda"), has_nccl=_has_nccl(folder))


def _assignments(text: str) -> dict[str, str]:
    """The names to which a module assigns a plain string, at its top level."""
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError):
        return {}
    said: dict[str, str] = {}
    for node in body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        value = getattr(node, "value", None)
        for target in targets:
            if isinstance(target, ast.Name) and isinstance(value, ast.Constant) and isinstance(value.value, str):
                said[target.id] = value.value
    return said


def _asking(folder: Path) -> tuple[Path, Dynamic] | None:
    """The library of torch that holds its NCCL process group (torch ≥ 2: ``libtorch_cuda.so``)."""
    path = folder / "lib" / "libtorch_cuda.so"
    dynamic = read_dynamic(path)
    return (path, dynamic) if dynamic else None


def _has_nccl(folder: Path) -> bool:
    asking = _asking(folder)
    if asking is None:
        return False
    path, dynamic = asking
    return NCCL_FILE in dynamic.needed or read_library(path, "").version is not None


def find_nccl(torch: TorchFacts | None, environ: Mapping[str, str], root: Path = Path("/")) -> NcclFacts | None:
    """Say which NCCL library torch's workers will load, its version and the names it knows.

    Returns:
        ``None`` when torch is missing or was built without NCCL.
    """
    if torch is None or not torch.has_nccl:
        return None
    asking = _asking(Path(torch.path))
    if asking is None:
        return None
    path, dynamic = asking
    if NCCL_FILE not in dynamic.needed:
        return read_library(path, "linked into torch")
    found = find_library(NCCL_FILE, dynamic, environ, root) or _preloaded_by_torch(Path(torch.path))
    if found is None:
        return NcclFacts()
    return read_library(found.path, found.how)


def _preloaded_by_torch(folder: Path) -> Found | None:
    """Torch's own way out when the loader finds nothing (``torch/__init__.py``, ``_preload_cuda_deps``)."""
    for place in (str(folder.parent), *sys.path):
        if (Path(place) / _WHEEL).is_file():
            return Found(Path(place) / _WHEEL, "torch's preload")
    return None


def read_library(path: Path, how: str) -> NcclFacts:
    """Read version and known names from a library file.

    Only the section that holds the literals is searched: the kernels beside it are hundreds of MiB.
    """
    path = path.resolve()
    dynamic = read_dynamic(path)
    version = cuda = None
    names: tuple[str, ...] = ()
    try:
        with mapped(path) as data:
            begin, end = (dynamic and dynamic.rodata) or (0, len(data))
            names = tuple(sorted({match[0].decode() for match in _NAME.finditer(data, begin, end)}))
            if said := _VERSION.search(data, begin, end):
                version = said[1].decode(errors="replace")
                cuda = said[2].decode() if said[2] else None
    except (OSError, ValueError):
        pass  # not readable: the package beside it may know the version
    return NcclFacts(version=version or _packaged_version(path), cuda=cuda, library=str(path), how=how, names=names)


def _packaged_version(path: Path) -> str | None:
    """The version of the pip package that a library file belongs to."""
    for name in _DISTRIBUTIONS:
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if Path(str(distribution.locate_file(_WHEEL))).resolve() == path:
            return distribution.version
    return None
