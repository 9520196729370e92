"""What one launch came to."""

from __future__ import annotations

import statistics
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, JsonValue

from .base import Record
from .batch import BatchChoice
from .disturbance import Disturbances
from .evidence import Evidence

Blame: TypeAlias = Literal["candidate", "environment", "infrastructure", "launcher", "workload", "unknown"]


class RankReport(Record):
    """What one rank says of itself.

    Attributes:
        echo: The ``NCCL_*`` variables and searched names that the rank saw before torch was imported.
        nccl_library: Path of the library that is mapped into the process.
        median_step_us: Of this rank alone, before the maximum over ranks is taken.
    """

    rank: int
    local_rank: int
    host: str
    pid: int
    device: str
    torch_version: str
    nccl_version: str | None = None
    nccl_library: str | None = None
    echo: dict[str, str] = {}
    peak_memory_bytes: int | None = None
    median_step_us: float | None = None


class Communication(Record):
    """Where the time of a step goes, from the profiled window; microseconds a step, the mean over ranks.

    Attributes:
        source: What the communication was recognised by: kernels of NCCL, or gloo's own events.
        steps: Profiled steps that were usable.
        step_us: Length of a step under the profiler.
        busy_us: Union of the intervals in which communication ran.
        exposed_us: The part of it during which no computation ran.
        overlapped_us: The rest of it.
        compute_us: Union of the intervals in which computation ran.
        idle_us: Neither.
        share: ``busy_us / step_us``.
        exposed_share: ``exposed_us / step_us``.
        transfer_us: Sum over collectives of the shortest time over the ranks; ``None`` where not matched.
        waiting_us: ``busy_us`` less transfer: ranks that wait for a late one.
        inflation: Step time under the profiler over step time without it.
        idle_share: The share of the timed step, not of the profiled one, in which even the busiest rank's GPU had
            nothing to run or waited for another rank; ``None`` where not measured, and on the CPU.
    """

    source: Literal["cuda", "gloo"]
    steps: int
    step_us: float
    busy_us: float
    exposed_us: float
    overlapped_us: float
    compute_us: float
    idle_us: float
    share: float
    exposed_share: float
    transfer_us: float | None = None
    waiting_us: float | None = None
    inflation: float | None = None
    idle_share: float | None = None


class FirstStep(Record):
    """What the first step of a model came to, rank by rank; the same in every launch but for rounding.

    Attributes:
        loss: Empty where the step does not tell it.
        gradient: Sums of shares of the gradients, with random signs that depend on their place; the distance between
            those of two launches estimates the distance between their gradients.
        norm: Of all gradients.
        tolerance: How far launches may differ, as a share of the loss and of the norm.
    """

    loss: tuple[float, ...] = ()
    gradient: tuple[tuple[float, ...], ...]
    norm: tuple[float, ...]
    tolerance: float


class Checks(Record):
    """Outcome of the known-answer collectives.

    Attributes:
        cases: How many collectives were compared; 0 means that none was.
        failures: One line for each wrong one.
        first_step: Of a model workload; held against the default's by the tuner.
    """

    cases: int = 0
    failures: tuple[str, ...] = ()
    first_step: FirstStep | None = None


class Measurement(Record):
    """A launch that came to its end with right sums.

    Attributes:
        step_times_us: Every timed step, in order, each the maximum over the ranks.
        clock: What timed them.
        warmup_steps: Untimed steps before.
        flat: Whether the step time was flat when timing began.
        size_times_us: For collectives: message bytes to the median time of one call.
        metrics: Further numbers of the workload, the unit in the name (``bus_bandwidth_gbytes_per_s``).
        parts_s: Cost of the launch by part (start, import, group, warmup, timed, profiled, check, end).
        warnings: What a reader of the number should know, in plain words.
        batches: Of a launch that searched for a batch size; the other numbers are then those of the chosen one.
        disturbances: From the runner, as for a failure; ``None`` where the launch was not watched.
    """

    outcome: Literal["measurement"] = "measurement"
    step_times_us: Annotated[tuple[float, ...], Field(min_length=1)]
    clock: Literal["cuda-events", "host"]
    warmup_steps: int
    flat: bool = True
    size_times_us: dict[str, float] = {}
    metrics: dict[str, float] = {}
    communication: Communication | None = None
    checks: Checks = Checks()
    ranks: tuple[RankReport, ...] = ()
    parts_s: dict[str, float] = {}
    warnings: tuple[str, ...] = ()
    batches: BatchChoice | None = None
    evidence: Evidence | None = None
    disturbances: Disturbances | None = None

    @property
    def median_us(self) -> float:
        """Median step time in microseconds: the number that a launch stands for."""
        return statistics.median(self.step_times_us)


class Failure(Record):
    """A launch that gave no number.

    Attributes:
        name: The class of the failure, a name of ``trial/failures.yaml``.
        blame: Whose fault it is.
        message: What happened, one line.
        advice: What to do, one line.
        retry: Whether the same settings are worth another try.
        stop: Whether the study must stop, since every candidate would fail.
        pattern: For a hang, ``same_seq``, ``different_seq`` or ``silent_after_init``.
        details: Facts read from result, error file and log (collective, port, signal …).
        log_tail: The last lines of the launch's log.
    """

    outcome: Literal["failure"] = "failure"
    name: str
    blame: Blame
    message: str
    advice: str = ""
    retry: bool = False
    stop: bool = False
    pattern: str | None = None
    details: dict[str, JsonValue] = {}
    log_tail: str = ""
    evidence: Evidence | None = None
    disturbances: Disturbances | None = None


Outcome: TypeAlias = Annotated[Measurement | Failure, Field(discriminator="outcome")]


class ResultFile(Record):
    """The file that rank 0 leaves by rename when it is done, well or badly.

    Attributes:
        token: The request's, so that a stale file is not taken for this launch's.
        measurement: Set when ``status`` is ``ok``.
        failure: Class name, set when ``status`` is ``failed``.
        detail: One line about the failure.
    """

    schema_version: Literal[1] = 1
    token: str
    status: Literal["ok", "failed"]
    measurement: Measurement | None = None
    failure: str | None = None
    detail: str = ""
