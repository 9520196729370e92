"""How fast a long log of NCCL is read, against plain searches over the same bytes, and in how much memory.

usage: python benchmarks/log_speed.py [MEGABYTES]

The log is made of the recorded runs, again and again as from 64 nodes, so that lines of interest are as frequent as in
a log with every subsystem on. Every measurement runs in a process of its own and reads the file from
the page cache; times are CPU time, the best of three. ``whole`` is everything ``nccltune explain`` does with the file.
"""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

RECORDINGS = Path(__file__).parents[1] / "tests" / "recordings" / "nccl"
BLOCK = 1 << 18
MARK = re.compile(rb"NCCL (?:INFO|WARN) ")


def blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb", buffering=0) as file:
        while block := file.read(BLOCK):
            yield block


def absent(path: Path) -> None:
    for block in blocks(path):
        block.find(b"a word that is not there")


def count(path: Path) -> None:
    for block in blocks(path):
        block.count(b"NCCL INFO ")


def scan(path: Path) -> None:
    for block in blocks(path):
        for _ in MARK.finditer(block):
            pass


def lines(path: Path) -> None:
    with path.open("rb") as file:
        sum(b"NCCL WARN" in line for line in file)


def parse(path: Path) -> None:
    from nccltune.trial.nccl_log import parse_files

    parse_files([path])


def whole(path: Path) -> None:
    from nccltune.explain import explain

    explain([path])


SEARCHES: dict[str, tuple[str, Callable[[Path], None]]] = {
    "absent": ("bytes.find of a word that is not there", absent),
    "count": ("bytes.count of the mark of NCCL's lines", count),
    "scan": ("re.finditer over the marks of NCCL's lines", scan),
    "lines": ("b'NCCL WARN' in every line", lines),
    "parse": ("parsed as a log of NCCL", parse),
    "whole": ("explained: parsed, and searched for failures", whole),
}


def write_log(path: Path, megabytes: int) -> None:
    recorded = [source.read_bytes() for source in sorted(RECORDINGS.glob("*.log"))]
    number = 0
    with path.open("wb") as file:
        while file.tell() < megabytes << 20:
            number += 1
            node = number // len(recorded) % 64
            run = recorded[number % len(recorded)]
            file.write(run.replace(b"node0:", b"node%d:" % node).replace(b"0x", b"0x%x" % node))


def measure(name: str, path: Path) -> dict[str, float]:
    best = float("inf")
    for _ in range(3):
        before = time.process_time()
        SEARCHES[name][1](path)
        best = min(best, time.process_time() - before)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"mb_per_s": path.stat().st_size / 1e6 / best, "memory_mib": memory}


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(measure(sys.argv[2], Path(sys.argv[3]))))
        return
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "long.log"
        write_log(path, megabytes)
        found = {}
        for name in SEARCHES:
            command = [sys.executable, __file__, "--one", name, str(path)]
            found[name] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    print(f"{megabytes} MiB")
    for name, (what, _) in SEARCHES.items():
        print(f"{found[name]['mb_per_s']:7.0f} MB/s {found[name]['memory_mib']:6.0f} MiB  {what}")
    for name in ("absent", "count", "scan", "lines"):
        ratio = found["parse"]["mb_per_s"] / found[name]["mb_per_s"]
        print(f"parsed at {ratio:.2f} of the speed of: {SEARCHES[name][0]}")


if __name__ == "__main__":
    main()
