"""``nccltune doctor``: is this machine fit to be tuned?  Facts, faults with what to do, and the checklist of practice.

Nothing here imports torch. What the catalogue knows of inherited settings is added to what ``machine.faults`` finds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from . import conflicts, probe_faults
from . import probe as probes
from .errors import MachineError
from .machine import facts as machine
from .machine.describe import describe
from .machine.facts import Facts
from .machine.faults import Fault, faults
from .records import Placement
from .space.catalogue import Catalogue, load_catalogue
from .space.foreign import foreign_names
from .trial.placement import place

Word: TypeAlias = Literal["yes", "no", "unknown"]

_PROBE = "'nccltune doctor --probe' tells"


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
        found += probe_faults.faults(probe, facts, placement)
    found.sort(key=lambda fault: not fault.fatal)
    return Report(facts=facts, faults=tuple(found), checklist=tuple(checklist(facts, probe)), probe=probe)


# ---- faults


def machine_faults(facts: Facts, catalogue: Catalogue) -> list[Fault]:
    """The faults of a machine and of what it inherits, without a launch."""
    better = conflicts.by_name(facts, catalogue)
    inherited = facts.inherited
    # What the catalogue explains is not said again as a name that the library does not have.
    explained = better.keys() | foreign_names()
    rest = {name: value for name, value in inherited.settings.items() if name not in explained}
    trimmed = facts.model_copy(update={"inherited": inherited.model_copy(update={"settings": rest})})
    return [
        *faults(trimmed, lambda name: name in catalogue.knobs and catalogue.knobs[name].docs == "debugging"),
        *better.values(),
        *conflicts.of_machine(facts),
    ]


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
    question = "CUDA is there"
    if not facts.gpus:
        return Answer(question, "no", facts.gpu_error or "no GPU is visible")
    if facts.torch is None or facts.torch.cuda is None:
        return Answer(question, "no", "there are GPUs, but no torch that is built with CUDA")
    driver = f", the driver runs up to {'.'.join(map(str, facts.cuda_driver))}" if facts.cuda_driver else ""
    return Answer(question, "yes", f"torch is built with CUDA {facts.torch.cuda}{driver}")


def _all_gpus(facts: Facts) -> Answer:
    question, total = "all GPUs are seen", len(facts.gpus) + facts.hidden
    if not total:
        return Answer(question, "no" if facts.driver else "unknown", facts.gpu_error or "there is none")
    if facts.hidden:
        return Answer(question, "no", f"{len(facts.gpus)} of {total}, by CUDA_VISIBLE_DEVICES")
    return Answer(question, "yes", f"{total} of {total}")


def _nccl(facts: Facts, probe: probes.Probe | None) -> Answer:
    question, nccl = "NCCL is known", facts.nccl
    if facts.torch is None or not facts.torch.has_nccl:
        return Answer(question, "no", "there is no torch that is built with NCCL")
    if probe and probe.log and probe.log.version:
        return Answer(question, "yes", f"{probe.log.version}, {', '.join(probe.libraries) or 'as its log says'}")
    if nccl is None or nccl.version is None:
        return Answer(question, "unknown", _PROBE)
    return Answer(question, "yes", f"{nccl.version}, {nccl.library}")


def _topology(facts: Facts) -> Answer:
    question = "the topology is known"
    if len(facts.gpus) < 2:
        return Answer(question, "no", "it takes two GPUs to have one")
    if facts.topology is None or not facts.topology.links:
        return Answer(question, "unknown", "the driver does not say how the GPUs are joined")
    return Answer(question, "yes", machine.fingerprint(facts).get("links", facts.links))


def _interface(facts: Facts, probe: probes.Probe | None) -> Answer:
    question = "the network interface is known"
    if probe and probe.log and probe.log.network:
        names = probe.log.ib_devices if probe.log.network == "IB" else probe.log.socket_interfaces
        return Answer(question, "yes", " ".join([probe.log.network, *names]))
    useful = [nic.name for nic in facts.nics if nic.up and not nic.virtual]
    if not useful:
        return Answer(question, "no", "there are none but virtual or idle ones")
    return Answer(question, "unknown", f"{', '.join(useful)} could be; {_PROBE} on GPUs")


def _adds(probe: probes.Probe | None) -> Answer:
    question = "a process group comes up and adds correctly"
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
