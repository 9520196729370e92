"""Who else is on the GPUs of a launch, and whether their clocks are held down: samples of the driver's counters.

Ids of processes are a matter of trust. In a container the driver may show those of the host, or none. A process that
was there before the launch and is still there is somebody else's in any case; one that came later counts only where the
driver's ids can be recognised as this machine's, because one of the launch's own processes was.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..quantities import format_percent
from ..records import Disturbance
from .gpus import VISIBLE, visible
from .host_use import parse_process
from .nvml import POWER_CAP, THROTTLES, Library, connect

HELD_LEAST_BYTES = 256 << 20
"""Memory in use before a launch from which somebody must hold it; a CUDA context takes more."""
HELD_LEAST_UNSURE_BYTES = 1 << 30
"""The same where the driver counts what it reserves for itself as used."""
HELD_DOWN_LEAST = 0.05
"""Share of samples in which a GPU's clocks were held down."""

_MEMORY_V2 = "nvmlMemory_v2"
_SERVER = "nvidia-cuda-mps"  # shares a GPU out on behalf of others, and shows as a process of its own
_SETTLED_S = 2.0  # a launch needs longer than this to import torch and touch a GPU


@dataclass(frozen=True)
class GpuProcess:
    """A process that computes on a GPU.

    Attributes:
        used_bytes: GPU memory; ``None`` where the driver does not say.
        is_ours: Whether it descends from this process; ``None`` where its id cannot be found here.
    """

    pid: int
    name: str = ""
    used_bytes: int | None = None
    is_ours: bool | None = None


@dataclass(frozen=True)
class GpuState:
    """One GPU at one moment; ``None`` is what the driver does not say.

    Attributes:
        reasons: Bits of why the clocks are what they are.
        used_bytes: Memory in use, without what the driver reserves for itself where ``is_exact``.
        processes: Those that compute on it.
    """

    reasons: int | None = None
    used_bytes: int | None = None
    is_exact: bool = False
    processes: tuple[GpuProcess, ...] | None = None


@dataclass(frozen=True)
class GpuSample:
    """All watched GPUs at one moment, by the number that CUDA gives them.

    Attributes:
        at_s: Since the first sample, which is made before the launch; the last one is made after it.
    """

    at_s: float
    gpus: Mapping[int, GpuState]


@dataclass(frozen=True)
class GpuUse:
    """What the samples say; fields as in ``Disturbances``."""

    seen: tuple[Disturbance, ...] = ()
    unknown: tuple[str, ...] = ()
    power_capped: float | None = None


class Gpus:
    """The GPUs of a launch, to be sampled.

    Args:
        library: From ``nvml.connect``.
        handles: CUDA's number of a GPU to the driver's handle.
        proc: Where processes are looked up.
    """

    def __init__(self, library: Library, handles: Mapping[int, Any], proc: Path = Path("/proc")) -> None:
        self._library, self._handles, self._proc = library, handles, proc

    def states(self) -> dict[int, GpuState]:
        """Read the state of all now."""
        return {index: self._state(handle) for index, handle in self._handles.items()}

    def busy(self, index: int, pid: int, since: float) -> float | None:
        """Share of the time since then (Unix time) in which a process kept a GPU's cores busy, 0 to 1."""
        told = self._library.ask("nvmlDeviceGetProcessUtilization", self._handles[index], int(since * 1e6))
        shares = [each.smUtil / 100 for each in told or () if each.pid == pid and 0 <= each.smUtil <= 100]
        return sum(shares) / len(shares) if shares else None

    def _state(self, handle: Any) -> GpuState:
        version = getattr(self._library.module, _MEMORY_V2, None)
        exact = None if version is None else self._library.ask("nvmlDeviceGetMemoryInfo", handle, version)
        memory = exact or self._library.ask("nvmlDeviceGetMemoryInfo", handle)
        processes = self._library.ask("nvmlDeviceGetComputeRunningProcesses", handle)
        return GpuState(
            reasons=self._library.clock_reasons(handle),
            used_bytes=None if memory is None else int(memory.used),
            is_exact=exact is not None,
            processes=None if processes is None else tuple(self._process(each) for each in processes),
        )

    def _process(self, told: Any) -> GpuProcess:
        name, is_ours = lineage(int(told.pid), self._proc)
        used = getattr(told, "usedGpuMemory", None)
        return GpuProcess(int(told.pid), name, None if used is None else int(used), is_ours)


def find(environ: Mapping[str, str], count: int, nvml: Any = None, proc: Path = Path("/proc")) -> Gpus | None:
    """Find the GPUs that the ranks of a launch will use: the first ``count`` that CUDA shows.

    Args:
        environ: Of the workers.
        count: Ranks of this machine.
        nvml: The module to ask; ``pynvml`` where ``None``.
        proc: Where processes are looked up.

    Returns:
        ``None`` where the driver cannot be asked, or a GPU is cut into instances, whose state it does not tell apart.
    """
    library = connect(nvml)
    if isinstance(library, str):
        return None
    handles = [
        library.ask("nvmlDeviceGetHandleByIndex", number) for number in range(library.ask("nvmlDeviceGetCount") or 0)
    ]
    uuids = [None if handle is None else library.ask("nvmlDeviceGetUUID", handle) for handle in handles]
    chosen = [handles[number] for number in visible(environ.get(VISIBLE), uuids)[0]][:count]
    if not chosen or any(handle is None or library.is_mig(handle) for handle in chosen):
        return None
    return Gpus(library, dict(enumerate(chosen)), proc)


def lineage(pid: int, proc: Path = Path("/proc"), own: int | None = None) -> tuple[str, bool | None]:
    """Return the name of a process and whether it descends from us; ``None`` where there is no such process here.

    Args:
        pid: As the driver says it.
        proc: Where to look.
        own: Whose descendants are ours; this process by default.
    """
    own = os.getpid() if own is None else own
    name, at, passed = "", pid, set[int]()
    while at > 0 and at not in passed:
        if at == own:
            return name, True
        passed.add(at)
        try:
            found = parse_process((proc / str(at) / "stat").read_text(errors="replace"))
        except OSError:
            found = None
        if found is None:
            return name, None if at == pid else False
        name, at = name or found[0].name, found[1]
    return name, False


# ---- what the samples say


def judge(samples: Sequence[GpuSample], busy: Callable[[int, int], float | None] = lambda _index, _pid: None) -> GpuUse:
    """Say who else was there, and what held the clocks down.

    Args:
        samples: In order; the first from before the launch, the last from after it.
        busy: Number of a GPU and id of a process to the share of the time in which it kept the GPU busy.
    """
    if len(samples) < 2:
        return GpuUse(unknown=("GPUs",))
    during = samples[1:-1]
    indices = sorted(samples[0].gpus)
    users = [each for index in indices for each in _users(samples, index, busy)]
    reasons = {index: [sample.gpus[index].reasons for sample in during] for index in indices}
    known = {index: [bits for bits in told if bits is not None] for index, told in reasons.items()}
    capped = [sum(bool(bits & POWER_CAP) for bits in told) / len(told) for told in known.values() if told]
    processes = [state.processes for sample in samples for state in sample.gpus.values()]
    return GpuUse(
        seen=(*users, *_held_down({index: told for index, told in known.items() if told})),
        unknown=(
            *(["other users of the GPUs"] if all(each is None for each in processes) else []),
            *(["GPU clocks"] if not any(known.values()) else []),
        ),
        power_capped=round(max(capped), 4) if capped else None,
    )


def _users(samples: Sequence[GpuSample], index: int, busy: Callable[[int, int], float | None]) -> list[Disturbance]:
    seen = [{each.pid: each for each in sample.gpus[index].processes or ()} for sample in samples]
    later = {pid: process for sample in seen[1:] for pid, process in sample.items()}
    is_trusted = _is_trusted(samples)
    others = [
        process
        for pid, process in later.items()
        if (pid in seen[0] or (is_trusted and process.is_ours is False)) and not process.name.startswith(_SERVER)
    ]
    if others:
        return [_user(index, other, other.name if is_trusted else "", busy(index, other.pid)) for other in others]
    return _held(samples, index)


def _is_trusted(samples: Sequence[GpuSample]) -> bool:
    """Whether the driver's ids are those of this machine: one of the launch's own processes was recognised."""
    states = (state for sample in samples for state in sample.gpus.values())
    return any(process.is_ours for state in states for process in state.processes or ())


def _user(index: int, process: GpuProcess, name: str, share: float | None) -> Disturbance:
    memory = "" if process.used_bytes is None else f", {_mib(process.used_bytes)}"
    work = "" if share is None else f", busy {format_percent(share)} of the time"
    return Disturbance(
        kind="gpu-user",
        text=f"{name or 'another process'} (pid {process.pid}) is on GPU {index} too{memory}{work}",
        share=None if share is None else round(share, 4),
    )


def _held(samples: Sequence[GpuSample], index: int) -> list[Disturbance]:
    """Memory in use before any process of the launch can have touched the GPU, where nobody is shown to hold it."""
    # Twice, since memory of the launch before may not be free at once.
    early = [sample.gpus[index] for at, sample in enumerate(samples) if at == 0 or sample.at_s < _SETTLED_S]
    used = [state.used_bytes for state in early if state.used_bytes is not None]
    least = HELD_LEAST_BYTES if all(state.is_exact for state in early) else HELD_LEAST_UNSURE_BYTES
    if len(used) < 2 or min(used) < least:
        return []
    text = f"somebody else holds {_mib(min(used))} of GPU {index}'s memory; no process is visible here"
    return [Disturbance(kind="gpu-user", text=text)]


def _held_down(reasons: Mapping[int, Sequence[int]]) -> list[Disturbance]:
    """One line a reason, with the GPU that it hit most."""
    found = []
    for index, told in reasons.items():
        counts = Counter(text for bits in told for text in _named(bits))
        found += [(count / len(told), len(told), text, index) for text, count in counts.items()]
    worst = {text: max(each for each in found if each[2] == text) for _, _, text, _ in found}
    lines = []
    for text, (share, samples, _, index) in worst.items():
        hit = sorted({each[3] for each in found if each[2] == text and each[0] >= HELD_DOWN_LEAST})
        if not hit:
            continue
        others = f" ({len(hit)} GPUs in all)" if len(hit) > 1 else ""
        lines.append(
            Disturbance(
                kind="gpu-clock",
                text=f"{text} held the clocks of GPU {index} down in {format_percent(share)} of {samples} "
                f"samples{others}",
                share=round(share, 4),
            )
        )
    return lines


def _named(bits: int) -> list[str]:
    """Reasons in words; a hardware slowdown whose cause is told is not told twice."""
    causes = [text for bit, text in THROTTLES.items() if bits & bit]
    return causes if len(causes) < 2 else [text for text in causes if text != THROTTLES[0x08]]


def _mib(count: int) -> str:
    return f"{count / 2**20:,.0f} MiB"
