"""Where the ranks run: from the user's words and the machine to a ``records.Placement``."""

from __future__ import annotations

import re
import shlex
import socket
from collections.abc import Mapping

from ..errors import MachineError, UsageError
from ..records import Backend, Limits, Placement

_RANKS_A_CORE = 32
_RANKS_A_CORE_IN_TIME = 8
"""Up to here the limits hold as they are. Until it is in the group a rank needs some 4 s of one core, nearly all of it
to import torch (8 ranks on 2 cores were up after 16 s), so 8 ranks a core need 32 s of the 120 s that they have."""
_SEVERAL_NODES = {"startup_s": 240.0, "total_s": 900.0}
"""A cluster's launcher and a shared file system take their time."""
_FIRST_HOST = re.compile(r"(?P<stem>[^,\[]+)(?:\[(?P<ranges>[^\]]+)\](?P<tail>[^,\[]*))?")


def place(
    *,
    backend: Backend,
    gpus: int,
    cores: int | None = None,
    nproc: int | None = None,
    nnodes: int | None = None,
    emulate_nodes: int = 0,
    launch_prefix: str = "",
    rendezvous_host: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> Placement:
    """Work out the placement and refuse what cannot run.

    Args:
        backend: Of the process group; on ``nccl`` every rank needs a GPU of its own.
        gpus: Visible GPUs of this machine.
        cores: Usable cores of this machine; ``None`` for no limit of ranks on gloo.
        nproc: Ranks a node, or ``None`` for all GPUs (two ranks on gloo).
        nnodes: Nodes of the launch prefix, or ``None`` to read them from srun's own words.
        emulate_nodes: NCCL nodes to emulate on this machine; 0 for none.
        launch_prefix: Words before torchrun's, as one text.
        rendezvous_host: Where the agents meet, or ``None`` to take the first host of the allocation.
        environ: The caller's environment, read for Slurm's list of hosts.

    Raises:
        UsageError: If the words do not fit each other.
        MachineError: If this machine cannot hold such a world.
    """
    prefix = _words(launch_prefix)
    nodes = nnodes or _nodes_of(prefix) or 1
    if nodes > 1 and not prefix:
        raise UsageError(
            f"--nnodes {nodes} needs something that starts an agent on each node",
            'add for instance --launch-prefix "srun -N2 --ntasks-per-node=1"',
        )
    if prefix and nnodes is None and _nodes_of(prefix) is None:
        raise UsageError(f"'{launch_prefix}' does not say how many nodes it reaches", "add --nnodes N")
    if emulate_nodes and nodes > 1:
        raise UsageError("--emulate-nodes is for one machine", "leave out --emulate-nodes or --launch-prefix")
    ranks = _ranks(backend, gpus, cores, nproc, nodes)
    if emulate_nodes and (emulate_nodes < 2 or ranks % emulate_nodes):
        raise UsageError(
            f"{ranks} ranks cannot be split evenly over {emulate_nodes} emulated nodes",
            f"give --emulate-nodes a number from 2 to {ranks} that divides {ranks}",
        )
    host = "127.0.0.1" if not prefix else rendezvous_host or _first_host(environ or {}) or socket.gethostname()
    return Placement(
        nnodes=nodes,
        nproc_per_node=ranks,
        emulated_nodes=emulate_nodes,
        launch_prefix=prefix,
        rendezvous_host=host,
    )


def limits_here(limits: Limits, placement: Placement, cores: int) -> Limits:
    """Give the ranks the time that they need here to come up, and to come to their next sign of life.

    Args:
        limits: Of the workload, for one node whose cores are not crowded.
        placement: Where the ranks run; several nodes are taken to be alike.
        cores: Usable cores of this machine.
    """
    found = limits.model_dump()
    if placement.nnodes > 1:
        found |= {name: max(found[name], least_s) for name, least_s in _SEVERAL_NODES.items()}
    crowd = placement.nproc_per_node / (max(1, cores) * _RANKS_A_CORE_IN_TIME)
    if crowd > 1:
        found |= {name: crowd * found[name] for name in ("startup_s", "no_progress_s", "total_s")}
    return Limits(**found)


def _ranks(backend: Backend, gpus: int, cores: int | None, nproc: int | None, nodes: int) -> int:
    if nproc is not None and nproc < 1:
        raise UsageError(f"--nproc {nproc} starts no rank", "give at least 1, or leave it out")
    if backend == "nccl" and nproc is not None and nproc > gpus:
        raise UsageError(
            f"--nproc {nproc} asks for more ranks than the {gpus} visible GPUs, and NCCL wants a GPU for each",
            f"give --nproc {gpus} or fewer, or look at CUDA_VISIBLE_DEVICES",
        )
    most = _RANKS_A_CORE * cores if backend == "gloo" and cores else None
    if most is not None and nproc is not None and nproc > most:
        raise UsageError(f"--nproc {nproc} is more ranks than {cores} cores can hold", f"give --nproc {most} or fewer")
    ranks = nproc or (gpus if backend == "nccl" else 2)
    if ranks * nodes < 2:
        enough = backend == "gloo" or gpus > 1
        raise (UsageError if nproc else MachineError)(
            "one rank alone has nobody to talk to, so there is nothing to tune",
            "give --nproc 2 or more, or leave it out"
            if enough
            else "run on a machine with two GPUs or more, or set CUDA_VISIBLE_DEVICES= to try everything on the CPU",
        )
    return ranks


def _words(text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"--launch-prefix cannot be split into words: {error}", "close the quotes") from None


def _nodes_of(prefix: tuple[str, ...]) -> int | None:
    """Read srun's ``-N2``, ``-N 2``, ``--nodes=2`` or ``--nodes 2``; a range such as ``1-2`` says nothing."""
    for index, word in enumerate(prefix):
        match = re.match(r"(?:-N|--nodes=?)(\d+)?\Z", word)
        number = (match[1] or "".join(prefix[index + 1 : index + 2])) if match else ""
        if number.isdecimal() and int(number) > 0:
            return int(number)
    return None


def _first_host(environ: Mapping[str, str]) -> str | None:
    """First host of Slurm's compressed list: ``gpu[03-07,9],login`` gives ``gpu03``."""
    hosts = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST") or ""
    match = _FIRST_HOST.match(hosts)
    if not match:
        return None
    first = re.split(r"[,-]", match["ranges"])[0] if match["ranges"] else ""
    return f"{match['stem']}{first}{match['tail'] or ''}"
