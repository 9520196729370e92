import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccltune.machine.library import TorchFacts, find_nccl, read_library, read_torch, torch_folder, version_tuple
from nccltune.machine.loader import cached_library, find_library, read_dynamic

LITERALS = (
    b"\0NCCL version 2.30.7+cuda13.3\0NCCL_ALPHA\0see NCCL_BETA\0NCCL_GAMMA is not whole\0TORCH_NCCL_DELTA\0"
    b"NCCL_TUNER_PLUGIN\0NCCL_\0"
)


def elf(needed=(), rpath=None, runpath=None, rodata=b"", beside=b""):
    """A 64-bit ELF file with a dynamic section, a section of literals and other bytes beside it."""
    table, tags = b"\0", []
    for tag, text in [*((1, name) for name in needed), (15, rpath), (29, runpath)]:
        if text is not None:
            tags.append((tag, len(table)))
            table += text.encode() + b"\0"
    names = b"\0.rodata\0.shstrtab\0"
    parts, at, places = b"", 64 + 2 * 56, []
    dynamic = b"".join(struct.pack("<qQ", *entry) for entry in [*tags, (5, 0x1000 + at), (0, 0)])
    for part in (table, dynamic, rodata, names, beside):
        places.append(at)
        parts, at = parts + part, at + len(part)
    size = at + 3 * 64
    header = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    header += struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, at, 0, 64, 56, 2, 64, 3, 2)
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, 0x1000, 0, size, size, 4096)
    dyn = struct.pack("<IIQQQQQQ", 2, 6, places[1], 0x1000 + places[1], 0, len(dynamic), len(dynamic), 8)
    sections = bytes(64)
    for name, place, part in ((1, places[2], rodata), (9, places[3], names)):
        sections += struct.pack("<IIQQQQ", name, 1, 0, 0, place, len(part)).ljust(64, b"\0")
    return header + load + dyn + parts + sections


def put(path: Path, content: bytes = b"") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def make_torch(site: Path, needed=("libnccl.so.2",), **paths) -> Path:
    folder = site / "torch"
    put(
        folder / "version.py",
        b"from typing import Optional\n__version__ = '2.14.1+cu130'\ncuda: Optional[str] = '13.0'\n",
    )
    put(folder / "lib/libtorch_cuda.so", elf(needed, **paths))
    return folder


def test_reads_what_the_file_asks_of_the_loader(tmp_path):
    path = put(tmp_path / "x.so", elf(["liba.so", "libb.so"], rpath="$ORIGIN/a:${ORIGIN}/../b", runpath="/c"))
    dynamic = read_dynamic(path)
    assert dynamic.needed == ("liba.so", "libb.so")
    assert dynamic.rpath == (f"{tmp_path}/a", f"{tmp_path}/../b")
    assert dynamic.runpath == ("/c",)


def test_reads_a_real_library():
    libraries = list((torch_folder() / "lib").glob("libtorch_cpu.so"))
    if not libraries:
        pytest.skip("this torch has no libtorch_cpu.so")
    dynamic = read_dynamic(libraries[0])
    assert any(name.startswith("libc.so") for name in dynamic.needed)
    assert dynamic.rodata[1] > dynamic.rodata[0]


def test_version_and_names_come_from_the_literals_alone(tmp_path):
    path = put(tmp_path / "libnccl.so.2", elf(rodata=LITERALS, beside=b"\0NCCL_ENUMERATOR\0NCCL version 1.1.1\0"))
    facts = read_library(path, "RPATH")
    assert (facts.version, facts.cuda, facts.version_tuple) == ("2.30.7", "13.3", (2, 30, 7))
    assert facts.names == ("NCCL_ALPHA", "NCCL_BETA", "NCCL_TUNER_PLUGIN")


def test_a_file_that_is_no_elf_is_searched_whole(tmp_path):
    assert read_library(put(tmp_path / "lib", LITERALS), "").version == "2.30.7"
    empty = read_library(put(tmp_path / "empty"), "")
    assert (empty.version, empty.names) == (None, ())
    assert read_library(tmp_path / "missing", "").version is None


@pytest.fixture
def places(tmp_path):
    """A library in each place where the loader may look."""
    names = ("preload", "rpath", "path", "runpath")
    return {name: put(tmp_path / name / "libnccl.so.2", elf(rodata=LITERALS)) for name in names}


def test_the_loader_s_order(tmp_path, places):
    both = read_dynamic(put(tmp_path / "both.so", elf(rpath=str(places["rpath"].parent))))
    run = read_dynamic(put(tmp_path / "run.so", elf(rpath="/nowhere", runpath=str(places["runpath"].parent))))
    path = {"LD_LIBRARY_PATH": f"/nowhere:{places['path'].parent}"}
    preload = {"LD_PRELOAD": f"/nowhere/libx.so {places['preload']}"}
    name = "libnccl.so.2"
    assert find_library(name, both, path, tmp_path) == (places["rpath"], "RPATH")
    assert find_library(name, run, path, tmp_path) == (places["path"], "LD_LIBRARY_PATH")
    assert find_library(name, run, {}, tmp_path) == (places["runpath"], "RUNPATH")
    assert find_library(name, both, {**path, **preload}, tmp_path) == (places["preload"], "LD_PRELOAD")
    assert find_library(name, None, {}, tmp_path) is None


def cache(entries):
    """``/etc/ld.so.cache`` of a glibc that writes only the new format."""
    strings, table = b"", b""
    begin = 48 + 24 * len(entries)
    for name, path in entries:
        table += struct.pack("<iIIIQ", 0x0303, begin + len(strings), begin + len(strings) + len(name) + 1, 0, 0)
        strings += name.encode() + b"\0" + path.encode() + b"\0"
    return b"glibc-ld.so.cache1.1" + struct.pack("<II", len(entries), len(strings)).ljust(28, b"\0") + table + strings


def test_the_loader_s_cache(tmp_path):
    put(tmp_path / "etc/ld.so.cache", cache([("libz.so", "/opt/libz.so"), ("libnccl.so.2", "/opt/libnccl.so.2")]))
    assert cached_library("libnccl.so.2", tmp_path) is None, "the file itself is gone"
    library = put(tmp_path / "opt/libnccl.so.2")
    assert find_library("libnccl.so.2", None, {}, tmp_path) == (library, "ldconfig")
    assert cached_library("libother.so", tmp_path) is None


def test_this_machine_s_cache_knows_the_c_library():
    if not Path("/etc/ld.so.cache").is_file():
        pytest.skip("no /etc/ld.so.cache here")
    assert cached_library("libc.so.6").name == "libc.so.6"


def test_the_wheel_s_own_library_wins_over_the_path(tmp_path, places):
    folder = make_torch(tmp_path / "site", rpath="$ORIGIN/../../nvidia/nccl/lib")
    own = put(tmp_path / "site/nvidia/nccl/lib/libnccl.so.2", elf(rodata=LITERALS))
    torch = read_torch(folder)
    assert (torch.version, torch.cuda, torch.has_nccl, torch.release) == ("2.14.1+cu130", "13.0", True, (2, 14))
    facts = find_nccl(torch, {"LD_LIBRARY_PATH": str(places["path"].parent)}, tmp_path)
    assert (facts.library, facts.how, facts.version) == (str(own), "RPATH", "2.30.7")


def test_a_system_library_of_a_training_image(tmp_path, places):
    torch = read_torch(make_torch(tmp_path / "site", runpath="$ORIGIN"))
    facts = find_nccl(torch, {"LD_LIBRARY_PATH": str(places["path"].parent)}, tmp_path)
    assert (facts.library, facts.how) == (str(places["path"]), "LD_LIBRARY_PATH")


def test_torch_s_own_preload_is_the_last_resort(tmp_path):
    torch = read_torch(make_torch(tmp_path / "site"))
    assert find_nccl(torch, {}, tmp_path).library is None
    own = put(tmp_path / "site/nvidia/nccl/lib/libnccl.so.2", elf(rodata=LITERALS))
    assert find_nccl(torch, {}, tmp_path).library == str(own)


def test_nccl_linked_into_torch(tmp_path):
    folder = make_torch(tmp_path, needed=["libc.so.6"], rodata=LITERALS)
    facts = find_nccl(read_torch(folder), {}, tmp_path)
    assert (facts.how, facts.version) == ("linked into torch", "2.30.7")


def test_a_torch_without_nccl(tmp_path):
    assert not read_torch(make_torch(tmp_path / "cuda", needed=["libc.so.6"])).has_nccl
    folder = make_torch(tmp_path / "cpu")
    (folder / "lib/libtorch_cuda.so").unlink()
    torch = read_torch(folder)
    assert not torch.has_nccl
    assert find_nccl(torch, {}, tmp_path) is None
    assert find_nccl(None, {}, tmp_path) is None


def test_no_torch(tmp_path):
    assert read_torch(None) is None
    assert read_torch(tmp_path) is None
    for text in (b"import os\n", b"__version__ = f(1)\n", b"def broken(\n", b"\0"):
        put(tmp_path / "version.py", text)
        assert read_torch(tmp_path) is None


def test_torch_is_found_and_not_imported():
    code = (
        "import os, sys; from nccltune.machine.facts import gather; print(gather(os.environ).torch.version);"
        "print([name for name in ('torch', 'numpy', 'optuna', 'mlflow', 'yaml') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    version, loaded = done.stdout.splitlines()
    assert version[0].isdigit()
    assert loaded == "[]"


@pytest.mark.parametrize(
    ("text", "expected"),
    [("2.30.7", (2, 30, 7)), ("2.4", (2, 4, 0)), ("2.21.5rc1", (2, 21, 5)), ("x", None), ("", None), (None, None)],
)
def test_versions(text, expected):
    assert version_tuple(text) == expected
    assert TorchFacts(version=text or "", path="").release == (expected[:2] if expected else None)


@given(st.binary(max_size=400), st.integers(0, 400), st.booleans())
def test_no_file_raises(tmp_path_factory, noise, at, overwrite):
    whole = elf(["liba.so"], rpath="/a", rodata=LITERALS)
    broken = whole[:at] + noise + whole[at + len(noise) if overwrite else at :]
    path = put(tmp_path_factory.mktemp("elf") / "x.so", broken)
    read_dynamic(path)
    read_library(path, "")
    put(path.parent / "etc/ld.so.cache", cache([("liba.so", "/a")])[:at] + noise)
    cached_library("liba.so", path.parent)
