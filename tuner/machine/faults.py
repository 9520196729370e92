"""What is wrong with a machine, each with what to do about it; pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from ..errors import nearest
from ..records import Record
from .facts import Facts
from .limits import SHM

MIB = 2**20
GIB = 2**30

#: Docker's default size of ``/dev/shm``; NCCL's shared-memory transport fails in it with "No space left on device".
SHM_TOO_SMALL_BYTES = 64 * MIB
#: What NCCL may want there for each GPU without peer access: some segments of 9.2 MiB, one a channel and direction.
SHM_A_GPU_BYTES = 32 * MIB
#: Memory registered for InfiniBand counts as locked; common limits (64 KiB, 8 MiB) are below what one job registers.
MEMLOCK_LOW_BYTES = GIB
TORCH_OLDEST = (2, 6)

_NO_DRIVER = ("not found", "no module named", "driver not loaded")
_MEMORY_IN_USE = 0.05  # share of a GPU's memory beyond what the driver itself holds


class Fault(Record):
    """Something that makes this machine unfit to be tuned, or its numbers doubtful.

    Attributes:
        name: Stable word for programs.
        what: What is wrong and why it matters, one line.
        do: What to do, one line.
        fatal: Whether no launch can work, or none that says anything about NCCL.
    """

    name: str
    what: str
    do: str
    fatal: bool = False


def faults(facts: Facts, debugging: Collection[str] | Callable[[str], bool] = ()) -> list[Fault]:
    """Find what is wrong, the fatal faults first.

    Args:
        facts: Of the machine.
        debugging: Names that should not stay set in production, or a function that says so of a name.
    """
    found = [fault for check in _CHECKS for fault in check(facts)]
    found.extend(_debugging(facts, debugging))
    return sorted(found, key=lambda fault: not fault.fatal)


def _torch(facts: Facts) -> Iterator[Fault]:
    if facts.torch is None:
        yield Fault(
            name="torch_missing",
            what="Python finds no torch",
            do="Install torch 2.6 or newer into the Python that runs nccltune",
            fatal=True,
        )
        return
    oldest = ".".join(map(str, TORCH_OLDEST))
    if facts.torch.release is not None and facts.torch.release < TORCH_OLDEST:
        yield Fault(
            name="torch_too_old",
            what=f"torch {facts.torch.version} is older than {oldest}",
            do=f"Install torch {oldest} or newer",
            fatal=True,
        )
    if facts.gpus and not facts.torch.has_nccl:
        yield Fault(
            name="torch_without_nccl",
            what=f"torch {facts.torch.version} is built without NCCL although there are {len(facts.gpus)} GPUs",
            do="Install a CUDA build of torch, or run nccltune with the Python of the training image",
            fatal=True,
        )
    if facts.gpus and facts.torch.has_nccl and (facts.nccl is None or facts.nccl.library is None):
        yield Fault(
            name="nccl_library_missing",
            what="torch needs libnccl.so.2 and the loader finds none",
            do="Install the nvidia-nccl package that belongs to this torch, or set LD_LIBRARY_PATH",
        )


def _driver(facts: Facts) -> Iterator[Fault]:
    error = facts.gpu_error
    if error and not any(word in error.lower() for word in _NO_DRIVER):
        yield Fault(
            name="driver_unusable",
            what=f"The GPU driver cannot be asked: {error}",
            do="See whether nvidia-smi works here; after a driver update restart the machine or the container",
            fatal=True,
        )
    built = facts.torch.cuda.split(".")[0] if facts.torch and facts.torch.cuda else ""
    if facts.gpus and facts.cuda_driver and built.isdigit() and int(built) > facts.cuda_driver[0]:
        # Within a major version CUDA runs on older drivers (minor-version compatibility).
        yield Fault(
            name="driver_too_old",
            what=f"Driver {facts.driver or 'unknown'} runs CUDA {_dotted(facts.cuda_driver)} at most; "
            f"this torch is built for CUDA {facts.torch.cuda if facts.torch else ''}",
            do=f"Update the driver, or install a torch for CUDA {facts.cuda_driver[0]}",
            fatal=True,
        )


def _visible(facts: Facts) -> Iterator[Fault]:
    if facts.invalid_visible is not None:
        yield Fault(
            name="visible_devices_invalid",
            what=f"CUDA_VISIBLE_DEVICES names {facts.invalid_visible!r}, which is no GPU here or stands there twice; "
            f"CUDA then shows {len(facts.gpus)} of {len(facts.gpus) + facts.hidden} GPUs",
            do="Correct CUDA_VISIBLE_DEVICES, or unset it",
            fatal=True,
        )
    elif facts.hidden:
        yield Fault(
            name="gpus_hidden",
            what=f"CUDA_VISIBLE_DEVICES hides {facts.hidden} of {len(facts.gpus) + facts.hidden} GPUs",
            do="Unset CUDA_VISIBLE_DEVICES if the training job uses them all",
        )


def _gpus(facts: Facts) -> Iterator[Fault]:
    names = sorted({gpu.name or "unknown" for gpu in facts.gpus})
    if len(names) > 1:
        yield Fault(
            name="gpus_mixed",
            what=f"The GPUs are of different kinds ({', '.join(names)}): the slowest sets the pace, "
            "and CUDA may count them in another order than nvidia-smi",
            do="Set CUDA_DEVICE_ORDER=PCI_BUS_ID, and choose equal ones with CUDA_VISIBLE_DEVICES",
        )
    if cut := [gpu.index for gpu in facts.gpus if gpu.mig]:
        yield Fault(
            name="mig",
            what=f"{_listed(cut)} cut into MIG instances: no peer access and no NVLink between them",
            do="Switch MIG off for training over several GPUs",
        )
    for gpu in facts.gpus:
        if gpu.throttle:
            yield Fault(
                name="gpu_throttled",
                what=f"GPU {gpu.index} is slowed down right now: {', '.join(gpu.throttle)}",
                do="Look after cooling and power; times taken now do not hold later",
            )
        held = gpu.memory_used_bytes / gpu.memory_bytes if gpu.memory_used_bytes and gpu.memory_bytes else 0.0
        if gpu.processes or held > _MEMORY_IN_USE:
            who = f"processes {', '.join(map(str, gpu.processes))}" if gpu.processes else "something unseen from here"
            yield Fault(
                name="gpu_busy",
                what=f"GPU {gpu.index} is in use by {who}, which disturbs every measurement",
                do="Wait for it, end it, or choose other GPUs with CUDA_VISIBLE_DEVICES",
            )


def _memory(facts: Facts) -> Iterator[Fault]:
    size, free = facts.shm_bytes, facts.shm_free_bytes
    peers = _all_peers(facts)
    wanted = SHM_TOO_SMALL_BYTES if peers else max(SHM_TOO_SMALL_BYTES, SHM_A_GPU_BYTES * len(facts.gpus))
    if len(facts.gpus) > 1 and size is not None and free is not None and free <= wanted:
        small = size <= wanted
        yield Fault(
            name="shm_too_small" if small else "shm_full",
            what=f"{SHM} has {size // MIB} MiB, {free // MIB} MiB of them free; "
            f"NCCL's shared memory for {len(facts.gpus)} GPUs may not fit",
            do="Start the container with --shm-size=1g or --ipc=host"
            if small
            else f"Remove what is left in {SHM} by earlier runs",
            fatal=free <= SHM_TOO_SMALL_BYTES and not peers,
        )
    locked = facts.memlock_bytes
    if facts.backend == "nccl" and facts.has_infiniband and locked is not None and locked < MEMLOCK_LOW_BYTES:
        yield Fault(
            name="memlock_low",
            what=f"There is InfiniBand or RoCE, but a process may lock {locked / MIB:g} MiB only, "
            "so that NCCL's registration of buffers can fail",
            do="Raise the limit (ulimit -l unlimited; docker --ulimit memlock=-1; Slurm PropagateResourceLimits)",
        )


def _all_peers(facts: Facts) -> bool:
    """Whether every pair of GPUs has peer access, so that shared memory carries little."""
    topology = facts.topology
    return topology is not None and all(topology.p2p.get(f"{one}-{other}") == "OK" for one, other in topology.pairs())


def _inherited(facts: Facts) -> Iterator[Fault]:
    inherited = facts.inherited
    if inherited.missing_file:
        yield Fault(
            name="conf_file_missing",
            what=f"NCCL_CONF_FILE names {inherited.missing_file}, which does not exist; NCCL says nothing about it",
            do="Correct the path, or unset NCCL_CONF_FILE",
        )
    for plugin in inherited.plugins:
        if plugin.kind in ("tuner", "env"):
            overrides = "chooses algorithms" if plugin.kind == "tuner" else "answers for every setting"
            yield Fault(
                name=f"{plugin.kind}_plugin",
                what=f"NCCL would load the {plugin.kind} plugin {plugin.path} ({plugin.source}), which {overrides}",
                do=f"Set NCCL_{plugin.kind.upper()}_PLUGIN=none, unless production has it too",
            )
    for name, value in inherited.settings.items():
        source = inherited.sources.get(name, "environment")
        if name != name.strip() or value != value.strip():
            yield Fault(
                name="blank_in_setting",
                what=f"{source} sets {name!r} to {value!r}: NCCL keeps blanks and carriage returns as they stand",
                do="Remove them",
            )
        elif facts.nccl and facts.nccl.names and name.startswith("NCCL_") and name not in facts.nccl.names:
            near = nearest(name, facts.nccl.names)
            yield Fault(
                name="unknown_setting",
                what=f"{name} ({source}) is no name that NCCL {facts.nccl.version or 'here'} knows",
                do=f"{near}? If not, unset it, unless a plugin or torch reads it"
                if near.startswith("Did")
                else "Unset it, unless a plugin or torch reads it",
            )


def _debugging(facts: Facts, debugging: Collection[str] | Callable[[str], bool]) -> Iterator[Fault]:
    is_debugging = debugging if callable(debugging) else debugging.__contains__
    for name, value in facts.inherited.settings.items():
        if is_debugging(name):
            yield Fault(
                name="inherited_debugging",
                what=f"{name}={value} is inherited from {facts.inherited.sources.get(name, 'environment')}; "
                "it is a debugging variable and belongs to every measurement here",
                do=f"Unset {name}, unless production runs with it",
            )


def _processor(facts: Facts) -> Iterator[Fault]:
    cpu = facts.cpu
    if facts.backend == "gloo" and cpu.load_1min is not None and cpu.cores_online:
        free = cpu.cores_online - cpu.load_1min
        if free < cpu.cores_usable / 2:
            yield Fault(
                name="cpu_busy",
                what=f"The load average is {cpu.load_1min:g} on {cpu.cores_online} cores: other work disturbs times",
                do="Wait until the machine is quiet",
            )


def _listed(indices: list[int]) -> str:
    numbers = ", ".join(map(str, indices))
    return f"GPU {numbers} is" if len(indices) == 1 else f"GPUs {numbers} are"


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


_CHECKS: tuple[Callable[[Facts], Iterator[Fault]], ...] = (
    _torch,
    _driver,
    _visible,
    _gpus,
    _memory,
    _inherited,
    _processor,
)
