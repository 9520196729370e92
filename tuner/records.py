"""The values that cross a process or a file boundary.

Everything here is frozen. What is written to a file carries ``schema_version``, so that a file from
another release gives one clear message. The workload harness reads and writes the same as plain JSON,
without importing this module; a contract test sends every field through it.
"""

from __future__ import annotations

import re
import statistics
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, JsonValue, field_validator

SCHEMA_VERSION = 1

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")

Blame: TypeAlias = Literal["candidate", "environment", "infrastructure", "launcher", "workload", "unknown"]
Purpose: TypeAlias = Literal["noise-floor", "search", "repeat", "drift", "confirm", "evidence", "validate", "batch"]
Backend: TypeAlias = Literal["nccl", "gloo"]


class Record(BaseModel):
    """Base of all values that cross a boundary: frozen, and strict about unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Candidate(Record):
    """A full assignment of the searched knobs; what is not named is left as it is.

    Attributes:
        settings: Name to value, both exactly as they stand in the environment, sorted by name.
    """

    settings: dict[str, str] = {}

    @field_validator("settings")
    @classmethod
    def _check(cls, settings: dict[str, str]) -> dict[str, str]:
        for name, value in settings.items():
            if not _NAME.match(name):
                raise ValueError(f"{name!r} is no name of an environment variable")
            if any(ord(character) < 32 or ord(character) == 127 for character in value):
                raise ValueError(f"the value of {name} holds a control character")
        return dict(sorted(settings.items()))

    @property
    def key(self) -> str:
        """A stable text that is equal for equal candidates; ``default`` for the empty one."""
        return " ".join(f"{name}={value}" for name, value in self.settings.items()) or "default"

    @property
    def is_default(self) -> bool:
        """Whether nothing is set."""
        return not self.settings

    def __hash__(self) -> int:
        return hash(self.key)

    def __str__(self) -> str:
        return self.key


DEFAULT = Candidate()


class Dimension(Record):
    """One knob of a space.

    Attributes:
        name: The environment variable.
        values: What may be tried; ``None`` leaves the variable unset.
    """

    name: str
    values: tuple[str | None, ...]


class Space(Record):
    """What may be tried: the product of the dimensions, less what legality refuses.

    Attributes:
        name: Name of the space file.
        dimensions: The knobs that are searched.
        removed: Knob (or ``KNOB=value``) to the reason why it is not searched here.
        start: Candidates worth trying first.
        backend: The process-group backend that the space is for.
        conditions: Rules between knobs that the space file adds, as plain data; read by ``space/conditions.py``.
    """

    name: str
    dimensions: tuple[Dimension, ...]
    removed: dict[str, str] = {}
    start: tuple[Candidate, ...] = ()
    backend: Backend = "nccl"
    conditions: tuple[dict[str, JsonValue], ...] = ()


class Limits(Record):
    """How long a launch may take, in seconds.

    Attributes:
        startup_s: From the start until all ranks are in the process group.
        no_progress_s: Longest silence of the heartbeat after that.
        total_s: Everything.
        grace_s: Between the polite and the hard kill; longer than ``shutdown_s``.
        shutdown_s: What torchrun's agent waits for its workers (``TORCH_ELASTIC_SHUTDOWN_TIMEOUT``).
    """

    startup_s: float = 120.0
    no_progress_s: float = 60.0
    total_s: float = 600.0
    grace_s: float = 5.0
    shutdown_s: int = 3


class Steps(Record):
    """How a launch is measured.

    Attributes:
        warmup_min: Fewest untimed steps.
        warmup_max: Most untimed steps; a launch that is not flat by then carries a warning.
        warmup_s: Shortest warm-up in seconds, even beyond ``warmup_max``: clocks need time, not steps.
        timed_min: Fewest timed steps.
        timed_max: Most timed steps.
        block: Steps between two decisions of rank 0.
        relative_error: Stop once the standard error of the step time is below this share of it.
        timed_s: Stop timing after this many seconds, once ``timed_min`` is reached.
        profiled: Steps of the separate profiled window; 0 leaves it out.
    """

    warmup_min: int = 5
    warmup_max: int = 60
    warmup_s: float = 0.2
    timed_min: int = 10
    timed_max: int = 200
    block: int = 10
    relative_error: float = 0.002
    timed_s: float = 30.0
    profiled: int = 0


class Placement(Record):
    """Where the ranks run.

    Attributes:
        nnodes: Nodes, one torchrun agent each.
        nproc_per_node: Ranks a node.
        emulated_nodes: NCCL nodes emulated on one machine; 0 for none.
        launch_prefix: Words before torchrun's own, for instance ``srun -N2 --ntasks-per-node=1``.
        rendezvous_host: Where the agents meet; a free port of this machine is taken for each launch.
    """

    nnodes: int = 1
    nproc_per_node: int = 2
    emulated_nodes: int = 0
    launch_prefix: tuple[str, ...] = ()
    rendezvous_host: str = "127.0.0.1"

    @property
    def world_size(self) -> int:
        """Ranks in all."""
        return self.nnodes * self.nproc_per_node

    @property
    def nccl_nodes(self) -> int:
        """Nodes as NCCL counts them: real ones, or the emulated ones."""
        return self.emulated_nodes or self.nnodes


class Ladder(Record):
    """A search for a batch size inside one launch: sizes that double, each built, timed and profiled.

    Attributes:
        first: Smallest batch of one rank; 0 for no search.
        last: No larger batch is tried; 0 for no such end.
        idle_share: The GPU works enough once it idles no more than this share of the step; below 0 nothing is enough,
            and the search is for the largest batch that fits.
        memory_share: The GPU's memory that a batch may take.
    """

    first: int = 0
    last: int = 0
    idle_share: float = 0.03
    memory_share: float = 0.8


class Request(Record):
    """What one launch is to do; written by the runner, read by every rank's harness.

    Attributes:
        launch_id: Unique within the study; names the folder of the launch.
        token: Random; stands in the environment of every process of the launch and in its result.
        workload: Module name below ``nccltune.workloads``.
        options: The workload's own options (sizes, dtype, batch size …).
        candidate: The settings under test.
        environment: Every ``NCCL_*`` variable and every searched name that a rank must see, exactly.
        per_rank_env: Global rank (as text) to variables that only this rank gets, on top.
        ladder: A search for a batch size, in the place of one measurement.
        checks: Whether known-answer collectives are run.
        log_choices: Whether NCCL logs the algorithm of each collective, which costs time: never for a measurement.
        seed: Of the model, the data and the sampler.
    """

    schema_version: Literal[1] = 1
    study: str
    launch_id: str
    token: str
    workload: str
    options: dict[str, JsonValue] = {}
    backend: Backend
    candidate: Candidate = DEFAULT
    environment: dict[str, str] = {}
    per_rank_env: dict[str, dict[str, str]] = {}
    placement: Placement = Placement()
    steps: Steps = Steps()
    limits: Limits = Limits()
    ladder: Ladder = Ladder()
    checks: bool = True
    log_choices: bool = False
    seed: int = 0


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


class Evidence(Record):
    """What NCCL itself said it did; ``None`` and empty mean that its log does not say.

    Attributes:
        echoed: Name to the value that NCCL printed when it read the variable.
        refused: Name to the reason: NCCL changed or refused the value, so the candidate is invalid.
        inert: Names that were set and that NCCL never consulted.
        transports: Transport (``P2P/CUMEM``, ``NET/Socket`` …) to the number of channel connections.
        sockets: ``(threads, sockets per thread)`` of NET/Socket.
        choices: ``"<collective> <bytes>"`` to ``"<algorithm> <protocol> <channels>"``.
        ll128: Whether NCCL's own table gives LL128 a bandwidth (its safety check passed); ``None`` without a table.
    """

    nccl_version: str | None = None
    nranks: int | None = None
    nnodes: int | None = None
    network: str | None = None
    transports: dict[str, int] = {}
    channels: int | None = None
    sockets: tuple[int, int] | None = None
    echoed: dict[str, str] = {}
    refused: dict[str, str] = {}
    inert: tuple[str, ...] = ()
    choices: dict[str, str] = {}
    ll128: bool | None = None


class BatchTry(Record):
    """One batch size of a ladder.

    Attributes:
        batch_size: Of one rank.
        step_us: Median step time; ``None`` where the batch did not fit.
        idle_share: As of ``Communication``.
        memory_bytes: Taken of the GPU's memory, by whomever; the largest over the ranks.
        memory_share: The same as a share of the GPU's memory.
    """

    batch_size: int
    step_us: float | None = None
    idle_share: float | None = None
    memory_bytes: int | None = None
    memory_share: float | None = None


class BatchChoice(Record):
    """The batch size that a ladder came to.

    Attributes:
        batch_size: Of one rank.
        reason: Why the search ended: ``busy`` the GPU works enough; ``memory`` the next batch would take too much of
            it; ``out of memory`` the next batch did; ``largest`` the next is beyond what was asked for;
            ``not measured`` nobody could say whether the GPU works.
        tries: All sizes, in order.
    """

    batch_size: int
    reason: Literal["busy", "memory", "out of memory", "largest", "not measured"]
    tries: Annotated[tuple[BatchTry, ...], Field(min_length=1)]

    @property
    def chosen(self) -> BatchTry:
        """What was measured with the chosen batch."""
        return next(each for each in self.tries if each.batch_size == self.batch_size)


class Disturbance(Record):
    """Something that took from a launch what the launch did not use itself.

    Attributes:
        kind: Who or what: ``gpu-user`` another process on the GPUs, ``gpu-clock`` clocks held down, ``cpu`` other users
            of the cores, ``cpu-limit`` the control group's limit, ``memory`` waiting for memory.
        text: In plain words, with numbers.
        share: How much of the launch or of the resource it took, 0 to 1; ``None`` where not known.
    """

    kind: Literal["gpu-user", "gpu-clock", "cpu", "cpu-limit", "memory"]
    text: str
    share: float | None = None


class Disturbances(Record):
    """What was seen on this machine while a launch ran; says nothing of other machines.

    Attributes:
        seen: Empty where nothing was.
        unknown: What could not be watched, in plain words.
        cpu_others: Share of the usable cores' time that other processes used.
        power_capped: Largest share of samples, over the GPUs, in which a GPU was at its power limit. That is how a
            healthy GPU lives under load, so it is no disturbance.
    """

    seen: tuple[Disturbance, ...] = ()
    unknown: tuple[str, ...] = ()
    cpu_others: float | None = None
    power_capped: float | None = None


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


class Launch(Record):
    """One launch as the ledger keeps it.

    Attributes:
        purpose: Why it was made.
        trial: Number of the Optuna trial it belongs to, if any.
        round: Number of the confirming round, if any.
        attempt: 1 for the first try of this measurement, 2 after an infrastructure fault, …
        started_at: UTC, ISO 8601.
        wall_s: From the call of the runner to its return.
        folder: Of the launch, relative to the study folder.
    """

    launch_id: str
    purpose: Purpose
    candidate: Candidate
    trial: int | None = None
    round: int | None = None
    attempt: int = 1
    started_at: str
    wall_s: float
    folder: str = ""
    outcome: Outcome

    @property
    def disturbances(self) -> Disturbances | None:
        """What else used the machine meanwhile; ``None`` where it was not watched."""
        return self.outcome.disturbances


class Pair(Record):
    """One mirrored round: the default and the finalist, in fresh launches next to each other.

    Attributes:
        default_us: Median step time of the default's launch.
        candidate_us: Median step time of the candidate's launch.
        gain: ``default_us / candidate_us - 1``; positive when the candidate is faster.
        round: Number of the round, from 1; odd and even rounds have opposite orders.
        tail_gain: The same of the 95th percentile of the step times; ``None`` where not kept.
        size_gains: For a mix of sizes: message bytes to the same of the median time of one call.
    """

    default_us: float
    candidate_us: float
    gain: float
    round: int = 0
    tail_gain: float | None = None
    size_gains: dict[str, float] = {}


class Finalist(Record):
    """What the fresh rounds showed of one candidate; gains are shares (0.01 is 1 %).

    Attributes:
        fate: ``ship`` it passed; ``out`` it cannot ship, or cannot be worth it; ``open`` neither was shown.
        reason: One line.
        pairs: The rounds that were looked at.
        gain: The estimate: geometric mean over the rounds, the order's own effect taken out.
        interval: Two-sided 95 % confidence interval of the gain.
        bounds: The stricter one-sided bounds that decided, with the error shared over looks and finalists.
        tail_gain: Estimate for the 95th percentile of the step times.
        tail_interval: Its 95 % interval.
        size_gains: For a mix: message bytes to the estimate for one call.
    """

    candidate: Candidate
    fate: Literal["ship", "out", "open"]
    reason: str
    pairs: tuple[Pair, ...] = ()
    gain: float | None = None
    interval: tuple[float, float] | None = None
    bounds: tuple[float, float] | None = None
    tail_gain: float | None = None
    tail_interval: tuple[float, float] | None = None
    size_gains: dict[str, float] = {}


class Reach(Record):
    """What the fresh rounds can be expected to show, foreseen from the noise floor before the first trial.

    Gains are true gains of a candidate, as shares. A gain is shown when such a candidate would be shipped with a
    probability of ``power``.

    Attributes:
        min_gain: What was asked for.
        rounds: Most rounds.
        finalists: Most finalists that share them.
        smallest: The smallest gain that the rounds show; ``None`` where it is not known.
        likely: The same for a noise at either end of its 80 % interval: few launches tell it only roughly.
        wanted: The gain that ought to be shown, as far above ``min_gain`` as that lies above nothing.
        rounds_needed: Rounds that show ``wanted``; ``None`` where they are too many to be advice, or not known.
        launches_needed: Launches of these rounds.
        seconds_needed: Wall time of these launches.
        quieter: Noise floor at which the rounds would show ``wanted``.
        falls_short: Whether the rounds do not show ``wanted``; ``None`` where it is not known.
        farther: Value of ``min_gain`` from which the rounds show what then ought to be shown.
        sentences: The same in words.
    """

    min_gain: float
    rounds: int
    finalists: int
    power: float
    smallest: float | None = None
    likely: tuple[float, float] | None = None
    wanted: float
    rounds_needed: int | None = None
    launches_needed: int | None = None
    seconds_needed: float | None = None
    quieter: float | None = None
    farther: float | None = None
    falls_short: bool | None = None
    sentences: tuple[str, ...] = ()


class Disturbed(Record):
    """Launches of a study that shared the machine with somebody, or were held up by it.

    Attributes:
        watched: Launches that were watched.
        disturbed: Those of them in which something was seen.
        deciding: Watched launches of the rounds that decide.
        deciding_disturbed: Those of them in which something was seen.
        worst: What took the largest share of a launch, in plain words.
        worst_launch: The launch that it was seen in.
    """

    watched: int = 0
    disturbed: int = 0
    deciding: int = 0
    deciding_disturbed: int = 0
    worst: str = ""
    worst_launch: str = ""

    @property
    def sentence(self) -> str:
        """The same in words; empty where nothing was seen."""
        if not self.disturbed:
            return ""
        deciding = f", {self.deciding_disturbed} of {self.deciding} in the fresh rounds" if self.deciding else ""
        return f"{self.disturbed} of {self.watched} launches{deciding}; the worst: {self.worst} ({self.worst_launch})"


class Verdict(Record):
    """What the study comes to.

    Attributes:
        word: ``ship``, ``keep-default`` or ``no-verdict``; ``unconfirmed`` stands in ledgers of the first release only.
        sentence: The verdict in one sentence for a person.
        candidate: The settings it is about; the default for ``keep-default``.
        pairs: The rounds behind it, of that candidate or of the best finalist.
        gain: Estimate of the gain; ``None`` where none was measured.
        interval: Two-sided 95 % confidence interval of the gain.
        bounds: The one-sided bounds that decided.
        finalists: All that entered the rounds, best first.
        collective_only: Measured on a collective alone: such a ``ship`` says nothing of a model step.
        needed: What would be needed for another answer; empty where nothing is missing.
        rounds: Fresh rounds that were looked at.
        round_launches: Launches of the rounds.
        launches: Of the whole study so far.
        noise_floor: Relative spread of launches of the default.
        gpu_s: Wall time of all launches times the ranks.
        pays_after_steps: For ``ship``: steps until the time saved equals the time of all launches of the study.
    """

    word: Literal["ship", "keep-default", "no-verdict", "unconfirmed"]
    sentence: str
    candidate: Candidate = DEFAULT
    pairs: tuple[Pair, ...] = ()
    gain: float | None = None
    min_gain: float = 0.01
    interval: tuple[float, float] | None = None
    bounds: tuple[float, float] | None = None
    finalists: tuple[Finalist, ...] = ()
    collective_only: bool = False
    needed: str = ""
    rounds: int = 0
    round_launches: int = 0
    launches: int = 0
    noise_floor: float | None = None
    gpu_s: float = 0.0
    pays_after_steps: int | None = None

    @property
    def label(self) -> str:
        """The word for a person: ``ship (collective only)`` where no model was measured."""
        return f"{self.word} (collective only)" if self.word == "ship" and self.collective_only else self.word


def first_problem(error: Any) -> str:
    """Turn a pydantic ``ValidationError`` into one line with the path of the first bad field.

    Args:
        error: The ``pydantic.ValidationError``.

    Returns:
        For instance ``limits.total_s: Input should be a valid number``.
    """
    problem = error.errors(include_url=False)[0]
    path = ".".join(str(part) for part in problem["loc"]) or "the whole"
    return f"{path}: {problem['msg']}"
