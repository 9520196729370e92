"""``nccltune knobs``: what would be searched here, what would not, and why."""

from __future__ import annotations

import os

from .application import Flag, app
from .output import configure_logging, show, show_json


@app.command
def knobs(
    name: str | None = None,
    /,
    *,
    space: str = "auto",
    allow: str | None = None,
    nproc: int | None = None,
    nnodes: int | None = None,
    emulate_nodes: int = 0,
    launch_prefix: str = "",
    json: Flag = False,
    verbose: Flag = False,
) -> int:
    """Say what would be searched on this machine and what not, each with the reason; or explain one knob.

    Args:
        name: A knob to explain, for instance OMP_NUM_THREADS.
        space: What may be tried: auto, the name of a space, or the path of a space file.
        allow: Documentation classes that may be searched: system, debugging, undocumented, with commas. Default: all.
        nproc: Ranks a node. Default: one for each visible GPU; 2 on a CPU machine.
        nnodes: Nodes that the launch prefix reaches, where it is not srun's own -N.
        emulate_nodes: Let NCCL see this many nodes on one machine, over loopback sockets.
        launch_prefix: Words before torchrun's, for instance "srun -N2 --ntasks-per-node=1".
        json: Print the answer as JSON.
        verbose: Say more on the standard error stream.
    """
    configure_logging(verbose)
    from .. import knobs as stage
    from .. import plan as plans

    options = plans.Options(
        workload="resnet",  # the space does not depend on it
        space=space,
        allow=plans.read_allow(allow),
        nproc=nproc,
        nnodes=nnodes,
        emulate_nodes=emulate_nodes,
        launch_prefix=launch_prefix,
    )
    if name is None:
        table = stage.table(plans.prepare(options, dict(os.environ)))
        show_json(stage.table_data(table)) if json else show(stage.table_lines(table))
        return 0
    stage.check(name)
    here = stage.here(name, options, dict(os.environ))
    show_json(stage.knob_data(name, here)) if json else show(stage.knob_lines(name, here))
    return 0
