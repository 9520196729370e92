"""From a request to the argument list that starts it; starts nothing.

torchrun takes the default of nearly every option from ``PET_*``, so each that matters stands on the command line.
"""

from __future__ import annotations

import random
import re
import socket
from pathlib import Path

from ..errors import LaunchError, UsageError
from ..records import Placement, Request
from .agent import NODE_RANK
from .paths import LaunchPaths

WORKLOADS = "nccltune.workloads"

_AGENT = Path(__file__).resolve().with_name("agent.py")

_SRUN_EXPORT = re.compile(r"--export(?:=(?P<value>.*))?\Z")


def arguments(
    request: Request, paths: LaunchPaths, *, port: int, python: str, package: str = WORKLOADS
) -> tuple[str, ...]:
    """Return the words that start a launch.

    One node and many alike use torchrun's static rendezvous: node 0 hosts the store at the given port, the ranks follow
    the order of the nodes, and nothing depends on which agent wins a race for the port, as it does with c10d. On one
    node it costs the same.

    Args:
        request: What is launched; its placement has the launch prefix.
        paths: The launch's folder.
        port: Free on ``rendezvous_host``.
        python: Absolute path of the interpreter.
        package: Where the workload's module is.

    Raises:
        UsageError: A launch prefix under which no setting would reach the ranks.
    """
    placement = request.placement
    torchrun = (
        python,
        "-m",
        "torch.distributed.run",
        f"--nnodes={placement.nnodes}",
        f"--nproc-per-node={placement.nproc_per_node}",
        f"--node-rank={NODE_RANK if placement.launch_prefix else 0}",
        "--rdzv-backend=static",
        f"--rdzv-endpoint={placement.rendezvous_host}:{port}",
        f"--rdzv-id={request.token}",
        f"--rdzv-conf=timeout={max(1, round(request.limits.startup_s))}",
        f"--master-addr={placement.rendezvous_host}",
        f"--master-port={port}",
        *(() if placement.launch_prefix else ("--local-addr=127.0.0.1",)),
        "--max-restarts=0",
        "--monitor-interval=0.1",
        "--start-method=spawn",
        "--redirects=0",
        "--tee=0",
        "--role=default",
        f"--log-dir={paths.elastic}",
        "--module",
        f"{package}.{request.workload}",
        "--request",
        str(paths.request),
        "--result",
        str(paths.result),
    )
    if not placement.launch_prefix:
        return torchrun
    return (*prefix(placement), python, "-I", str(_AGENT), str(placement.nnodes), *torchrun)


def prefix(placement: Placement) -> tuple[str, ...]:
    """Return the launch prefix; srun gets the options without which it does something else than it seems to.

    * ``--export=ALL``: ``SLURM_EXPORT_ENV=NONE``, set inside jobs of ``sbatch --export=NONE``, would silently drop
      every setting. The settings themselves travel in srun's own environment; a list after ``--export`` cuts at commas
      and does not override.
    * ``--ntasks``: inside an allocation ``SLURM_NTASKS`` is inherited and can start several agents a node.
    * ``--kill-on-bad-exit=1``: a dead agent ends the others.

    Options that the user gave are left as they are.

    Raises:
        UsageError: ``--export`` with something else than ``ALL``.
    """
    words = placement.launch_prefix
    if not words or Path(words[0]).name != "srun":
        return words
    given = words[1:]
    for word in given:
        export = _SRUN_EXPORT.match(word)
        if export and export["value"] != "ALL":
            raise UsageError(f"with '{word}' srun hands no setting to the ranks", "leave it out or write --export=ALL")
    added = []
    if "--export=ALL" not in given:
        added.append("--export=ALL")
    if not any(re.match(r"-K|--kill-on-bad-exit", word) for word in given):
        added.append("--kill-on-bad-exit=1")
    if not any(re.match(r"-n|--ntasks(=|\Z)", word) for word in given):
        added.append(f"--ntasks={placement.nnodes}")
    return (words[0], *added, *given)


def free_port() -> int:
    """Find a port of this machine that nobody listens on, below the range that the kernel hands out by itself.

    Between here and torchrun's listening there are seconds, in which any process that opens a connection could be given
    a port of the kernel's own range.

    Raises:
        LaunchError: No port can be bound.
    """
    ports = [random.randint(20_000, 29_999) for _ in range(50)]
    for port in [*ports, 0]:
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
                return int(probe.getsockname()[1])
            except OSError as error:
                problem = error
    raise LaunchError(f"no port of this machine can be bound: {problem}", "look at the machine's network settings")
