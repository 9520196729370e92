"""A knob in words, and a narrowed space as rows: pure text and data, printed elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..records import Space
from .catalogue import Algorithms, Catalogue, Choice, Integer, Knob, PathLevel, Protocols
from .conditions import Condition, names_of
from .enumeration import Count

_DOCS = {
    "system": "system configuration: may stay set",
    "debugging": "debugging: NVIDIA asks not to leave it set in production",
    "undocumented": "undocumented: internal, may change with any version",
}
_SCOPE = {
    "process": "once in a process",
    "communicator": "at every new communicator",
    "config": "once in a process; a program may set it for each communicator instead",
}
_NODES = {("one",): "inside a node", ("several",): "between nodes", ("one", "several"): "inside and between nodes"}
_NEEDS = {
    "nvlink": "NVLink",
    "nvswitch": "an NVSwitch",
    "multicast": "an NVSwitch with multicast",
    "pcie": "GPUs without NVLink between them",
    "sockets": "TCP sockets in use",
    "infiniband": "InfiniBand or RoCE",
    "gpudirect": "GPUDirect RDMA",
    "several_nics": "several network cards",
    "collnet": "a CollNet plugin",
    "hopper": "Hopper or later",
    "blackwell": "Blackwell or later",
    "grace": "a Grace CPU",
    "rack_nvlink": "NVLink across nodes",
    "send_recv": "send and receive, or all-to-all",
    "windows": "registered buffers",
    "cuda_graphs": "CUDA graphs",
    "one_process": "several GPUs in one process",
    "plugin": "a plugin",
}
_SAFETY = {
    "uniform": "all ranks must agree",
    "slow": "can be very slow",
    "fail": "can fail",
    "hang": "can hang",
    "corrupt": "can give wrong data",
    "memory": "takes more memory",
}
_SHIP = {"plain": "as it is", "noted": "with a note of the conditions", "asked": "only when asked for"}
_WIDTH = 14


@dataclass(frozen=True)
class KnobRow:
    """One knob of a space, before and after narrowing.

    Attributes:
        values: What is searched; ``unset`` for no value; empty for a knob that was removed.
        reason: Why the whole knob was removed; empty for one that stays.
        dropped: Value to the reason why it is not searched.
    """

    name: str
    values: tuple[str, ...]
    reason: str
    dropped: dict[str, str]


@dataclass(frozen=True)
class KnobsTable:
    """A narrowed space as rows.

    Attributes:
        rows: Knobs that stay first, each group in the order of the file.
        count: Distinct legal candidates that remain.
    """

    space: str
    rows: tuple[KnobRow, ...]
    count: Count


def describe_knob(name: str, catalogue: Catalogue) -> tuple[str, ...]:
    """Explain one knob, a line for each thing worth knowing.

    Raises:
        SpaceError: For a name that the catalogue does not hold, with the nearest ones.
    """
    knob = catalogue.knob(name)
    facts = (
        ("values", _values(knob, catalogue)),
        ("otherwise", knob.accepts),
        ("default", str(knob.default)),
        ("searched", f"never: {knob.never}" if knob.never else ", ".join(map(shown, knob.suggest))),
        ("history", _history(knob)),
        ("acts", _acts(knob)),
        ("read", _SCOPE[knob.scope]),
        ("class", _DOCS[knob.docs]),
        ("safety", ", ".join(_SAFETY[word] for word in knob.safety) or "slow at worst"),
        ("proof", _proof(knob)),
        ("profile", _SHIP[knob.ship]),
        ("source", knob.source),
    )
    rules = (_rule(condition) for condition in catalogue.conditions if name in names_of(condition))
    return (
        f"{name}: {knob.does}",
        *(f"  {label:<{_WIDTH}}{text}" for label, text in facts if text),
        *(f"  {'rule':<{_WIDTH}}{rule}" for rule in rules),
    )


def knobs_table(before: Space, after: Space, count: Count) -> KnobsTable:
    """Set a space beside its narrowed form.

    Args:
        before: As loaded.
        after: As narrowed; ``removed`` holds the reasons.
        count: Of the distinct legal candidates of ``after``.
    """
    left = {dimension.name: dimension.values for dimension in after.dimensions}
    rows = [
        KnobRow(
            name=dimension.name,
            values=tuple(map(shown, left.get(dimension.name, ()))),
            reason=after.removed.get(dimension.name, ""),
            dropped=_dropped(dimension.name, after) if dimension.name in left else {},
        )
        for dimension in before.dimensions
    ]
    return KnobsTable(after.name, tuple(sorted(rows, key=lambda row: not row.values)), count)


def shown(value: str | int | None) -> str:
    """A value for a person: ``unset`` stands for none."""
    return "unset" if value is None else str(value)


def _dropped(name: str, space: Space) -> dict[str, str]:
    prefix = f"{name}="
    return {key.removeprefix(prefix): why for key, why in space.removed.items() if key.startswith(prefix)}


def _values(knob: Knob, catalogue: Catalogue) -> str:
    match knob.values:
        case Integer():
            return _integer(knob.values)
        case Choice() | PathLevel():
            return ", ".join(knob.values.words)
        case Algorithms() | Protocols():
            functions = "|".join(catalogue.functions)
            return f"[{functions}]:{','.join(catalogue.words[knob.values.kind])}, entries joined by ';'"
        case _:
            return f"text that matches {knob.values.pattern}"


def _integer(values: Integer) -> str:
    kind = "powers of two" if values.power_of_two else "whole numbers"
    multiple = f", multiples of {values.multiple_of}" if values.multiple_of > 1 else ""
    also = f", or {' or '.join(map(str, values.also))}" if values.also else ""
    ceilings = "".join(f", at most {limit} before NCCL {version}" for version, limit in values.ceilings.items())
    return f"{kind} from {values.min} to {values.max}{multiple}{also}{ceilings}"


def _history(knob: Knob) -> str:
    if "nccl" not in knob.backends:
        return knob.history
    parts: Iterable[str] = (
        f"since NCCL {knob.since}" if knob.since else "",
        f"until NCCL {knob.removed}" if knob.removed else "",
        f"formerly {', '.join(knob.formerly)}" if knob.formerly else "",
        f"deprecated since {knob.deprecated} in favour of {', '.join(knob.instead)}" if knob.deprecated else "",
    )
    return ". ".join(filter(None, ("; ".join(filter(None, parts)), knob.history)))


def _acts(knob: Knob) -> str:
    needs = ", ".join(_NEEDS[need] for need in knob.needs)
    off = ", ".join(f"{name}={value}" for name, value in knob.off_when.items())
    backends = "" if "nccl" in knob.backends else f", with {' and '.join(knob.backends)}"
    where = _NODES[tuple(sorted(knob.nodes))] + backends
    return where + (f"; needs {needs}" if needs else "") + (f"; not with {off}" if off else "")


def _proof(knob: Knob) -> str:
    if knob.proof == "process-env":
        return "each rank reports the value that it sees"
    return f"NCCL's log says '{knob.evidence_line}'" if knob.evidence_line else "NCCL's log does not say"


def _rule(condition: Condition) -> str:
    data = condition.model_dump(mode="json", exclude={"predicate", "reason"}, exclude_none=True)
    said = ", ".join(f"{key} {_plain(value)}" for key, value in data.items())
    reason = f" ({condition.reason})" if condition.reason else ""
    return f"{condition.predicate.replace('_', ' ')}: {said}{reason}"


def _plain(value: object) -> str:
    if isinstance(value, list):
        return " ".join(shown(item) for item in value)
    if isinstance(value, dict):
        return " and ".join(f"{name}={_plain(item)}" for name, item in value.items())
    return str(value)
