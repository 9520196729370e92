"""The rules of legality: two tables of small pure functions, each of which gives a reason or ``None``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from ..records import Backend
from .catalogue import Algorithm, Catalogue, Version, nearest_knob, parse_version
from .conditions import Condition, names_of, why_broken
from .selection import Entry, parse_selection
from .values import why_no_value


@dataclass(frozen=True)
class Circumstances:
    """What legality depends on besides the settings themselves.

    Attributes:
        nccl_version: Of the library that the workers load; ``None`` is taken for a current one.
        inherited: What NCCL sees before a candidate; it is kept in every launch.
        backend: Of the process group.
        known_names: The names that the library contains; empty where they are not known.
        conditions: Rules between knobs that the space adds to the catalogue's.
        ll128: Whether NCCL's own check left LL128 on; only then may it be forced.
        nccl_nodes: Nodes as NCCL counts them; ``None`` where that is not known.
    """

    catalogue: Catalogue
    nccl_version: Version | None = None
    inherited: Mapping[str, str] = field(default_factory=dict)
    backend: Backend = "nccl"
    known_names: Collection[str] = ()
    conditions: tuple[Condition, ...] = ()
    ll128: bool = False
    nccl_nodes: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "known_names", frozenset(self.known_names)
        )  # asked for every setting of every candidate


SettingRule: TypeAlias = Callable[[str, str, Circumstances], str | None]
CandidateRule: TypeAlias = Callable[[Mapping[str, str], Circumstances], str | None]


def _known(name: str, _: str, about: Circumstances) -> str | None:
    if name in about.catalogue.knobs:
        return None
    if name in about.catalogue.gone:
        return f"{name} was dropped in NCCL {about.catalogue.gone[name]}"
    return f"{name} is no knob of the catalogue. {nearest_knob(name, about.catalogue)}"


def _searchable(name: str, _: str, about: Circumstances) -> str | None:
    never = about.catalogue.knobs[name].never
    return f"{name} is never searched: {never}" if never else None


def _acts_here(name: str, _: str, about: Circumstances) -> str | None:
    knob = about.catalogue.knobs[name]
    return None if about.backend in knob.backends else f"backend is {about.backend}"


def _not_inherited(name: str, _: str, about: Circumstances) -> str | None:
    if name not in about.inherited:
        return None
    return f"{name}={about.inherited[name]} is inherited and belongs to the baseline"


def _in_library(name: str, _: str, about: Circumstances) -> str | None:
    if about.backend != "nccl" or not about.known_names or name in about.known_names:
        return None
    return f"{name} is unknown to the NCCL that is loaded"


def _in_version(name: str, _: str, about: Circumstances) -> str | None:
    knob, version = about.catalogue.knobs[name], about.nccl_version
    if about.backend != "nccl" or version is None:
        return None
    since, removed = parse_version(knob.since), parse_version(knob.removed)
    if since and version < since:
        return f"{name} came with NCCL {knob.since}"
    if removed and version >= removed:
        return f"{name} was dropped in NCCL {knob.removed}"
    return None


def _value(name: str, value: str, about: Circumstances) -> str | None:
    why = why_no_value(value, about.catalogue.knobs[name], about.catalogue, about.nccl_version)
    return f"{name}={value} {why}" if why else None


def _algorithms_exist(name: str, value: str, about: Circumstances) -> str | None:
    catalogue = about.catalogue
    if name != catalogue.algorithm_knob:
        return None
    for entry in parse_selection(value):
        for word in () if entry.exclude else entry.words:
            why = _why_no_algorithm(catalogue.algorithms[word], about)
            if why:
                return f"{word} {why}"
    return None


def _why_no_algorithm(algorithm: Algorithm, about: Circumstances) -> str | None:
    since, version, nodes = parse_version(algorithm.since), about.nccl_version, about.nccl_nodes
    if since and version and version < since:
        return f"came with NCCL {algorithm.since}"
    for name, value in algorithm.off_when.items():
        if about.inherited.get(name) == value:
            return f"is switched off by {name}={value}"
    if nodes is not None and ("one" if nodes == 1 else "several") not in algorithm.nodes:
        return f"does not exist on {'one node' if nodes == 1 else 'several nodes'}"
    return None


def _guarded(name: str, value: str, about: Circumstances) -> str | None:
    catalogue = about.catalogue
    if about.ll128 or name != catalogue.protocol_knob:
        return None
    if any(catalogue.guarded_protocol in entry.enabled(catalogue.protocols) for entry in parse_selection(value)):
        return f"{name}={value} forces {catalogue.guarded_protocol.upper()}, which NCCL's own check did not allow here"
    return None


def _switches(settings: Mapping[str, str], about: Circumstances) -> str | None:
    """Settings that switch an algorithm off, or without which it does not exist; from the candidate or inherited."""
    seen = {**about.inherited, **settings}
    if about.catalogue.algorithm_knob not in settings:
        return None
    for entry in parse_selection(settings[about.catalogue.algorithm_knob]):
        for word in () if entry.exclude else entry.words:
            algorithm = about.catalogue.algorithms[word]
            for name, value in algorithm.off_when.items():
                if seen.get(name) == value:
                    return f"{word} is switched off by {name}={value}"
            for name, value in algorithm.needs_setting.items():
                if seen.get(name) != value:
                    return f"{word} needs {name}={value}"
    return None


def _prefixed_alike(settings: Mapping[str, str], about: Circumstances) -> str | None:
    """NCCL 2.31 and later lose every collective that the protocols name and the algorithms do not."""
    both = _both_lists(settings, about)
    if both is None:
        return None
    algorithms, protocols = ({entry.function for entry in entries} for entries in both)
    if algorithms == protocols or "" in algorithms:
        return None
    names = about.catalogue.algorithm_knob, about.catalogue.protocol_knob
    return f"{names[0]} and {names[1]} must name the same collectives"


def _pairs_exist(settings: Mapping[str, str], about: Circumstances) -> str | None:
    """Every algorithm named has one of the protocols named, in every collective that both are for."""
    both = _both_lists(settings, about)
    if both is None:
        return None
    catalogue = about.catalogue
    protocols = {entry.function: entry for entry in both[1]}
    for entry in both[0]:
        other = protocols.get(entry.function)
        why = _why_no_pair(entry, other, catalogue) if other else None
        if why:
            return why
    return None


def _uses_exist(name: str, value: str, about: Circumstances) -> str | None:
    """Every algorithm named for a collective has an implementation of it."""
    catalogue = about.catalogue
    if name != catalogue.algorithm_knob:
        return None
    for entry in parse_selection(value):
        for word in entry.words if entry.function else ():
            if entry.function not in catalogue.algorithms[word].pairs:
                return f"{word} does not exist for {entry.function}"
    return None


def _why_no_pair(entry: Entry, protocols: Entry, catalogue: Catalogue) -> str | None:
    allowed = protocols.enabled(catalogue.protocols)
    function = entry.function or "allreduce"
    left = entry.enabled(tuple(word for word, each in catalogue.algorithms.items() if function in each.pairs))
    fitting = [word for word in left if set(allowed) & set(catalogue.algorithms[word].pairs[function])]
    missing = [word for word in left if word not in fitting]
    if missing and not (entry.exclude and fitting):
        return f"{missing[0]} has no protocol among {', '.join(allowed)} for {function}"
    return None


def _both_lists(
    settings: Mapping[str, str], about: Circumstances
) -> tuple[tuple[Entry, ...], tuple[Entry, ...]] | None:
    """Both lists as the library will see them, if a candidate touches one and both are set and understood."""
    names = about.catalogue.algorithm_knob, about.catalogue.protocol_knob
    seen = {**about.inherited, **settings}
    if not any(name in settings for name in names) or not all(name in seen for name in names):
        return None
    lists = tuple(parse_selection(seen[name]) for name in names)
    known = tuple(about.catalogue.algorithms), about.catalogue.protocols
    understood = all(word in known[i] for i in (0, 1) for entry in lists[i] for word in entry.words)
    return (lists[0], lists[1]) if understood else None


def _conditions(settings: Mapping[str, str], about: Circumstances) -> str | None:
    seen = {**about.inherited, **settings}
    for condition in (*about.catalogue.conditions, *about.conditions):
        names = names_of(condition)
        if any(name in settings for name in names) or condition in about.conditions:
            why = why_broken(condition, seen)
            if why:
                return why
    return None


SETTING_RULES: Final[Mapping[str, SettingRule]] = {
    "known": _known,
    "searchable": _searchable,
    "acts here": _acts_here,
    "not inherited": _not_inherited,
    "in the library": _in_library,
    "in this version": _in_version,
    "value": _value,
    "algorithms exist": _algorithms_exist,
    "algorithms fit the collective": _uses_exist,
    "no forced LL128": _guarded,
}
"""Rules for one setting, in the order in which they are asked: each may rely on those before it."""

CANDIDATE_RULES: Final[Mapping[str, CandidateRule]] = {
    "switches": _switches,
    "prefixed alike": _prefixed_alike,
    "pairs exist": _pairs_exist,
    "conditions": _conditions,
}
"""Rules for a whole candidate whose single settings are legal."""
