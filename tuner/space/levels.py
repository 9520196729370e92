"""Which path levels differ on a topology, so that equal ones are tried once.

NCCL lets two GPUs read each other's memory when their path is no farther than the level (``src/graph/paths.cc``
``ncclTopoCheckP2p``). Levels between which no pair of GPUs lies are therefore one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ..machine.facts import Facts
from ..records import Placement
from .catalogue import PathLevel
from .hardware import pairs_in_use, ranks_per_node

_NCCL_WORDS: Mapping[str, str] = {"PSB": "PIX", "SOC": "SYS", "NODE": "PHB"}
"""Words of nvidia-smi for which NCCL has another one: it knows a CPU by NUMA node, so NODE is within one (PHB)."""


def equal_levels(values: Sequence[str | None], levels: PathLevel, facts: Facts, placement: Placement) -> dict[str, str]:
    """Find the values that do here what an earlier one, or no value, does.

    Args:
        values: As they stand in the space; ``None`` for unset.
        levels: The knob's words, near to far.
        facts: Of this machine; without the paths between its GPUs nothing is merged.
        placement: Which of the GPUs are used, and which of them are on one node.

    Returns:
        The value to be dropped and the reason.
    """
    paths = _paths(facts, levels, placement)
    if not paths:
        return {}
    words = levels.words
    present = {words.index(path) for path in paths}
    unset = [words.index(word) for word in _unset(levels, facts, placement)]
    said = "the paths between the GPUs are " + ", ".join(sorted(paths, key=words.index))
    kept: list[str] = []
    dropped: dict[str, str] = {}
    for value in values:
        if value is None or value not in words:
            continue
        here = words.index(value)
        if None in values and all(_same(here, other, present) for other in unset):
            dropped[value] = f"the same as unset here: {said}"
        elif twin := next((other for other in kept if _same(here, words.index(other), present)), None):
            dropped[value] = f"the same as {twin} here: {said}"
        else:
            kept.append(value)
    return dropped


def _paths(facts: Facts, levels: PathLevel, placement: Placement) -> set[str]:
    """The kinds of path between the GPUs in use, in NCCL's words; empty where one of them is not known."""
    if facts.topology is None:
        return set()
    paths = {_word(facts.topology.link(*pair)) for pair in pairs_in_use(facts, placement)}
    if not paths <= set(levels.words):
        return set()
    known = {path for path in paths if path}
    # Beside NVLink, two GPUs without a link of their own may be relayed by a neighbour, which is nearer than PCIe.
    return known | {"NVB"} if "NVL" in known and len(known) > 1 else known


def _word(link: str | None) -> str | None:
    if link is None:
        return None
    return "NVL" if re.match(r"NV\d*\Z", link) else _NCCL_WORDS.get(link, link)


def _unset(levels: PathLevel, facts: Facts, placement: Placement) -> tuple[str, ...]:
    """What unset may mean: SYS on AMD hosts with at most two GPUs (``src/graph/paths.cc`` ``ncclTopoCheckP2p``).

    NCCL counts the GPUs of the communicator's ranks on its node, not those of the machine.
    """
    farthest = levels.words[-1]
    if ranks_per_node(placement) > 2:
        return (levels.unset_means,)
    if facts.cpu.model is None:
        return (levels.unset_means, farthest)
    return (farthest,) if "AMD" in facts.cpu.model.upper() else (levels.unset_means,)


def _same(one: int, other: int, present: set[int]) -> bool:
    low, high = sorted((one, other))
    return not any(low < path <= high for path in present)
