"""The user's own script, run as ``python SCRIPT ARGS`` under torchrun would run it, and timed by its own hook.

Options: ``script``, its path; ``arguments``, its words; ``sha256``, how that of its file must begin.

The script forms its process group itself. With its first ``timed_step()`` the harness begins: warm-up, timed and
profiled steps as for any workload, told apart by rank 0 between steps. Then known-answer collectives run in the
script's own default group, the result is written, and the script is ended from within its hook, on all ranks at
the same step.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import runpy
import sys
import threading
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nccltune.workloads as package

from . import harness, result
from .failure import WorkloadError, WorkloadFailure
from .script_steps import Enough, ScriptSteps
from .workload import Context, Workload

if TYPE_CHECKING:
    from .group import Group
    from .harness import Launch
    from .measure import Measure, Timed, WarmUp
    from .workload import Build

TWO_LINES = "'from nccltune.workloads import timed_step', and 'timed_step()' once in every training step"
UNWIND_S = 10.0
"""How long a script may clean up after its last step."""
_FEWEST_STEPS = 5
_MESSAGE_BYTES = {"nccl": 32 << 20, "gloo": 1 << 20}
_DTYPES = {"nccl": ("fp32", "bf16"), "gloo": ("fp32",)}


@dataclass(frozen=True)
class Script:
    """What is to be run.

    Attributes:
        path: Relative to the working folder, as the user gave it.
    """

    path: Path
    arguments: tuple[str, ...]

    def run(self) -> None:
        """Be the script: its name, its words, and its folder first on the path, where Python itself has it."""
        sys.argv = [str(self.path), *self.arguments]
        sys.path.insert(0, str(self.path.resolve().parent))
        runpy.run_path(str(self.path), run_name="__main__")


def asked(options: Mapping[str, Any]) -> Script:
    """Read the options.

    Args:
        options: Of the request.

    Returns:
        The script.

    Raises:
        WorkloadError: The file is not there, or not what it was.
    """
    path, arguments = Path(str(options.get("script", ""))), options.get("arguments", [])
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise WorkloadError(f"the script {path} cannot be read in {Path.cwd()}: {error.strerror}") from error
    if not digest.startswith(str(options.get("sha256", ""))):
        raise WorkloadError(f"the script {path} is not the file with which the study began; start a new study")
    return Script(path, tuple(str(word) for word in arguments))


def measure(launch: Launch) -> None:
    """Run the script and measure its steps.

    Args:
        launch: This launch.

    Raises:
        WorkloadError: The script failed, or reported no or too few steps.
        BaseException: Whatever else ended it.
    """
    script = asked(launch.request.options)
    import torch  # noqa: F401 - paid for here, so that the cost is booked under "import"
    from torch import distributed  # noqa: F401

    from . import group as groups

    launch.heartbeat.enter("group")
    places: list[Group] = []
    steps = ScriptSteps(lambda: _beside(launch, steps, places), launch.heartbeat.beat)
    package._hook = steps.hook
    failure = _run(script, steps, launch)
    if failure is not None:
        raise failure
    steps.finish()
    if steps.error is not None:
        raise steps.error
    if not steps.reported:
        raise WorkloadError(f"{script.path} reported no steps; add two lines to it: {TWO_LINES}")
    with contextlib.suppress(RuntimeError):  # the result is there; others may be gone
        groups.leave(places[0])


def _run(script: Script, steps: ScriptSteps, launch: Launch) -> Exception | None:
    """Run the script to its end; what it raised, unless we had ended it by then."""
    where = f"rank {launch.rank}, {script.path}"
    try:
        script.run()
    except Enough:
        return None
    except SystemExit as stop:
        if steps.over or stop.code in (None, 0):
            return None
        return WorkloadError(f"{where}: it ended itself with {stop.code!r}")
    except Exception as error:
        traceback.print_exc()
        if steps.over:  # what goes wrong while it cleans up is none of our business
            return None
        found = harness.named(error, where, launch.request.options)
        found.__cause__ = None if found is error else error
        return found
    return None


def _beside(launch: Launch, steps: ScriptSteps, places: list[Group]) -> None:
    """Measure; on a thread of its own, which takes turns with the script's."""
    from . import group as groups

    status = 1
    try:
        group = groups.beside(launch.request)
        places.append(group)
        if group.device.type == "cuda":
            import torch

            torch.cuda.set_device(group.device)  # a thread begins with GPU 0
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
        harness.leave_result(launch, _ScriptRun(launch, group, context, steps).measure(_nothing))
        status = 0
    except WorkloadFailure as failure:
        result.failed(launch.result_path, launch.request.token, failure)
        raise
    finally:
        _end_within(UNWIND_S, status)


def _end_within(seconds: float, status: int) -> None:
    """End this process at the latest then, whatever the script does after its last step."""
    timer = threading.Timer(seconds, os._exit, (status,))
    timer.daemon = True
    timer.start()


def _nothing(_: Context) -> Workload:
    raise NotImplementedError  # the script has built what there is


class _ScriptRun(harness.Run):
    """Measures the steps of a script."""

    def __init__(self, launch: Launch, group: Group, context: Context, steps: ScriptSteps) -> None:
        super().__init__(launch, group, context)
        self._steps = steps

    def _build(self, build: Build) -> Workload:  # noqa: ARG002
        backend = self._context.backend
        return Workload(step=self._steps, message_bytes=_MESSAGE_BYTES[backend], dtypes=_DTYPES[backend])

    def _timed(self, measure: Measure, warm: WarmUp) -> Timed:
        timed, wanted = super()._timed(measure, warm), self._request.steps
        if len(timed.own_us) < min(_FEWEST_STEPS, wanted.timed_min):
            raise WorkloadError(
                f"the script reported {self._steps.reported} steps and ended: {warm.steps} were needed to warm up, and"
                f" {len(timed.own_us)} could be timed; let it run for {warm.steps + wanted.timed_max} steps or more"
            )
        return timed

    def _profiled(self, workload: Workload, warm: WarmUp, timed: Timed) -> dict[str, Any] | None:
        from .drive import OutOfSteps

        if self._request.steps.profiled <= 0:
            return None
        if not self._steps.ended:
            with contextlib.suppress(OutOfSteps):
                return super()._profiled(workload, warm, timed)
        self._warnings.append("the share of communication is not measured: the script ended before")
        return None

    def _checked(self, workload: Workload) -> dict[str, Any]:
        from torch import distributed

        self._heartbeat.enter("check")
        ready = distributed.is_initialized() and distributed.get_world_size() == self._group.world_size
        gathered = self._group.control.gather("ready", ready)
        if self._group.control.announce("ready", gathered is not None and all(gathered)):
            return super()._checked(workload)
        self._warnings.append("the sums are not checked: the script has no process group of all ranks when it ends")
        return {"cases": 0, "failures": []}

    def _few(self, steps: int) -> str:
        return f"the script ended after {steps} timed steps" if self._steps.ended else super()._few(steps)


if __name__ == "__main__":
    harness.run(measure)
