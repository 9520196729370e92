"""What may be tried on *this* machine: the space less what cannot act here, each removal with its reason.

Called twice, both times pure: by facts before any launch, and by what the default's own log says afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import TypeAlias

from ..machine.facts import Facts
from ..records import Candidate, Dimension, Evidence, Placement, Space
from .catalogue import Catalogue, DocsClass, Integer, Knob, PathLevel
from .conditions import conditions_of
from .hardware import links_in_use, ranks_per_node, why_not_here, why_not_on
from .legality import Circumstances, canonical, why_illegal, why_setting_illegal
from .levels import equal_levels
from .selection import parse_selection
from .values import canonical_value

WhyKnob: TypeAlias = Callable[[Knob], str | None]
WhyValues: TypeAlias = Callable[[Knob, tuple[str | None, ...]], Mapping[str, str]]


def circumstances(space: Space, facts: Facts, catalogue: Catalogue, placement: Placement) -> Circumstances:
    """What legality needs to judge the candidates of a narrowed space.

    LL128 counts as allowed where the space still holds it: narrowing removes it unless NCCL's own check passed.
    """
    known = {dimension.name: dimension.values for dimension in space.dimensions}
    return Circumstances(
        catalogue=catalogue,
        nccl_version=facts.nccl.version_tuple if facts.nccl else None,
        inherited=facts.inherited.settings if space.backend == "nccl" else {},
        backend=facts.backend,
        known_names=frozenset(facts.nccl.names) if facts.nccl else frozenset(),
        conditions=conditions_of(space),
        ll128=any(_is_guarded(value, catalogue) for value in known.get(catalogue.protocol_knob, ())),
        nccl_nodes=placement.nccl_nodes,
    )


def narrow(
    space: Space,
    facts: Facts,
    catalogue: Catalogue,
    placement: Placement,
    allow: Collection[DocsClass] = (),
    environ: Mapping[str, str] | None = None,
) -> Space:
    """Remove what cannot act on this machine, before any launch.

    Args:
        space: As loaded.
        facts: Of the machine.
        catalogue: What the knobs are.
        placement: Where the ranks will run.
        allow: Classes of documentation that may be searched; empty for all.
        environ: The caller's environment, for knobs that are no ``NCCL_*`` variable: those set there are inherited.

    Returns:
        The narrowed space; ``removed`` maps a knob, or ``KNOB=value``, to the reason.
    """
    about = circumstances(space, facts, catalogue, placement)
    about = replace(about, inherited={**(environ or {}), **about.inherited}, ll128=True)

    def why_knob(knob: Knob) -> str | None:
        reasons = (
            f"backend is {facts.backend}" if facts.backend not in knob.backends else None,
            _why_not_allowed(knob, allow),
            _why_inherited(knob, facts, about),
            _why_switched_off(knob, about),
            why_not_on(knob.nodes, placement) if "nccl" in knob.backends else None,
            why_not_here(knob.needs, facts, placement),
        )
        return next(filter(None, reasons), None)

    def why_values(knob: Knob, values: tuple[str | None, ...]) -> Mapping[str, str]:
        found: dict[str, str] = {}
        for value in filter(None, values):
            why = why_setting_illegal(knob.name, value, about) or _why_value(knob, value, facts, catalogue, placement)
            if why:
                found[value] = why
        if isinstance(knob.values, PathLevel) and knob.role == "gpu_paths":
            left = tuple(value for value in values if value not in found)
            found |= equal_levels(left, knob.values, facts, placement)
        if knob.role == "cpu_threads" and None in values and placement.nproc_per_node > 1:
            found["1"] = "the same as unset: torchrun gives each of several ranks one thread"
        return found

    spelled = _respell(space, catalogue, about)
    return _without_illegal_start(_apply(spelled, catalogue, why_knob, why_values), about)


def narrow_by_evidence(space: Space, evidence: Evidence, catalogue: Catalogue) -> Space:
    """Remove what the default's own log shows to be without effect; what the log does not say is kept.

    LL128 alone is removed unless the log shows that NCCL's own check allowed it, since forcing it may corrupt sums.
    """
    transports = tuple(evidence.transports)

    def why_knob(knob: Knob) -> str | None:
        if evidence.nnodes == 1 and knob.nodes == ("several",):
            return "NCCL counts one node"
        if "sockets" in knob.needs and not _uses("Socket", transports, evidence.network):
            return "no connection uses NET/Socket"
        if "infiniband" in knob.needs and not _uses("IB", transports, evidence.network):
            return "no connection uses NET/IB"
        return None

    def why_values(knob: Knob, values: tuple[str | None, ...]) -> Mapping[str, str]:
        if knob.name == catalogue.protocol_knob and not _ll128_allowed(evidence):
            why = "NCCL's own table does not allow LL128 here" if evidence.ll128 is False else _UNPROVEN
            return {value: why for value in filter(None, values) if _is_guarded(value, catalogue)}
        return _without_effect(knob, values, evidence.channels)

    return _apply(space, catalogue, why_knob, why_values)


_UNPROVEN = "nothing shows that NCCL's own table allows LL128 here"


def _apply(space: Space, catalogue: Catalogue, why_knob: WhyKnob, why_values: WhyValues) -> Space:
    removed = dict(space.removed)
    kept: list[Dimension] = []
    for dimension in space.dimensions:
        knob = catalogue.knob(dimension.name)
        why = why_knob(knob)
        if why:
            removed[knob.name] = why
            continue
        dropped = why_values(knob, dimension.values)
        left = tuple(value for value in dimension.values if value is None or value not in dropped)
        if left in ((), (None,)):
            reasons = tuple(dict.fromkeys(dropped.values()))
            removed[knob.name] = reasons[0] if len(reasons) == 1 else "no value is left: " + "; ".join(reasons)
            continue
        removed |= {f"{knob.name}={value}": why for value, why in dropped.items()}
        kept.append(Dimension(name=knob.name, values=left))
    return space.model_copy(update={"dimensions": tuple(kept), "removed": removed, "start": _start(space.start, kept)})


def _start(start: Iterable[Candidate], kept: Iterable[Dimension]) -> tuple[Candidate, ...]:
    """The starting candidates with what is left of their settings, each once; an empty one is the default anyway."""
    values = {dimension.name: dimension.values for dimension in kept}
    left = (
        Candidate(settings={name: value for name, value in each.settings.items() if value in values.get(name, ())})
        for each in start
    )
    return tuple(dict.fromkeys(candidate for candidate in left if not candidate.is_default))


def _without_illegal_start(space: Space, about: Circumstances) -> Space:
    start = tuple(candidate for candidate in space.start if why_illegal(candidate.settings, about) is None)
    return space.model_copy(update={"start": start})


def _respell(space: Space, catalogue: Catalogue, about: Circumstances) -> Space:
    """Write the values as this NCCL reads them: without a collective in front before 2.24."""
    dimensions = []
    for dimension in space.dimensions:
        knob = catalogue.knob(dimension.name)
        values = (
            None if value is None else canonical_value(value, knob, catalogue, about.nccl_version)
            for value in dimension.values
        )
        dimensions.append(Dimension(name=dimension.name, values=tuple(dict.fromkeys(values))))
    start = tuple(canonical(candidate, catalogue, about.nccl_version) for candidate in space.start)
    return space.model_copy(update={"dimensions": tuple(dimensions), "start": start})


def _why_not_allowed(knob: Knob, allow: Collection[DocsClass]) -> str | None:
    if not allow or knob.docs in allow:
        return None
    said = {"system": "system configuration", "debugging": "debugging", "undocumented": "undocumented"}[knob.docs]
    return f"its class is {said}, which is not among those allowed"


def _why_inherited(knob: Knob, facts: Facts, about: Circumstances) -> str | None:
    if knob.name not in about.inherited:
        return None
    source = facts.inherited.sources.get(knob.name, "environment")
    where = "the environment" if source == "environment" else source
    return f"inherited from {where} ({about.inherited[knob.name]}), so part of the baseline"


def _why_switched_off(knob: Knob, about: Circumstances) -> str | None:
    for name, value in knob.off_when.items():
        if about.inherited.get(name) == value:
            return f"{name}={value} is inherited"
    return None


def _why_value(knob: Knob, value: str, facts: Facts, catalogue: Catalogue, placement: Placement) -> str | None:
    if knob.name == catalogue.algorithm_knob:
        return _why_no_algorithm(value, facts, catalogue, placement)
    if _is_guarded(value, catalogue) and knob.name == catalogue.protocol_knob:
        return _why_no_ll128(facts, placement)
    if knob.role == "cpu_threads" and int(value) > facts.cpu.cores_usable:
        return f"{facts.cpu.cores_usable} cores are usable"
    return None


def _why_no_algorithm(value: str, facts: Facts, catalogue: Catalogue, placement: Placement) -> str | None:
    for entry in parse_selection(value):
        for word in () if entry.exclude else entry.words:
            why = why_not_here(catalogue.algorithms[word].needs, facts, placement)
            if why:
                return f"{word}: {why}"
    return None


def _why_no_ll128(facts: Facts, placement: Placement) -> str | None:
    """What is certain of NCCL's own check (``src/graph/tuning.cc`` ``ncclTopoTuneModel``) before it has run."""
    known = {gpu.compute_capability for gpu in facts.gpus if gpu.compute_capability}
    if known and min(known) < (7, 0):
        return "LL128 needs GPUs from Volta on"
    if len(known) > 1 and min(known) < (9, 0):
        return "LL128 needs GPUs of one generation"
    if ranks_per_node(placement) > 1 and links_in_use(facts, placement) == "pcie" and facts.topology is not None:
        return "NCCL allows no LL128 between GPUs that are not joined by NVLink"
    return None


def _is_guarded(value: str | None, catalogue: Catalogue) -> bool:
    """Whether a protocol list leaves LL128 on."""
    entries = parse_selection(value) if value else ()
    return any(catalogue.guarded_protocol in entry.enabled(catalogue.protocols) for entry in entries)


def _ll128_allowed(evidence: Evidence) -> bool:
    return evidence.ll128 is True or any("LL128" in choice.upper().split() for choice in evidence.choices.values())


def _uses(network: str, transports: Collection[str], chosen: str | None) -> bool:
    """Whether a network is in use; also true where the log says nothing about networks."""
    if transports:
        return any(transport.startswith(f"NET/{network}") for transport in transports)
    return chosen is None or chosen.upper().startswith(network.upper())


def _without_effect(knob: Knob, values: tuple[str | None, ...], channels: int | None) -> dict[str, str]:
    """Bounds on the channels that the default keeps anyway (``src/graph/connect.cc`` ``ncclTopoPostset``)."""
    if channels is None or None not in values or not isinstance(knob.values, Integer):
        return {}
    why = f"the same as unset: the default uses {channels} channels"
    numbers = [value for value in values if value is not None]
    if knob.role == "channels_floor":
        return {value: why for value in numbers if int(value) <= channels}
    if knob.role == "channels_ceiling":
        return {value: why for value in numbers if int(value) >= channels}
    return {}
