"""``nccltune doctor``: is this machine fit to be tuned?  Facts, faults with what to do, and the checklist of practice.

Nothing here imports torch. What the catalogue knows of inherited settings is added to what ``machine.faults`` finds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from . import probe as probes
from .errors import MachineError, nearest
from .machine import facts as machine
from .machine.describe import describe
from .machine.facts import Facts
from .machine.faults import Fault, faults
from .records import Placement
from .space.catalogue import Algorithms, Catalogue, Choice, Integer, Knob, PathLevel, Protocols, load_catalogue
from .space.conditions import c_integer
from .space.rules import SETTING_RULES, Circumstances
from .space.selection import parse_selection
from .space.values import canonical_value, why_no_value
from .trial.environment import CONF_FILE, DEBUG, DEBUG_PREFIX
from .trial.evidence import load_log_patterns
from .trial.placement import place

Word: TypeAlias = Literal["yes", "no", "unknown"]

#: Levels of ``NCCL_DEBUG`` that say nothing while all is well.
_QUIET = ("VERSION", "WARN")
_PROBE = "'nccltune doctor --probe' tells"
_LOOK_UP = "'nccltune knobs' NAME says what a setting takes"


@dataclass(frozen=True)
class Answer:
    """One line of the checklist."""

    question: str
    answer: Word
    detail: str


@dataclass(frozen=True, kw_only=True)
class Report:
    """What the doctor found.

    Attributes:
        faults: Fatal ones first.
        probe: What a launch told; ``None`` where none was made.
    """

    facts: Facts
    faults: tuple[Fault, ...]
    checklist: tuple[Answer, ...]
    probe: probes.Probe | None = None

    @property
    def fit(self) -> bool:
        """Whether this machine can be tuned."""
        return not any(fault.fatal for fault in self.faults)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Where the ranks would run, in the main job's own words, and whether to launch the probe."""

    probe: bool = False
    nproc: int | None = None
    nnodes: int | None = None
    emulate_nodes: int = 0
    launch_prefix: str = ""


def examine(
    options: Options,
    environ: Mapping[str, str],
    stop: Callable[[], bool] = lambda: False,
    on_probe: Callable[[Placement], object] = lambda _: None,
    run_probe: Callable[..., probes.Probe] = probes.run,
) -> Report:
    """Look at this machine, and launch the probe if asked to.

    Args:
        options: The user's words.
        environ: The caller's environment.
        stop: Asked often while the probe runs; true ends it.
        on_probe: Told before the probe is launched, which takes seconds.
        run_probe: Launches it.

    Raises:
        UsageError: The words do not fit each other or the machine.
        Interrupted: Somebody asked to stop.
    """
    facts = machine.gather(environ)
    placement: Placement | None = None
    alone: list[Fault] = []
    try:
        placement = _place(options, facts, environ)
    except MachineError as error:
        alone = [Fault(name="too_few_ranks", what=error.what, do=error.do, fatal=True)]
    probe = None
    if options.probe and placement is not None and facts.torch is not None:
        on_probe(placement)
        probe = run_probe(facts, placement, environ, stop)
    return report(facts, load_catalogue(), placement, probe, alone)


def _place(options: Options, facts: Facts, environ: Mapping[str, str]) -> Placement:
    return place(
        backend=facts.backend,
        gpus=len(facts.gpus),
        nproc=options.nproc,
        nnodes=options.nnodes,
        emulate_nodes=options.emulate_nodes,
        launch_prefix=options.launch_prefix,
        environ=environ,
    )


def report(
    facts: Facts,
    catalogue: Catalogue,
    placement: Placement | None = None,
    probe: probes.Probe | None = None,
    further: list[Fault] | None = None,
) -> Report:
    """Judge a machine; pure.

    Args:
        facts: Of the machine.
        catalogue: What is known of NCCL's settings.
        placement: Where the ranks of the probe ran.
        probe: What it told.
        further: Faults found on the way.
    """
    found = [*machine_faults(facts, catalogue), *(further or [])]
    if probe is not None and placement is not None:
        found += probes.faults(probe, facts, placement)
    found.sort(key=lambda fault: not fault.fatal)
    return Report(facts=facts, faults=tuple(found), checklist=tuple(checklist(facts, probe)), probe=probe)


# ---- faults


def machine_faults(facts: Facts, catalogue: Catalogue) -> list[Fault]:
    """The faults of a machine and of what it inherits, without a launch."""
    better = dict(_inherited(facts, catalogue))
    inherited = facts.inherited
    # What the catalogue explains is not said again as a name that the library does not have.
    rest = {name: value for name, value in inherited.settings.items() if name not in better}
    trimmed = facts.model_copy(update={"inherited": inherited.model_copy(update={"settings": rest})})
    return [
        *faults(trimmed, lambda name: name in catalogue.knobs and catalogue.knobs[name].docs == "debugging"),
        *better.values(),
        *_files(facts),
        *_sockets_by_choice(facts),
    ]


def _inherited(facts: Facts, catalogue: Catalogue) -> Iterator[tuple[str, Fault]]:
    for name, value in facts.inherited.settings.items():
        if value != value.strip() or name != name.strip():
            continue  # blanks are a fault of their own
        source = facts.inherited.sources.get(name, "environment")
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
    if name.startswith(DEBUG_PREFIX) or name == CONF_FILE:
        return None
    near = nearest(name, [*catalogue.knobs, *names])
    if not near.startswith("Did you mean"):
        return None  # with the library's names at hand, machine.faults says so of a name that nothing is near to
    return Fault(
        name="misspelt_setting",
        what=f"{name} ({source}) is no name that NCCL knows, and NCCL says nothing about it",
        do=f"{near}? If not, unset it, unless a plugin or torch reads it",
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
        do=f"Correct it or unset it; {_LOOK_UP.replace('NAME', name)}",
        fatal=ends_start,
    )


def why_not_taken(
    value: str, knob: Knob, catalogue: Catalogue, version: tuple[int, int, int] | None = None
) -> str | None:
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
        case _:
            return why_no_value(value, knob, catalogue, version)


def _why_no_list(
    value: str, known: tuple[str, ...], catalogue: Catalogue, version: tuple[int, int, int] | None
) -> str | None:
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


# ---- the checklist


def checklist(facts: Facts, probe: probes.Probe | None = None) -> Iterator[Answer]:
    """What people look up by hand when a job does not start, each with its answer."""
    yield _cuda(facts)
    yield _all_gpus(facts)
    yield _nccl(facts, probe)
    yield _topology(facts)
    yield _interface(facts, probe)
    yield _adds(probe)


def _cuda(facts: Facts) -> Answer:
    question = "is CUDA there"
    if not facts.gpus:
        known: Word = "unknown" if facts.gpu_error and facts.driver is None and facts.hidden else "no"
        return Answer(question, known, facts.gpu_error or "no GPU is visible")
    if facts.torch is None or facts.torch.cuda is None:
        return Answer(question, "no", "there are GPUs, but no torch that is built with CUDA")
    driver = f", the driver runs up to {'.'.join(map(str, facts.cuda_driver))}" if facts.cuda_driver else ""
    return Answer(question, "yes", f"torch is built with CUDA {facts.torch.cuda}{driver}")


def _all_gpus(facts: Facts) -> Answer:
    question, total = "are all GPUs seen", len(facts.gpus) + facts.hidden
    if not total:
        return Answer(question, "no" if facts.driver else "unknown", facts.gpu_error or "there is none")
    if facts.hidden:
        return Answer(question, "no", f"{len(facts.gpus)} of {total}, by CUDA_VISIBLE_DEVICES")
    return Answer(question, "yes", f"{total} of {total}")


def _nccl(facts: Facts, probe: probes.Probe | None) -> Answer:
    question, nccl = "which NCCL", facts.nccl
    if facts.torch is None or not facts.torch.has_nccl:
        return Answer(question, "no", "there is no torch that is built with NCCL")
    if probe and probe.log and probe.log.version:
        return Answer(question, "yes", f"{probe.log.version}, {', '.join(probe.libraries) or 'as its log says'}")
    if nccl is None or nccl.version is None:
        return Answer(question, "unknown", _PROBE)
    return Answer(question, "yes", f"{nccl.version}, {nccl.library}")


def _topology(facts: Facts) -> Answer:
    question = "which topology"
    if len(facts.gpus) < 2:
        return Answer(question, "no", "it takes two GPUs to have one")
    if facts.topology is None or not facts.topology.links:
        return Answer(question, "unknown", "the driver does not say how the GPUs are joined")
    return Answer(question, "yes", machine.fingerprint(facts).get("links", facts.links))


def _interface(facts: Facts, probe: probes.Probe | None) -> Answer:
    question = "which network interface"
    if probe and probe.log and probe.log.network:
        names = probe.log.ib_devices if probe.log.network == "IB" else probe.log.socket_interfaces
        return Answer(question, "yes", " ".join([probe.log.network, *names]))
    useful = [nic.name for nic in facts.nics if nic.up and not nic.virtual]
    if not useful:
        return Answer(question, "no", "there are none but virtual or idle ones")
    return Answer(question, "unknown", f"{', '.join(useful)} could be taken; {_PROBE} which one NCCL takes")


def _adds(probe: probes.Probe | None) -> Answer:
    question = "does a process group come up and add correctly"
    if probe is None:
        return Answer(question, "unknown", _PROBE)
    world = probe.world
    if world.state == "untried":
        return Answer(question, "no", probe.failure.message if probe.failure else "the probe did not come so far")
    if world.state != "right":
        return Answer(question, "no", world.detail or world.state)
    speed = f"{world.gbytes_per_s:.3g} GB/s" if world.gbytes_per_s else ""
    right = sum(part.state == "right" for part in probe.pairs)
    sound = right == len(probe.pairs)
    return Answer(question, "yes" if sound else "no", f"all ranks {speed}, {right} of {len(probe.pairs)} pairs")


# ---- said


def lines(found: Report) -> Iterator[str]:
    """The report for a reader."""
    yield from describe(found.facts)
    for fault in found.faults:
        yield ""
        yield f"{'FATAL' if fault.fatal else 'note'} {fault.name}: {fault.what}."
        if fault.do:
            yield f"  {fault.do}."
    if found.probe:
        yield ""
        yield from _probe_lines(found.probe)
    yield ""
    for each in found.checklist:
        yield f"{each.answer:<8}{each.question}: {each.detail}"
    yield "fit to be tuned" if found.fit else "not fit to be tuned: see what is fatal above"


def _probe_lines(probe: probes.Probe) -> Iterator[str]:
    for part in probe.parts:
        who = "all ranks" if part.name == probes.WORLD else f"ranks {part.name.replace('-', ' and ')}"
        speed = f", {part.gbytes_per_s:.3g} GB/s" if part.gbytes_per_s is not None else ""
        yield f"probe {who}: {part.state}{speed}"


def as_data(found: Report) -> dict[str, Any]:
    """The report for a program; of the caller's environment it holds ``NCCL_*`` settings only."""
    return {
        "fit": found.fit,
        "fingerprint": machine.fingerprint(found.facts),
        "faults": [fault.model_dump(mode="json") for fault in found.faults],
        "checklist": [vars(each) for each in found.checklist],
        "probe": found.probe.as_data() if found.probe else None,
        "facts": found.facts.model_dump(mode="json"),
    }
