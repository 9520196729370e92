"""How the GPUs and NICs of a machine are connected: the matrix of ``nvidia-smi topo -m``.

``parse_topology`` reads the matrix as people paste it: with tabs or blanks, indented, with terminal escape codes, with
the rank prefixes of ``srun -l`` or a log collector, from 2017 (``SOC``, HCA columns named after devices, no NUMA
columns) to today (``NIC0`` with a legend, ``GPU NUMA ID``). What the text does not say stays empty.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, TypeAlias

from ..records import Record

#: Path words from near to far, as nvidia-smi's own legend orders them; ``SOC`` is the word of 2017 for ``SYS``,
#: ``PSB`` an on-board switch. NVLink and C2C come before all of these.
DISTANCES = ("PSB", "PIX", "PXB", "PHB", "NODE", "SYS")

_ESCAPES = re.compile(
    r"(?:\x1b|\x9b|\^\[)\][^\x07\x1b]*(?:\x07|\x1b\\)"  # operating system commands (titles, links)
    r"|(?:\x1b|\^\[)\[[0-9;:?]*[ -/]*[@-~]"  # colours, underline, cursor
    r"|\x1b[()][0-9A-B]"
    r"|\[[0-9;]{0,9}m"  # a paste that lost the escape character itself
)
_GPU = re.compile(r"GPU([0-9]{1,4})\Z")
_DEVICE = re.compile(r"[A-Za-z][\w.-]*[0-9][\w.-]*\Z")
_GPU_COLUMN = re.compile(r"(?<!\S)GPU[0-9]{1,4}(?!\S)")
_COLUMN = re.compile(r"GPU\s+NUMA\s+ID|\S+\s+Affinity|\S+", re.IGNORECASE)
_LINK = re.compile(r"(?:X|NV[0-9]{0,3}|C2C|PSB|PIX|PXB|PHB|NODE|SYS|SOC)\Z")
_NVLINK = re.compile(r"NV([0-9]{1,3})?\Z")
_GLUED = re.compile(r"\A(\s*(?:\[[^\]\s]{1,80}\]:?|[^\s:]{1,80}:))(?=\S)")
_LEGEND = re.compile(r"(?<!\S)(NIC[0-9]{1,4})\s*:\s*(\S+)\s*\Z")
_LIST = re.compile(r"[0-9]+(?:-[0-9]+)?(?:,[0-9]+(?:-[0-9]+)?)*\Z")
_MIG = re.compile(r"(?<!\w)MIG(?!\w)")
_LAST_LABEL = 8  # words of a prefix that are looked at: "2026-11-30 12:00:00 host pod stdout F 3: GPU0 …"


class Topology(Record):
    """Links between the devices of one machine.

    Attributes:
        gpus: Numbers of the GPUs, as nvidia-smi or, for this machine, as CUDA counts them.
        nics: NICs by device name where a legend gives it.
        links: ``"0-1"`` (lower number first) to the path word, for instance ``NV18`` or ``PIX``.
        nic_links: ``"<gpu> <nic>"`` to the path word.
        cpu_affinity: GPU to its list of CPUs, as printed.
        numa_affinity: GPU to its list of NUMA nodes, as printed.
        gpu_numa_id: GPU to the NUMA node that its own memory is.
        p2p: ``"0-1"`` to what the driver says of peer access: ``OK``, or nvidia-smi's word for why not.
        mig: Whether the text speaks of MIG, where the matrix is not to be trusted.
        source: Where it was read.
    """

    gpus: tuple[int, ...] = ()
    nics: tuple[str, ...] = ()
    links: dict[str, str] = {}
    nic_links: dict[str, str] = {}
    cpu_affinity: dict[str, str] = {}
    numa_affinity: dict[str, str] = {}
    gpu_numa_id: dict[str, int] = {}
    p2p: dict[str, str] = {}
    mig: bool = False
    source: Literal["text", "driver"] = "text"

    def link(self, one: int, other: int) -> str | None:
        """The path word between two GPUs; ``None`` where unknown."""
        return self.links.get(pair(one, other))

    def pairs(self) -> Iterator[tuple[int, int]]:
        """All pairs of GPUs, the lower number first."""
        ordered = sorted(self.gpus)
        return ((one, other) for at, one in enumerate(ordered) for other in ordered[at + 1 :])


def pair(one: int, other: int) -> str:
    """Name two GPUs as the keys of ``Topology.links`` do."""
    return f"{min(one, other)}-{max(one, other)}"


def is_nvlink(word: str | None) -> bool:
    """Whether a path word stands for NVLink."""
    return word is not None and _NVLINK.match(word) is not None


def nvlink_width(word: str) -> int | None:
    """The number of bonded NVLinks behind a word such as ``NV18``."""
    match = _NVLINK.match(word)
    return int(match[1]) if match and match[1] else None


def groups(topology: Topology, joined: Iterable[str] = ()) -> tuple[tuple[int, ...], ...]:
    """GPUs that reach each other over NVLink, or over one of the path words ``joined``.

    Returns:
        The groups of two and more, each sorted, in order of their first GPU.
    """
    words = set(joined)
    parent = {gpu: gpu for gpu in topology.gpus}

    def root(gpu: int) -> int:
        while parent[gpu] != gpu:
            parent[gpu] = parent[parent[gpu]]
            gpu = parent[gpu]
        return gpu

    for one, other in topology.pairs():
        word = topology.link(one, other)
        if is_nvlink(word) or word in words:
            low, high = sorted((root(one), root(other)))
            parent[high] = low
    members: dict[int, list[int]] = {}
    for gpu in sorted(parent):
        members.setdefault(root(gpu), []).append(gpu)
    return tuple(tuple(group) for group in members.values() if len(group) > 1)


def nearest_nic(topology: Topology, gpu: int) -> tuple[str | None, str] | None:
    """The NIC with the shortest path to a GPU, and that path.

    Returns:
        ``None`` where no path is known. The name is ``None`` where all NICs are equally far, so that distance cannot
        pick one; of several that share the shortest path the first is named.
    """
    known = [(nic, word) for nic in topology.nics if (word := topology.nic_links.get(f"{gpu} {nic}"))]
    if not known:
        return None
    nic, word = min(known, key=lambda entry: _distance(entry[1]))
    if len(known) > 1 and len({_distance(word) for _, word in known}) == 1:
        return None, word
    return nic, word


def _distance(word: str) -> int:
    if word in DISTANCES:
        return DISTANCES.index(word) + 1
    return 0 if word == "C2C" or is_nvlink(word) else len(DISTANCES)


def topology_answer(topology: Topology) -> dict[str, Any]:
    """What the matrix says, for ``nccltune explain --json``; ``None`` is "the text does not say"."""
    words = [topology.link(one, other) for one, other in topology.pairs()]
    widths = [width for word in words if word and (width := nvlink_width(word)) is not None]
    affinities = set(topology.cpu_affinity.values())
    nearest = {str(gpu): list(nic) for gpu in topology.gpus if (nic := nearest_nic(topology, gpu))}
    return {
        "gpus": len(topology.gpus) or None,
        "nics": list(topology.nics) if topology.gpus else None,
        "nvlink": any(map(is_nvlink, words)) if topology.links or len(topology.gpus) == 1 else None,
        "nvlink_all_to_all": all(map(is_nvlink, words)) if topology.links else None,
        "nvlink_width": max(widths, default=None),
        "links": dict(topology.links) or None,
        "nearest_nic": nearest or None,
        "cpu_affinity": dict(topology.cpu_affinity) or None,
        "numa_affinity": dict(topology.numa_affinity) or None,
        "gpu_numa_id": dict(topology.gpu_numa_id) or None,
        "sockets": len(affinities) or None,
        "p2p_domains": [list(group) for group in groups(topology, ("PSB", "PIX", "PXB", "PHB", "C2C"))]
        if topology.links
        else None,
    }


_Words: TypeAlias = list[tuple[int, str]]  # column and text of each word of a line


class _Block:
    """One matrix of the text, while it is read."""

    def __init__(self, prefix: str, columns: _Words) -> None:
        self.prefix = prefix
        self.columns = columns
        self.devices = [name for _, name in columns if not _is_extra(name)]
        self.extras = [(at, " ".join(name.upper().split())) for at, name in columns if _is_extra(name)]
        self.links: dict[str, dict[str, str]] = {}
        self.tails: dict[str, dict[str, str]] = {}


def parse_topology(text: str) -> Topology:
    """Read the output of ``nvidia-smi topo -m``; never raises.

    Of several matrices the first that has rows is taken.

    Args:
        text: The output, perhaps pasted, prefixed, cut or among other lines.

    Returns:
        An empty topology where the text holds no matrix.
    """
    plain = _ESCAPES.sub("", text)
    lines = plain.splitlines()
    cut = bool(plain) and not plain.endswith(("\n", "\r"))
    blocks: list[_Block] = []
    legend: dict[str, str] = {}
    for number, raw in enumerate(lines):
        tabbed = _GLUED.sub(r"\1 ", re.sub(r",[ \t]+(?=[0-9])", ",", raw), count=1)
        line = tabbed.expandtabs(8)
        last = cut and number == len(lines) - 1
        if header := _header(line):
            if not last:  # half a header would count too few GPUs
                _open(blocks, *header)
        elif match := _LEGEND.search(line):
            legend.setdefault(match[1], match[2])
        elif blocks and (found := _row(blocks, line)):
            _add(*found, tabbed, cut=last)
    block = next((block for block in blocks if block.links), blocks[0] if blocks else None)
    return Topology() if block is None else _topology(block, legend, mig=bool(_MIG.search(plain)))


def _header(line: str) -> tuple[str, _Words] | None:
    """The prefix and the columns of a header line: GPU names with no path word among them."""
    first = _GPU_COLUMN.search(line)
    if first is None:
        return None
    columns = [(match.start(), match[0]) for match in _COLUMN.finditer(line, first.start())]
    names = [name for _, name in columns]
    if len(names) != len(set(names)) or any(_LINK.match(name) for name in names):
        return None
    if len(names) > 1 and not (_DEVICE.match(names[1]) or any(_is_extra(name) for name in names)):
        return None  # prose that begins with a GPU's name
    return line[: first.start()].strip(), columns


def _is_extra(name: str) -> bool:
    return name.upper().endswith((" AFFINITY", " ID"))


def _open(blocks: list[_Block], prefix: str, columns: _Words) -> None:
    """Begin a matrix, unless the same header stands there already (every rank printed it)."""
    names = [name for _, name in columns]
    for block in blocks:
        if block.prefix == prefix and [name for _, name in block.columns] == names:
            return
    blocks.append(_Block(prefix, columns))


def _row(blocks: list[_Block], line: str) -> tuple[_Block, str, _Words] | None:
    """The row on a line and the matrix it belongs to: the one with its prefix, else the last one."""
    words = [(match.start(), match[0]) for match in re.finditer(r"\S+", line)]
    for at, (start, label) in enumerate(words[:_LAST_LABEL]):
        if at + 1 == len(words) or not _LINK.match(words[at + 1][1]):
            continue
        prefix = line[:start].strip()
        same = [block for block in blocks if block.prefix == prefix] or blocks
        block = same[-1]
        if label in block.devices:
            return block, label, words[at + 1 :]
    return None


def _add(block: _Block, label: str, words: _Words, tabbed: str, *, cut: bool) -> None:
    """Take over a row; what was read first stays, and the last word of a line that was cut is dropped."""
    if cut and (len(words) < len(block.columns) or label != block.devices[-1]):
        words, tabbed = words[:-1], label
    links: dict[str, str] = {}
    for name, (_, word) in zip(block.devices, words, strict=False):
        if not _LINK.match(word):
            break
        links[name] = "SYS" if word == "SOC" else word
    if not links or label in block.links:
        return
    block.links[label] = links
    if len(links) == len(block.devices):
        cells = tabbed.split(label, 1)[1].split("\t")[len(links) + 1 :]
        block.tails[label] = _tail(block.extras, words[len(links) :], [cell.strip() for cell in cells])


def _tail(extras: _Words, words: _Words, cells: list[str]) -> dict[str, str]:
    """Words after the links, by column: in order when all are there, else by cell, else by where they stand."""
    if len(words) >= len(extras):
        return {name: word for (_, name), (_, word) in zip(extras, words, strict=False)}
    if len(cells) == len(extras):
        return {name: cell for (_, name), cell in zip(extras, cells, strict=True)}
    tail: dict[str, str] = {}
    left = list(extras)
    for start, word in words:
        # Each later word needs a column of its own to the right.
        room = left[: len(left) - (len(words) - len(tail)) + 1]
        best = min(range(len(room)), key=lambda at: abs(room[at][0] - start))
        tail[room[best][1]] = word
        left = left[best + 1 :]
    return tail


def _topology(block: _Block, legend: Mapping[str, str], *, mig: bool) -> Topology:
    numbers = {name: int(match[1]) for name in block.devices if (match := _GPU.match(name))}
    nics = {name: legend.get(name, name) for name in block.devices if name not in numbers}
    links: dict[str, str] = {}
    nic_links: dict[str, str] = {}
    for label, cells in block.links.items():
        for name, word in cells.items():
            if word == "X" or label == name:
                continue
            if label in numbers and name in numbers:
                links.setdefault(pair(numbers[label], numbers[name]), word)
            elif (label in numbers) != (name in numbers):
                gpu, nic = (label, name) if label in numbers else (name, label)
                nic_links.setdefault(f"{numbers[gpu]} {nics[nic]}", word)
    tails = {str(numbers[label]): tail for label, tail in block.tails.items() if label in numbers}
    ids = {gpu: tail.get("GPU NUMA ID", "") for gpu, tail in tails.items()}
    return Topology(
        gpus=tuple(numbers.values()),
        nics=tuple(nics.values()),
        links=dict(sorted(links.items(), key=lambda item: [int(number) for number in item[0].split("-")])),
        nic_links=nic_links,
        cpu_affinity=_lists(tails, "CPU AFFINITY"),
        numa_affinity=_lists(tails, "NUMA AFFINITY"),
        gpu_numa_id={gpu: int(number) for gpu, number in ids.items() if re.fullmatch(r"[0-9]{1,6}", number)},
        mig=mig,
    )


def _lists(tails: Mapping[str, Mapping[str, str]], name: str) -> dict[str, str]:
    return {gpu: tail[name] for gpu, tail in tails.items() if _LIST.match(tail.get(name, ""))}
