"""What is inherited against what the catalogue knows: settings that NCCL would refuse, ignore or not know; pure."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from .machine.facts import Facts
from .machine.faults import Fault
from .space.catalogue import Algorithms, Catalogue, Choice, Integer, Knob, PathLevel, Protocols, Version
from .space.conditions import c_integer
from .space.foreign import foreign_names
from .space.rules import SETTING_RULES, Circumstances
from .space.selection import parse_selection
from .space.values import canonical_value, why_no_value
from .trial.environment import CONF_FILE, DEBUG, DEBUG_PREFIX
from .trial.evidence import load_log_patterns

#: Levels of ``NCCL_DEBUG`` that say nothing while all is well.
_QUIET = ("VERSION", "WARN")
_A_LETTER_OR_TWO = 0.9  # of likeness


def by_name(facts: Facts, catalogue: Catalogue) -> dict[str, Fault]:
    """Find what is wrong with each inherited setting; at most one fault a name."""
    return dict(_inherited(facts, catalogue))


def of_machine(facts: Facts) -> list[Fault]:
    """Find what is inherited on purpose and still stands against this machine or the search."""
    return [*_files(facts), *_sockets_by_choice(facts)]


def _inherited(facts: Facts, catalogue: Catalogue) -> Iterator[tuple[str, Fault]]:
    for name, value in facts.inherited.settings.items():
        if value != value.strip() or name != name.strip():
            continue  # blanks are a fault of their own
        source = facts.inherited.sources.get(name, "environment")
        source = "the environment" if source == "environment" else source
        fault = (
            _logging(name, value, source)
            or _misspelt(name, source, facts, catalogue)
            or _without_effect(name, source, facts, catalogue)
            or _value(name, value, source, facts, catalogue)
        )
        if fault:
            yield name, fault


def _logging(name: str, value: str, source: str) -> Fault | None:
    if not name.startswith(DEBUG_PREFIX) or (name == DEBUG and value.upper() in _QUIET):
        return None
    return Fault(
        name="inherited_debugging",
        what=f"{name}={value} is inherited from {source}: a debugging variable, which launches here replace "
        "and which costs time and disk elsewhere",
        do=f"Unset {name} in production",
    )


def _misspelt(name: str, source: str, facts: Facts, catalogue: Catalogue) -> Fault | None:
    """A name that no NCCL knows and that is near to one of the catalogue."""
    names = facts.nccl.names if facts.nccl else ()
    if name in catalogue.knobs or name in catalogue.gone or name in names or not name.startswith("NCCL_"):
        return None
    if name.startswith(DEBUG_PREFIX) or name == CONF_FILE or name in foreign_names():
        return None
    # The catalogue holds not every name, and many that are right look alike; machine.faults knows the library's.
    near = get_close_matches(name, [*catalogue.knobs, *names], n=1, cutoff=_A_LETTER_OR_TWO)
    if not near:
        return None
    return Fault(
        name="misspelt_setting",
        what=f"{name} ({source}) is no name that NCCL knows, and NCCL says nothing about it",
        do=f"Did you mean {near[0]}? If not, unset it, unless a plugin or torch reads it",
    )


def _without_effect(name: str, source: str, facts: Facts, catalogue: Catalogue) -> Fault | None:
    about = Circumstances(catalogue, facts.nccl.version_tuple if facts.nccl else None, backend="nccl")
    why = None
    if name in catalogue.gone:
        why = f"{name} was dropped in NCCL {catalogue.gone[name]}"
    elif name in catalogue.knobs:
        why = SETTING_RULES["in this version"](name, "", about)
        if why is None and facts.nccl and facts.nccl.names and name not in facts.nccl.names:
            why = f"{name} does not stand in the NCCL {facts.nccl.version or ''} that is loaded"
    if why is None:
        return None
    return Fault(
        name="setting_without_effect",
        what=f"{why}, so the inherited one ({source}) does nothing",
        do=f"Unset {name}",
    )


def _value(name: str, value: str, source: str, facts: Facts, catalogue: Catalogue) -> Fault | None:
    knob = catalogue.knobs.get(name)
    version = facts.nccl.version_tuple if facts.nccl else None
    why = why_not_taken(value, knob, catalogue, version) if knob else None
    if knob is None or why is None:
        return None
    is_list = isinstance(knob.values, Algorithms | Protocols)
    ends_start = bool(value) and is_list and catalogue.prefixed(version) and facts.backend == "nccl"
    return Fault(
        name="bad_setting",
        what=f"{name}={value} ({source}) {why}{f'. {knob.accepts}' if knob.accepts else ''}".rstrip("."),
        do=f"Correct it or unset it; 'nccltune knobs {name}' says what it takes",
        fatal=ends_start,
    )


def why_not_taken(value: str, knob: Knob, catalogue: Catalogue, version: Version | None = None) -> str | None:
    """Say why NCCL does not take an inherited value as it is meant, or ``None``.

    Other than for a candidate, any spelling that NCCL reads alike will do.
    """
    if not value:
        return "is empty, which sets nothing"
    match knob.values:
        case Integer():
            return why_no_value(canonical_value(value, knob, catalogue, version), knob, catalogue, version)
        case Choice(words=words) if all(word.lstrip("-").isdecimal() for word in words):
            why = why_no_value(canonical_value(value, knob, catalogue, version), knob, catalogue, version)
            read = c_integer(value)
            return f"{why}; NCCL would read {read}" if why and str(read) != value else why
        case PathLevel() if value.isdecimal():
            return None  # the scale of numbers that older releases had is still read
        case Algorithms() | Protocols():
            return _why_no_list(value, catalogue.words[knob.values.kind], catalogue, version)
        case PathLevel() if canonical_value(value, knob, catalogue, version) in knob.values.words and (
            value not in knob.values.words
        ):
            return f"is written {canonical_value(value, knob, catalogue, version)}"
        case _:
            return why_no_value(value, knob, catalogue, version)


def _why_no_list(value: str, known: tuple[str, ...], catalogue: Catalogue, version: Version | None) -> str | None:
    for entry in parse_selection(value):
        if entry.function and not catalogue.prefixed(version):
            return f"names a collective, which NCCL reads from {catalogue.prefixed_since} on"
        if entry.function and entry.function not in catalogue.functions:
            return f"names {entry.function!r}, which is no collective"
        for word in entry.words:
            if word not in known:
                return f"names {word!r}, which NCCL does not know; known: {', '.join(known)}"
    return None


def _files(facts: Facts) -> Iterator[Fault]:
    """Settings that a file brings along: an image's or a vendor's profile."""
    for path in facts.inherited.files:
        names = [name for name, source in facts.inherited.sources.items() if source == path]
        if names:
            yield Fault(
                name="vendor_profile",
                what=f"{path} sets {', '.join(names)}, which therefore belong to the baseline and are not searched",
                do="Leave it if production has the same file; else remove it and look again",
            )


def _sockets_by_choice(facts: Facts) -> Iterator[Fault]:
    chosen = load_log_patterns().sockets_by_choice
    for name, value in facts.inherited.settings.items():
        if facts.has_infiniband and value in chosen.get(name, ()):
            yield Fault(
                name="sockets_chosen",
                what=f"{name}={value} makes NCCL take TCP sockets although an InfiniBand or RoCE port is up",
                do=f"Unset {name}, unless the fabric must not be used",
            )
