"""NCCL's own log, versions 2.10 to 2.32, read as a stream.

A log is taken line by line in constant memory. Lines may carry ``host:pid:tid [dev]``, a time stamp, a prefix of a
collector (``3: ``, ``[trainer3]:``), the device alone, or nothing at all; ranks may be interleaved. The forms of the
lines stand in ``nccl_forms``. What the log does not say stays ``None``.

Repeated lines say nothing new, so a long log is not parsed line by line: one search with a literal start finds the
lines of interest in each block, and only those not seen before are parsed.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO, Final

from .nccl_facts import NcclLog, summarise
from .nccl_forms import ANYWHERE, BY_FIRST_LETTER, IN_WARNINGS, MOST_TEXTS, STARTS, LogState, Rule, Where

_BLOCK_BYTES: Final = 1 << 18
# So much of the start of a log is parsed line by line, so that lines without any mark of NCCL are seen as well.
_THOROUGH_BYTES: Final = 1 << 20
_MOST_SEEN: Final = 200_000
# Shorter than 4300 digits, which Python refuses to read as a number.
_LONGEST_LINE: Final = 4096

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_TAG = re.compile(r"NCCL (INFO|WARN|ATTN) ")
_WHERE = re.compile(r"([A-Za-z0-9_][\w.-]*):(\d+):(\d+) \[(-?\d+)\] ")
_DEVICE_ONLY = re.compile(r"\[(-?\d+)\] (?:\S+:\d+ )?$")
# What collectors put in front of a line: "3: ", "[trainer3]:", "node7: ", "2026-11-30T10:00:00.1Z stdout F ".
_COLLECTOR = re.compile(
    r"\s*(?:\[[^\]\s]{1,64}\]:?|[\w.|/-]{1,64}:|\d{4}-\d\d-\d\d[T ][\d:.,Z+-]+|std(?:out|err) [FP])(?:\s+|(?=\S))"
)
_MOST_PREFIXES: Final = 4

# The lines of interest in a block. After the literal start, three classes of letters refuse most lines at next to no
# cost; the words behind them decide.
_FAST = re.compile(
    rb"NCCL (?:INFO (?=[CNnc1-9UARBSPFIM\[][hoCEVc0-9snlruaRe ][amCTLci0-9esldrpuv ])(?:"
    rb"C(?:hannel \d|omm config \w+ r)|N(?:CCL|ET/(?:IB|So|Plugin: L)|VLS m)|ncclComm|ncclM|comm 0x\w+ rank \d+ nRanks"
    rb"|U(?:sing n|ser|nable)|A(?:ssigned N|ll\w+: )|R\w+: |B\w+: |Best tun|Invalid|Input: \{|P(?:lugin P|arsed)"
    rb"|\d+ (?:coll|B)|Succ|\[Rank|Failed to (?:open|init))|WARN|ATTN|version)[^\n]*"
)
# The same for logs whose collector removed every mark: at the start of a line, behind at most two prefixes.
_FAST_BARE = re.compile(
    rb"\n(?:\S{1,64} ?){0,2}?(?:Channel \d|NCCL_[A-Z0-9_]+ set |NET/|ncclComm|comm 0x|Using network|Assigned NET"
    rb"|\w+: \d+ Bytes -> |\d+ coll ch|NVLS mu|Plugin Path|Successfully loaded ext)[^\n]*"
)
# Records that belong together by their order; a block that holds them is parsed line by line.
_PAIRED = (b"NCCL INFO Input: {", b"NCCL INFO Best tuning {")
# A last line without its end may have been cut anywhere; these ends show that nothing that counts is missing.
_CLOSED = re.compile(
    rb"(?:[.\]})>]|START|COMPLETE|GDRDMA|\+cuda\d+\.\d|via P2P/(?:IPC|CUMEM|MNNVL|direct pointer)|via NET/.+/\d+)\s*$"
)

# nccl-tests print who sits where: "#  Rank  0 Group  0 Pid   1001 on host device  0 [0xc1] NAME".
_TABLE = re.compile(r"#\s+Rank\s+(\d+)\s+(?:Group\s+\d+\s+)?Pid\s+\d+ on\s+(\S+)\s+device")
_BARE_VERSION = re.compile(r"NCCL version (\d+\.\d+(?:\.\d+)?)(?!\S*\+cuda)")
# Lines whose wording proves or refuses a setting; ``evidence`` holds the catalogue against them.
_TELLING = re.compile(
    r"NCCL_[A-Z0-9_]+|[Ii]nvalid value|User asked|CTAs \d+ is|Comm config|sockets per thread|maximum allowed"
    r"|Unrecognized|must have a prefix|algorithm/protocol|Using network|TUNER/"
)


def parse_line(state: LogState, raw: str) -> None:
    """Take one line into the state; a line that is none of NCCL's leaves no trace."""
    state.lines += bool(raw)
    line = raw[:_LONGEST_LINE].rstrip("\r\n ")
    if "\x1b" in line:
        line = _ANSI.sub("", line)
    tag = _TAG.search(line)
    if tag is None:
        state.where = Where()
        _bare_line(state, line)
        return
    prefix = line[: tag.start()]
    where = state.authors.get(prefix)
    if where is None:
        where = _who(prefix)
        if len(state.authors) < MOST_TEXTS:
            state.authors[prefix] = where
    state.where = where
    if where.host is not None:
        state.workers.setdefault(where.host, {})[where.pid, where.dev] = None
    text = line[tag.end() :].lstrip()
    if tag[1] == "INFO" and text[:1] not in STARTS:
        return
    if tag[1] == "WARN":
        _apply(state, text, IN_WARNINGS)
    else:
        _info(state, text)
    if tag[1] != "INFO" or _TELLING.search(text):
        _keep(state, text)


def _keep(state: LogState, text: str) -> None:
    if len(state.texts) < MOST_TEXTS:
        state.texts[text] = None


def _who(prefix: str) -> Where:
    names = list(_WHERE.finditer(prefix))
    if names:
        last = names[-1]
        return Where(last[1], int(last[2]), int(last[3]), int(last[4]))
    device = _DEVICE_ONLY.search(prefix)
    return Where(dev=int(device[1])) if device else Where()


def _info(state: LogState, text: str) -> bool:
    rules = BY_FIRST_LETTER.get(text[:1])
    return (rules is not None and _apply(state, text, rules)) or _apply(state, text, ANYWHERE)


def _apply(state: LogState, text: str, rules: Iterable[Rule]) -> bool:
    for pattern, handler in rules:
        if found := pattern.match(text):
            handler(state, found)
            return True
    return False


def _bare_line(state: LogState, line: str) -> None:
    """A line without the mark ``NCCL INFO``: as it stands, then with each prefix of a collector taken off."""
    for _ in range(_MOST_PREFIXES):
        if found := _TABLE.match(line):
            state.table_ranks[int(found[1])] = found[2]
            return
        if _info(state, line):
            state.bare += 1
            if _TELLING.search(line):
                _keep(state, line)
            return
        prefix = _COLLECTOR.match(line)
        if not prefix:
            break
        line = line[prefix.end() :]
    if found := _BARE_VERSION.search(line):
        state.bare_versions[found[1]] = None


def parse_lines(lines: Iterable[str]) -> NcclLog:
    """Read lines of one or several logs of a run."""
    state = LogState()
    for line in lines:
        parse_line(state, line)
    return summarise(state)


def parse_text(text: str) -> NcclLog:
    """Read a log that is at hand as text."""
    return parse_lines(text.split("\n"))


def parse_files(paths: Sequence[Path]) -> NcclLog:
    """Read files, one after the other, in constant memory.

    Raises:
        OSError: When a file cannot be read.
    """
    state = LogState()
    for path in paths:
        with path.open("rb") as file:
            read_stream(state, file)
    return summarise(state)


def read_stream(state: LogState, file: BinaryIO) -> None:
    """Take a log into the state, block by block; the line between two blocks is parsed on its own.

    A last line that may have been cut is left out: a number or name that lost its end is no fact.
    """
    decoder = _decoder(file)
    seen: set[bytes] = set()
    read = 0
    rest = b""
    while block := file.read(_BLOCK_BYTES):
        if decoder:
            block = decoder.decode(block).encode("utf-8", "replace")
        first, last = block.find(b"\n"), block.rfind(b"\n")
        if first < 0:
            rest = (rest + block)[-_LONGEST_LINE:]
            continue
        parse_line(state, (rest + block[:first]).decode("utf-8", "replace"))
        if read < _THOROUGH_BYTES:
            _thorough(state, block, first, last)
        else:
            _fast(state, block, first, last, seen, _FAST)
            if state.bare:
                _fast(state, block, first, last, seen, _FAST_BARE)
        read += len(block)
        rest = block[last + 1 :]
    if _CLOSED.search(rest[-200:]):
        parse_line(state, rest.decode("utf-8", "replace"))


def _thorough(state: LogState, block: bytes, first: int, last: int) -> None:
    for line in block[first + 1 : last].split(b"\n"):
        parse_line(state, line.decode("utf-8", "replace"))


def _fast(
    state: LogState, block: bytes, first: int, last: int, seen: set[bytes], interesting: re.Pattern[bytes]
) -> None:
    new = set(interesting.findall(block, first, last)) - seen
    if any(text.startswith(_PAIRED) for text in new):
        _thorough(state, block, first, last)
        return
    if len(seen) > _MOST_SEEN:
        seen.clear()
    for found in interesting.finditer(block, first, last) if new else ():
        if found[0] in new:
            new.discard(found[0])
            seen.add(found[0])
            start = block.rfind(b"\n", 0, found.start() + 1) + 1
            parse_line(state, block[start : found.end()].decode("utf-8", "replace"))


def _decoder(file: BinaryIO) -> codecs.IncrementalDecoder | None:
    mark = file.read(2)
    file.seek(0)
    if mark in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return codecs.getincrementaldecoder("utf-16")("replace")
    return None
