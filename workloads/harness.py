"""The main of every workload: ``torchrun … -m nccltune.workloads.NAME --request R --result F``.

Read this first. One launch, in order: die with the parent; read the request; compare the environment with
it, before torch or NCCL could read a variable; import torch; form the process group; build; warm up until
the step time is flat; time blocks of steps; profile a few more; known-answer collectives; result by rename.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from . import environment, parent, request, result
from .failure import EnvironmentChanged, OutOfMemory, WorkloadError, WorkloadFailure, WrongData
from .heartbeat import Heartbeat
from .request import Request
from .workload import Build, Context, Numbers, Workload

if TYPE_CHECKING:
    from .clock import HostClock
    from .group import Group
    from .measure import Measure, Timed, WarmUp


@dataclass(frozen=True)
class Launch:
    """What a rank knows before torch is imported.

    Attributes:
        echo: The variables that it sees.
        difference: What is wrong with them, if anything.
        age_s: Age of the process when its main began.
    """

    request: Request
    result_path: Path
    rank: int
    echo: dict[str, str]
    difference: str | None
    heartbeat: Heartbeat
    age_s: float


def main(build: Build) -> NoReturn:
    """Run a workload under the harness; ends the process.

    Args:
        build: Makes the workload.
    """
    run(lambda launch: _measure(launch, build))


def run(measure: Callable[[Launch], None]) -> NoReturn:
    """Be a rank of a launch; ends the process.

    Args:
        measure: Everything between the look at the environment and the end.
    """
    age_s = parent.age_s()
    parent.die_with_parent()
    launch: Launch | Exception
    try:
        launch = prepare(sys.argv[1:], age_s)
    except Exception as error:  # kept for @record, which needs torch
        launch = error
    from torch.distributed.elastic.multiprocessing.errors import record

    status = 1
    try:
        record(_run)(launch, measure)
        status = 0
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else 1
    except BaseException:
        traceback.print_exc()
    # Not the interpreter's own end: destructors of a process group that failed may wait for their peers.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def prepare(arguments: list[str], age_s: float = 0.0) -> Launch:
    """Do what must come before torch: read the request, set this rank's variables, look at the environment.

    Args:
        arguments: Of the command line.
        age_s: Age of the process.

    Returns:
        What was found.

    Raises:
        RequestError: The request file is not one.
    """
    parser = argparse.ArgumentParser(description="A workload of nccltune; started by torchrun.")
    parser.add_argument("--request", type=Path, required=True, help="what to do (JSON)")
    parser.add_argument("--result", type=Path, required=True, help="where rank 0 leaves the result")
    options = parser.parse_args(arguments)
    rank = int(os.environ.get("RANK", "0"))
    heartbeat = Heartbeat(options.result.with_name("heartbeat"), rank)
    heartbeat.enter("import")
    asked = request.read(options.request)
    os.environ.update(environment.of_rank(asked, rank))
    echo = environment.echo(asked, rank, os.environ)
    difference = environment.difference(asked, rank, os.environ)
    return Launch(asked, options.result, rank, echo, difference, heartbeat, age_s)


def _run(launch: Launch | Exception, measure: Callable[[Launch], None]) -> None:
    """Run the launch; failures of known classes leave a result, all are raised for ``@record``."""
    if isinstance(launch, Exception):
        raise launch
    try:
        if launch.difference:
            raise EnvironmentChanged(launch.difference)
        measure(launch)
    except WorkloadFailure as failure:
        result.failed(launch.result_path, launch.request.token, failure)
        raise


def _measure(launch: Launch, build: Build) -> None:
    import torch  # noqa: F401 - paid for here, so that the cost is booked under "import"
    from torch import distributed  # noqa: F401

    from . import group as groups

    launch.heartbeat.enter("group")
    group = groups.join(launch.request)
    launch.heartbeat.enter("warmup")
    context = Context(
        rank=group.rank,
        local_rank=group.local_rank,
        world_size=group.world_size,
        backend=launch.request.backend,
        device=group.device,
        options=launch.request.options,
        seed=launch.request.seed,
    )
    if launch.request.ladder.first:
        from .climb import climb

        leave_result(launch, climb(launch, group, context, build))
    else:
        leave_result(launch, Run(launch, group, context).measure(build))
    groups.leave(group)


def leave_result(launch: Launch, measurement: dict[str, Any] | None) -> None:
    """Write down what was measured.

    Args:
        launch: This launch.
        measurement: From ``Run.measure``; ``None`` on all ranks but 0.
    """
    launch.heartbeat.enter("end")
    if measurement is not None:
        measurement["parts_s"] = {"start": launch.age_s, **launch.heartbeat.parts_s, **measurement["parts_s"]}
        result.measured(launch.result_path, launch.request.token, measurement)


@dataclass(frozen=True)
class Sample:
    """What the steps of a workload came to; what is over all ranks is known to rank 0 alone.

    Attributes:
        clock: Name of what timed them.
        communication: Of the profiled window, if there was one.
        warnings: What a reader should know.
    """

    clock: str
    warm: WarmUp
    timed: Timed
    communication: dict[str, Any] | None
    warnings: tuple[str, ...]

    @property
    def step_us(self) -> float:
        """Median step time."""
        return statistics.median(self.timed.step_us) if self.timed.step_us else 0.0


class Run:
    """The part of the launch in which the process group is up.

    Args:
        launch: This launch.
        group: This rank's place.
        context: What ``build`` is given.
    """

    def __init__(self, launch: Launch, group: Group, context: Context) -> None:
        self._launch = launch
        self._request = launch.request
        self._group = group
        self._context = context
        self._heartbeat = launch.heartbeat
        self._warnings: list[str] = []

    def measure(self, build: Build) -> dict[str, Any] | None:
        """Build, measure and check; the fields of ``records.Measurement`` on rank 0."""
        clock = self._clock()
        self._context._mark = clock.mark
        began = time.monotonic()
        workload = self._guarded(lambda: self._build(build))
        build_s = time.monotonic() - began
        first_step = self._guarded(lambda: self._first_step(workload))
        found = self._sampled(workload, clock)
        warm, timed = found.warm, found.timed
        checks = self._guarded(lambda: self._checked(workload))
        ranks = self._rank_reports(timed)
        if self._group.rank:
            return None
        flat = self._judge(warm, timed)
        parts_s = {"build": build_s, "warmup": self._heartbeat.parts_s.get("warmup", 0.0) - build_s}
        return {
            "outcome": "measurement",
            "step_times_us": timed.step_us,
            "clock": clock.name,
            "warmup_steps": warm.steps,
            "flat": flat,
            **self._numbers(workload, timed),
            "communication": found.communication,
            "checks": checks if first_step is None else {**checks, "first_step": first_step},
            "ranks": ranks,
            "parts_s": parts_s,
            "warnings": self._warnings,
        }

    def sample(self, build: Build) -> Sample:
        """Build and measure, without first step and checks."""
        clock = self._clock()
        self._context._mark = clock.mark
        return self._sampled(self._guarded(lambda: self._build(build)), clock)

    def _sampled(self, workload: Workload, clock: HostClock) -> Sample:
        """Warm up, time and profile."""
        measure = self._plan(workload, clock)
        warm = self._guarded(measure.warm_up)
        self._heartbeat.enter("timed")
        timed = self._guarded(lambda: self._timed(measure, warm))
        communication = self._guarded(lambda: self._profiled(workload, warm, timed))
        return Sample(clock.name, warm, timed, communication, tuple(self._warnings))

    def _clock(self) -> HostClock:
        from .clock import CudaClock, HostClock

        return CudaClock(self._group.device) if self._context.on_gpu else HostClock()

    def _build(self, build: Build) -> Workload:
        import torch

        from . import checks

        torch.manual_seed(self._request.seed)
        workload = build(self._context)
        if not isinstance(workload, Workload):
            raise WorkloadError(f"build returned {type(workload).__name__}, not a Workload")
        checks.probe(workload.dtypes, self._group.device)
        return workload

    def _first_step(self, workload: Workload) -> dict[str, Any] | None:
        if workload.first_step is None or not self._request.checks:
            return None
        from .first_step import TOLERANCE

        gathered = self._group.control.gather("first step", workload.first_step())
        self._heartbeat.beat(1)
        if gathered is None:
            return None
        numbers = {name: [each[name] for each in gathered] for name in gathered[0]}
        return {**numbers, "tolerance": TOLERANCE[workload.computes_in]}

    def _plan(self, workload: Workload, clock: HostClock) -> Measure:
        from .measure import Measure

        return Measure(
            step=workload.step,
            clock=clock,
            control=self._group.control,
            steps=self._request.steps,
            limits=self._request.limits,
            beat=self._heartbeat.beat,
        )

    def _timed(self, measure: Measure, warm: WarmUp) -> Timed:
        return measure.timed(warm.typical_us)

    def _profiled(self, workload: Workload, warm: WarmUp, timed: Timed) -> dict[str, Any] | None:
        steps = self._request.steps
        if steps.profiled <= 0:
            return None
        from . import profile_window, stopping

        self._heartbeat.enter("profiled")
        typical_us = statistics.median(timed.step_us) if timed.step_us else 0.0
        found, warnings = profile_window.run(
            workload.step,
            stopping.slow_steps(steps, warm.typical_us, steps.profiled),
            self._group.device,
            self._group.control,
            typical_us,
            self._heartbeat.beat,
        )
        self._warnings += warnings
        return found

    def _checked(self, workload: Workload) -> dict[str, Any]:
        self._heartbeat.enter("check")
        if not self._request.checks:
            return {"cases": 0, "failures": []}
        from . import checks

        outcome = checks.run(workload.dtypes, workload.message_bytes, self._group.device, self._heartbeat.beat)
        gathered = self._group.control.gather("check", {"cases": outcome.cases, "failures": outcome.failures})
        failures = [failure for each in gathered or [] for failure in each["failures"]]
        if failures:
            raise WrongData("; ".join(failures[:3]))
        return {"cases": outcome.cases, "failures": []}

    def _rank_reports(self, timed: Timed) -> list[dict[str, Any]] | None:
        from . import rank_facts

        median_us = statistics.median(timed.own_us) if timed.own_us else None
        return self._group.control.gather("ranks", rank_facts.report(self._group, self._launch.echo, median_us))

    def _numbers(self, workload: Workload, timed: Timed) -> dict[str, Any]:
        step_us = statistics.median(timed.step_us)
        call_us = {
            label: (statistics.median(timed.part_us[label]) if label in timed.part_us else step_us) / calls
            for label, calls in workload.calls.items()
            if label in timed.part_us or len(workload.calls) == 1
        }
        metrics = {"host_us": timed.host_us}
        if workload.metrics is not None:
            numbers = Numbers(step_us, call_us, self._group.world_size)
            metrics |= self._guarded(lambda: workload.metrics(numbers) if workload.metrics else {})
        return {"size_times_us": call_us, "metrics": metrics}

    def _judge(self, warm: WarmUp, timed: Timed) -> bool:
        """Warn of what a reader of the median should know; say whether the step time was flat by then."""
        from . import detectors

        flat = warm.flat or detectors.is_steady(timed.step_us)
        if not flat:
            self._warnings.append(f"the step time was not flat after {warm.steps} warm-up steps")
        if len(timed.step_us) < self._request.steps.timed_min:
            self._warnings.append(self._few(len(timed.step_us)))
        self._warnings += detectors.warnings(timed.step_us, timed.ranks_us)
        return flat

    def _few(self, steps: int) -> str:
        return f"the steps are so slow that only {steps} were timed"

    def _guarded(self, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except Exception as error:
            found = named(error, f"rank {self._group.rank}, {self._heartbeat.phase}", self._context.options)
            if found is error:
                raise
            raise found from error


def named(error: Exception, where: str, options: Mapping[str, Any]) -> Exception:
    """Name what is surely the workload's own fault.

    A ``RuntimeError`` may come from torch, NCCL or a peer that died; whose fault it is the tuner decides
    from the error file and the log, so it passes unchanged.

    Args:
        error: What the workload's code raised.
        where: Rank and place.
        options: Of the workload.

    Returns:
        A failure of a known class, or the error itself.
    """
    import torch

    if isinstance(error, torch.OutOfMemoryError):
        return OutOfMemory(f"{where}: {error} (options: {dict(options)})")
    if isinstance(error, WorkloadFailure | RuntimeError | OSError):
        return error
    return WorkloadError(f"{where}: {type(error).__name__}: {error}")
