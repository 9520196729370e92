"""``nccltune doctor``: is this machine fit to be tuned?"""

from __future__ import annotations

import os
import sys

from .application import Flag, app
from .output import configure_logging, show, show_json
from .signals import stop_on_signals


@app.command
def doctor(
    *,
    probe: Flag = False,
    nproc: int | None = None,
    nnodes: int | None = None,
    emulate_nodes: int = 0,
    launch_prefix: str = "",
    json: Flag = False,
    verbose: Flag = False,
) -> int:
    """Say whether this machine is fit to be tuned: facts, faults and conflicts, each with what to do.

    Exit status 1 when it is not.

    Args:
        probe: Also launch one checked collective over all ranks and one for each pair of GPUs; takes up to a minute.
        nproc: Ranks a node of the probe. Default: one for each visible GPU; 2 on a CPU machine.
        nnodes: Nodes that the launch prefix reaches, where it is not srun's own -N.
        emulate_nodes: Let NCCL see this many nodes on one machine, over loopback sockets.
        launch_prefix: Words before torchrun's, for instance "srun -N2 --ntasks-per-node=1".
        json: Print the report as JSON.
        verbose: Say more on the standard error stream.
    """
    configure_logging(verbose)
    from .. import doctor as doctors

    options = doctors.Options(
        probe=probe, nproc=nproc, nnodes=nnodes, emulate_nodes=emulate_nodes, launch_prefix=launch_prefix
    )
    with stop_on_signals() as stop:
        report = doctors.examine(
            options,
            dict(os.environ),
            stop.is_set,
            lambda placement: sys.stderr.write(
                f"probing with {placement.world_size} ranks, which takes seconds to a minute\n"
            ),
        )
    show_json(doctors.as_data(report)) if json else show(doctors.lines(report))
    return 0 if report.fit else 1
