"""What a launch prefix starts on each node: finds the node's rank and becomes torchrun.

Standard library only, started by its path. Every node is given the same words, but torchrun's static rendezvous (node 0
hosts the store, ranks follow the order of the nodes) wants each node's own rank, and only the launcher's environment
knows it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

NODE_RANK = "@node-rank@"
"""Stands for the node's rank in the words that follow."""

_RANK_AND_SIZE = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PALS_RANKID", "PALS_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("PMIX_RANK", "PMIX_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)
"""With one agent a node the launcher's rank of the process is the rank of the node. Slurm's names come last, since they
also stand in the environment of an mpirun inside an allocation."""


def node_rank(environ: Mapping[str, str], nnodes: int) -> int:
    """Read the rank of this node.

    Args:
        environ: Of this process.
        nnodes: How many nodes there should be.

    Raises:
        ValueError: Another number of processes was started, or the launcher does not say which one this is.
    """
    for rank_name, size_name in _RANK_AND_SIZE:
        rank = environ.get(rank_name, "")
        if not rank.isdecimal():
            continue
        size = environ.get(size_name, "")
        if size.isdecimal() and int(size) != nnodes:
            raise ValueError(f"the launch prefix starts {size} processes, but one for each of {nnodes} nodes is wanted")
        if int(rank) < nnodes:
            return int(rank)
        raise ValueError(f"the launch prefix calls this process number {rank} of {nnodes}")
    if nnodes == 1:
        return 0
    raise ValueError("the launch prefix does not say which node this is (no SLURM_PROCID, PMI_RANK or such)")


def main(words: Sequence[str], environ: Mapping[str, str]) -> None:
    """Become the command in ``words``: the number of nodes first, then the command."""
    try:
        rank = node_rank(environ, int(words[0]))
    except ValueError as error:
        sys.exit(f"nccltune agent: {error}")
    command = [word.replace(NODE_RANK, str(rank)) for word in words[1:]]
    os.execv(command[0], command)  # noqa: S606 - a list of words, no shell


if __name__ == "__main__":
    main(sys.argv[1:], os.environ)
