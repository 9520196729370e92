"""May these settings be launched? The rules themselves stand in ``rules.py``, what they know in the catalogue."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from ..records import Backend, Candidate
from .catalogue import Catalogue, Version
from .conditions import Condition, names_of
from .rules import CANDIDATE_RULES, SETTING_RULES
from .rules import Circumstances as Circumstances
from .values import canonical_value


def illegal(
    candidate: Candidate,
    catalogue: Catalogue,
    *,
    nccl_version: Version | None,
    inherited: Mapping[str, str],
    backend: Backend,
    known_names: Collection[str] = (),
    conditions: tuple[Condition, ...] = (),
    ll128: bool = False,
    nccl_nodes: int | None = None,
) -> str | None:
    """Say why a candidate must not be launched, or ``None``; see ``Circumstances`` for the arguments."""
    circumstances = Circumstances(
        catalogue, nccl_version, inherited, backend, known_names, conditions, ll128, nccl_nodes
    )
    return why_illegal(candidate.settings, circumstances)


def why_illegal(settings: Mapping[str, str], circumstances: Circumstances) -> str | None:
    """Say why settings must not be launched, or ``None``. Total: any text gets an answer; the default is legal."""
    if not settings:
        return None
    for name, value in settings.items():
        why = why_setting_illegal(name, value, circumstances)
        if why:
            return why
    for rule in CANDIDATE_RULES.values():
        why = rule(settings, circumstances)
        if why:
            return why
    return None


def why_setting_illegal(name: str, value: str, circumstances: Circumstances) -> str | None:
    """Say why one setting can be in no candidate, or ``None``."""
    for rule in SETTING_RULES.values():
        why = rule(name, value, circumstances)
        if why:
            return why
    return None


def canonical(candidate: Candidate, catalogue: Catalogue, nccl_version: Version | None = None) -> Candidate:
    """The same candidate with every value in its one spelling; what is no value stays as it is."""
    return Candidate(
        settings={
            name: canonical_value(value, catalogue.knobs[name], catalogue, nccl_version)
            if name in catalogue.knobs
            else value
            for name, value in candidate.settings.items()
        }
    )


def coupled(names: Iterable[str], circumstances: Circumstances) -> tuple[frozenset[str], ...]:
    """Part the knobs into groups, so that no rule looks at two groups: legality is then decided group by group."""
    catalogue = circumstances.catalogue
    links = [names_of(condition) for condition in (*catalogue.conditions, *circumstances.conditions)]
    links.append((catalogue.algorithm_knob, catalogue.protocol_knob))
    links += [
        (catalogue.algorithm_knob, *algorithm.off_when, *algorithm.needs_setting)
        for algorithm in catalogue.algorithms.values()
    ]
    groups = [{name} for name in names]
    for link in links:
        touched = [group for group in groups if group & set(link)]
        if len(touched) > 1:
            groups = [group for group in groups if group not in touched] + [set().union(*touched)]
    return tuple(map(frozenset, groups))
