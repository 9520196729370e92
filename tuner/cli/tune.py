"""``nccltune`` and ``nccltune --workload …``: what would be run, and the main job."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ..errors import Interrupted
from ..quantities import parse_seconds, parse_share
from .application import FILES, PLACE, SEARCH, Flag, app
from .output import configure_logging, show
from .signals import stop_on_signals

_STRICT = {"ship": 0, "keep-default": 3, "no-verdict": 4}


@app.default
def tune(
    *,
    workload: Annotated[str | None, Parameter(group=SEARCH)] = None,
    trials: Annotated[int | None, Parameter(group=SEARCH)] = None,
    budget: Annotated[str | None, Parameter(group=SEARCH, allow_leading_hyphen=True)] = None,
    space: Annotated[str, Parameter(group=SEARCH)] = "auto",
    sizes: Annotated[str | None, Parameter(group=SEARCH, allow_leading_hyphen=True)] = None,
    dtype: Annotated[str | None, Parameter(group=SEARCH)] = None,
    batch_size: Annotated[str | None, Parameter(group=SEARCH, allow_leading_hyphen=True)] = None,
    sequence: Annotated[str | None, Parameter(group=SEARCH, allow_leading_hyphen=True)] = None,
    min_gain: Annotated[str, Parameter(group=SEARCH, allow_leading_hyphen=True)] = "1%",
    rounds: Annotated[int | None, Parameter(group=SEARCH)] = None,
    finalists: Annotated[int | None, Parameter(group=SEARCH)] = None,
    seed: Annotated[int, Parameter(group=SEARCH)] = 0,
    allow: Annotated[str | None, Parameter(group=SEARCH)] = None,
    nproc: Annotated[int | None, Parameter(group=PLACE)] = None,
    nnodes: Annotated[int | None, Parameter(group=PLACE)] = None,
    emulate_nodes: Annotated[int, Parameter(group=PLACE)] = 0,
    launch_prefix: Annotated[str, Parameter(group=PLACE)] = "",
    rendezvous: Annotated[str | None, Parameter(group=PLACE)] = None,
    out: Annotated[Path, Parameter(group=FILES)] = Path(),
    study: Annotated[str | None, Parameter(group=FILES)] = None,
    cluster: Annotated[str | None, Parameter(group=FILES)] = None,
    storage: Annotated[str | None, Parameter(group=FILES)] = None,
    mlflow_uri: Annotated[str | None, Parameter(group=FILES)] = None,
    no_mlflow: Annotated[bool, Parameter(group=FILES, negative="", show_default=False)] = False,
    arguments: Annotated[tuple[str, ...] | None, Parameter(parse=False)] = None,
    force: Annotated[bool, Parameter(group=SEARCH, negative="", show_default=False)] = False,
    dry_run: Flag = False,
    strict: Flag = False,
    collective_only: Annotated[bool, Parameter(group=FILES, negative="", show_default=False)] = False,
    json: Flag = False,
    verbose: Flag = False,
) -> int:
    """Search the settings, hold the best against the default, and write the profile.

    Without a workload: say what was found and what would be run, and take no GPU.

    Args:
        workload: What is timed: allreduce, allgather, reducescatter, resnet, transformer, fsdp; a model of your own,
            my_package.train:build; or a script of your own, train.py, its arguments behind --.
        trials: Candidates to measure, the default among them. Default: 50 on GPUs, 8 on a CPU machine.
        budget: Wall time of the launches before the fresh rounds, for instance 30m; a bare number is
            seconds. Default: 2m on a CPU machine without --trials.
        space: What may be tried: auto, the name of a space, or the path of a space file.
        sizes: Message sizes of a collective: 32M, or a mix with calls a step, 1M:20,32M:4.
        dtype: Data type of a collective: bf16, fp16, fp32.
        batch_size: Samples of one rank in one step of a model, or auto: a first launch chooses one with which the GPU
            does not wait for the host. Default: auto on GPUs, small and fixed on a CPU machine.
        sequence: Tokens of one sample of transformer or fsdp.
        min_gain: Smallest gain that is worth a change.
        rounds: Most fresh mirrored rounds of the finalists. Default: 20 on GPUs, 6 on a CPU machine.
        finalists: Most candidates in the fresh rounds, 1 to 3. Default: 3 on GPUs, 1 on a CPU machine.
        seed: Of the model, the data and the search.
        allow: Documentation classes that may be searched: system, debugging, undocumented, with commas. Default: all.
        nproc: Ranks a node. Default: one for each visible GPU; 2 on a CPU machine.
        nnodes: Nodes that the launch prefix reaches, where it is not srun's own -N.
        emulate_nodes: Let NCCL see this many nodes on one machine, over loopback sockets.
        launch_prefix: Words before torchrun's, for instance "srun -N2 --ntasks-per-node=1".
        rendezvous: Host where the agents meet. Default: the first host of the allocation.
        out: Folder that holds runs/ and profiles/.
        study: Name of the study. Default: made from workload, space and machine.
        cluster: Name of the profile. Default: made from the hardware.
        storage: Optuna storage URL. Default: optuna.db in the study's folder.
        mlflow_uri: MLflow tracking URI. Default: MLFLOW_TRACKING_URI, or mlflow.db in the study's folder.
        no_mlflow: Leave MLflow out.
        arguments: Of the user's script, or None where there is no --.
        force: Tune a host-bound step all the same.
        dry_run: Say what would be launched, and launch nothing.
        collective_only: Write the settings even when they were measured on a collective alone, not on a model step.
        strict: Exit status 3 for keep-default and 4 for no-verdict.
        json: Print the conclusion as JSON.
        verbose: Say more on the standard error stream.
    """
    configure_logging(verbose)
    # Here and not above: --help must not pay for what only a run needs.
    from .. import plan as plans
    from .. import terminal

    options = plans.Options(
        workload=workload or "resnet",
        arguments=arguments,
        given={"sizes": sizes, "dtype": dtype, "batch_size": batch_size, "sequence": sequence},
        space=space,
        trials=trials,
        budget_s=parse_seconds(budget) if budget is not None else None,
        nproc=nproc,
        nnodes=nnodes,
        emulate_nodes=emulate_nodes,
        launch_prefix=launch_prefix,
        rendezvous_host=rendezvous,
        cluster=cluster,
        study=study,
        out=out,
        min_gain=parse_share(min_gain),
        rounds=rounds,
        finalists=finalists,
        collective_only=collective_only,
        force=force,
        seed=seed,
        allow=plans.read_allow(allow),
        storage=storage,
        mlflow_uri=mlflow_uri,
        mlflow=not no_mlflow,
    )
    plan = plans.prepare(options, dict(os.environ))
    screen = terminal.Screen(plan)
    screen.machine()
    if dry_run or workload is None:
        screen.dry_run(with_launch=dry_run)
        return 0
    from .. import tune as job

    with stop_on_signals() as stop:
        try:
            with screen:
                conclusion = job.run(plan, screen, stop.is_set)
        except Interrupted as error:
            raise Interrupted(error.what, f"to go on, run: {terminal.as_typed(plan.command())}") from error
    if json:
        show([conclusion.as_json()])
    else:
        screen.conclusion(conclusion)
    return _STRICT[conclusion.verdict.word] if strict else 0
