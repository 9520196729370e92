"""``nccltune validate``: a profile against the default, now."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ..errors import Interrupted
from ..quantities import parse_share
from .application import Flag, app
from .output import configure_logging, show, show_json, warn
from .signals import stop_on_signals


@app.command
def validate(
    profile: Path,
    /,
    *,
    workload: str | None = None,
    sizes: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    dtype: str | None = None,
    batch_size: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    sequence: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    min_gain: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    rounds: int | None = None,
    nproc: int | None = None,
    nnodes: int | None = None,
    launch_prefix: str = "",
    rendezvous: str | None = None,
    out: Path = Path(),
    arguments: Annotated[tuple[str, ...] | None, Parameter(parse=False)] = None,
    json: Flag = False,
    verbose: Flag = False,
) -> int:
    """Hold a profile's settings against the default again, now: confirmed 0, not confirmed 3, no verdict 4.

    The result is also added to validation.json beside the profile.

    Args:
        profile: Folder of the profile, or its profile.yaml.
        workload: Another workload than the profile's: a model for what was measured on a collective alone.
        sizes: Message sizes of a collective. Default: the profile's.
        dtype: Data type of a collective. Default: the profile's.
        batch_size: Samples of one rank in one step of a model. Default: the profile's.
        sequence: Tokens of one sample of a transformer. Default: the profile's.
        min_gain: Smallest gain that is worth a change. Default: the profile's.
        rounds: Most fresh mirrored rounds. Default: 20 on GPUs, 6 on a CPU machine.
        nproc: Ranks a node. Default: the profile's.
        nnodes: Nodes that the launch prefix reaches, where it is not srun's own -N.
        launch_prefix: Words before torchrun's, for instance "srun -N2 --ntasks-per-node=1".
        rendezvous: Host where the agents meet. Default: the first host of the allocation.
        out: Folder that holds runs/.
        arguments: Of the user's script, or None where there is no --.
        json: Print the result as JSON.
        verbose: Say more on the standard error stream.
    """
    configure_logging(verbose)
    from .. import terminal
    from .. import validate as stage
    from ..verdict.validation import STATUS

    options = stage.Options(
        profile=profile,
        workload=workload,
        arguments=arguments,
        given={"sizes": sizes, "dtype": dtype, "batch_size": batch_size, "sequence": sequence},
        nproc=nproc,
        nnodes=nnodes,
        launch_prefix=launch_prefix,
        rendezvous_host=rendezvous,
        min_gain=parse_share(min_gain) if min_gain is not None else None,
        rounds=rounds,
        out=out,
    )
    job = stage.prepare(options, dict(os.environ))
    for line in job.changed:
        warn(f"changed since the profile was measured: {line}")
    with stop_on_signals() as stop, terminal.Screen(job.plan) as screen:
        try:
            result = stage.run(job, screen, stop.is_set)
        except Interrupted as error:
            raise Interrupted(error.what, "what was measured is kept; run the same command again to go on") from error
    if json:
        show_json(result.model_dump(mode="json"))
    else:
        show([f"{result.sentence}.", *([f"launches  {result.runs}"] if result.runs else [])])
    return STATUS[result.word]
