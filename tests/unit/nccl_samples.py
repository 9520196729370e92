"""Changes that a log goes through between NCCL and a reader; none of them may change what it says."""

from __future__ import annotations

import random
import re
from pathlib import Path

RECORDINGS = Path(__file__).parents[1] / "recordings" / "nccl"
RECORDED = sorted(path for path in RECORDINGS.glob("*.log"))
_PREFIX = re.compile(r"([\w.-]+):(\d+):(\d+) (?=\[-?\d+\] )")


def renamed(text: str) -> str:
    """Other hosts, process numbers and addresses."""
    text = _PREFIX.sub(
        lambda found: f"gpu-{found[1]}-x7.cluster:{int(found[2]) + 70001}:{int(found[3]) + 70001} ", text
    )
    return text.replace("192.0.2.", "198.51.100.").replace("0x", "0x1")


def prefixed_by_rank(text: str, form: str) -> str:
    """``form`` with the device in front of every line of NCCL, device 0 in front of the others."""

    def prefix(line: str) -> str:
        found = re.search(r"\[(\d+)\] (?:\S+:\d+ )?NCCL ", line)
        return form.format(found[1] if found else 0) + line

    return "\n".join(prefix(line) if line else line for line in text.split("\n"))


def interleaved(text: str, seed: int = 0) -> str:
    """Each process keeps the order of its lines, the processes are mixed anew; other lines stay with the last one."""
    streams: dict[str, list[str]] = {"": []}
    current = ""
    for line in text.rstrip("\n").split("\n"):
        found = re.search(r"[\w.-]+:(\d+):\d+ \[-?\d+\] ", line)
        current = found[1] if found else current
        streams.setdefault(current, []).append(line)
    order = random.Random(seed)
    left = {key: list(lines) for key, lines in streams.items() if lines}
    mixed = []
    while left:
        key = order.choice(sorted(left))
        mixed.append(left[key].pop(0))
        if not left[key]:
            del left[key]
    return "\n".join(mixed) + "\n"


def timestamped(text: str) -> str:
    """A time stamp in front of lines of information too (NCCL_DEBUG_TIMESTAMP_LEVELS)."""
    return re.sub(r"(?m)^(?=[\w.-]+:\d+:\d+ \[)", "[2026-11-30 10:48:25] ", text)


CHANGES = {
    "renamed": renamed,
    "srun": lambda text: prefixed_by_rank(text, "{}: "),
    "trainer": lambda text: prefixed_by_rank(text, "[trainer{}]:"),
    "default": lambda text: prefixed_by_rank(text, "[default{}]:"),
    "node": lambda text: prefixed_by_rank(text, "node7: "),
    "interleaved": interleaved,
    "timestamped": timestamped,
    "crlf": lambda text: text.replace("\n", "\r\n"),
}
