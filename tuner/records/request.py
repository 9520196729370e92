"""What one launch is to do."""

from __future__ import annotations

from typing import Literal

from pydantic import JsonValue

from .base import Backend, Record
from .candidate import DEFAULT, Candidate


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
