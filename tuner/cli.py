"""The command line: arguments → calls, errors → exit status. The only place that configures logging or prints."""

from __future__ import annotations

import errno
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Literal, NoReturn

from cyclopts import App, CycloptsError, Group, Parameter
from cyclopts.exceptions import UnknownOptionError, UnusedCliTokensError

from . import __version__
from .errors import Interrupted, NccltuneError, StorageError, UsageError, nearest
from .quantities import parse_seconds, parse_share

_DIFFERS = 5
_Flag = Annotated[bool, Parameter(negative="", show_default=False)]
_COMMANDS = ("check", "doctor", "explain", "export", "knobs", "validate")
_STRICT = {"ship": 0, "keep-default": 3, "no-verdict": 4}

app = App(
    name="nccltune",
    version=f"nccltune {__version__}",
    usage="Usage: nccltune [COMMAND] [OPTIONS]",
    help="Tune NCCL settings for this cluster and this training job, and end in a verdict that can be acted on. "
    "Without a command and --workload: say what was found and what would be run, and start nothing.",
    help_epilogue="Example: nccltune --workload resnet --trials 50",
    result_action="return_value",
    exit_on_error=False,
    print_error=False,
    suppress_keyboard_interrupt=False,
)

_SEARCH, _PLACE, _FILES = (
    Group("What is tuned", sort_key=1),
    Group("Where it runs", sort_key=2),
    Group("Files", sort_key=3),
)


@app.default
def tune(
    *,
    workload: Annotated[str | None, Parameter(group=_SEARCH)] = None,
    trials: Annotated[int | None, Parameter(group=_SEARCH)] = None,
    budget: Annotated[str | None, Parameter(group=_SEARCH, allow_leading_hyphen=True)] = None,
    space: Annotated[str, Parameter(group=_SEARCH)] = "auto",
    sizes: Annotated[str | None, Parameter(group=_SEARCH, allow_leading_hyphen=True)] = None,
    dtype: Annotated[str | None, Parameter(group=_SEARCH)] = None,
    batch_size: Annotated[str | None, Parameter(group=_SEARCH, allow_leading_hyphen=True)] = None,
    sequence: Annotated[str | None, Parameter(group=_SEARCH, allow_leading_hyphen=True)] = None,
    min_gain: Annotated[str, Parameter(group=_SEARCH, allow_leading_hyphen=True)] = "1%",
    rounds: Annotated[int | None, Parameter(group=_SEARCH)] = None,
    seed: Annotated[int, Parameter(group=_SEARCH)] = 0,
    allow: Annotated[str | None, Parameter(group=_SEARCH)] = None,
    nproc: Annotated[int | None, Parameter(group=_PLACE)] = None,
    nnodes: Annotated[int | None, Parameter(group=_PLACE)] = None,
    emulate_nodes: Annotated[int, Parameter(group=_PLACE)] = 0,
    launch_prefix: Annotated[str, Parameter(group=_PLACE)] = "",
    rendezvous: Annotated[str | None, Parameter(group=_PLACE)] = None,
    out: Annotated[Path, Parameter(group=_FILES)] = Path(),
    study: Annotated[str | None, Parameter(group=_FILES)] = None,
    cluster: Annotated[str | None, Parameter(group=_FILES)] = None,
    storage: Annotated[str | None, Parameter(group=_FILES)] = None,
    mlflow_uri: Annotated[str | None, Parameter(group=_FILES)] = None,
    no_mlflow: Annotated[bool, Parameter(group=_FILES, negative="", show_default=False)] = False,
    arguments: Annotated[tuple[str, ...] | None, Parameter(parse=False)] = None,
    dry_run: _Flag = False,
    strict: _Flag = False,
    collective_only: Annotated[bool, Parameter(group=_FILES, negative="", show_default=False)] = False,
    json: _Flag = False,
    verbose: _Flag = False,
) -> int:
    """Search the settings, hold the best against the default, and write the profile.

    Without a workload: say what was found and what would be run, and take no GPU.

    Args:
        workload: What is timed: allreduce, allgather, reducescatter, resnet, transformer, fsdp; a model of your own,
            my_package.train:build; or a script of your own, train.py, its arguments behind --.
        trials: Candidates to measure. Default: 50 on GPUs, 8 on a CPU machine.
        budget: Wall time of the launches before the fresh rounds, for instance 30m. Default: 2m on a CPU machine
            without --trials.
        space: What may be tried: auto, the name of a space, or the path of a space file.
        sizes: Message sizes of a collective: 32M, or a mix with calls a step, 1M:20,32M:4.
        dtype: Data type of a collective: bf16, fp16, fp32.
        batch_size: Samples of one rank in one step of a model.
        sequence: Tokens of one sample of transformer or fsdp.
        min_gain: Smallest gain that is worth a change.
        rounds: Most fresh mirrored rounds of the finalists. Default: 20 on GPUs, 6 on a CPU machine.
        seed: Of the model, the data and the search.
        allow: Documentation classes that may be searched: system, debugging, undocumented, with commas.
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
        dry_run: Say what would be launched, and launch nothing.
        collective_only: Write the settings even when they were measured on a collective alone, not on a model step.
        strict: Exit status 3 for keep-default and 4 for no-verdict.
        json: Print the conclusion as JSON.
        verbose: Say more on the standard error stream.
    """
    _configure_logging(verbose)
    # Here and not above: --help must not pay for what only a run needs.
    from . import plan as plans
    from . import terminal

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
        collective_only=collective_only,
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
    from . import tune as job

    with _signals() as stop:
        try:
            with screen:
                conclusion = job.run(plan, screen, stop.is_set)
        except Interrupted as error:
            raise Interrupted(error.what, f"to go on, run: {terminal.as_typed(plan.command())}") from error
    if json:
        _print([conclusion.as_json()])
    else:
        screen.conclusion(conclusion)
    return _STRICT[conclusion.verdict.word] if strict else 0


@app.command
def doctor(
    *,
    probe: _Flag = False,
    nproc: int | None = None,
    nnodes: int | None = None,
    emulate_nodes: int = 0,
    launch_prefix: str = "",
    json: _Flag = False,
    verbose: _Flag = False,
) -> int:
    """Say whether this machine is fit to be tuned: facts, faults and conflicts, each with what to do.

    Exit status 1 when it is not.

    Args:
        probe: Also launch one checked collective over all ranks and one for each pair of GPUs; takes seconds.
        nproc: Ranks a node of the probe. Default: one for each visible GPU; 2 on a CPU machine.
        nnodes: Nodes that the launch prefix reaches, where it is not srun's own -N.
        emulate_nodes: Let NCCL see this many nodes on one machine, over loopback sockets.
        launch_prefix: Words before torchrun's, for instance "srun -N2 --ntasks-per-node=1".
        json: Print the report as JSON.
        verbose: Say more on the standard error stream.
    """
    _configure_logging(verbose)
    from . import doctor as doctors

    options = doctors.Options(
        probe=probe, nproc=nproc, nnodes=nnodes, emulate_nodes=emulate_nodes, launch_prefix=launch_prefix
    )
    with _signals() as stop:
        report = doctors.examine(
            options,
            dict(os.environ),
            stop.is_set,
            lambda placement: sys.stderr.write(f"probing with {placement.world_size} ranks, which takes seconds\n"),
        )
    _print_json(doctors.as_data(report)) if json else _print(doctors.lines(report))
    return 0 if report.fit else 1


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
    json: _Flag = False,
    verbose: _Flag = False,
) -> int:
    """Say what would be searched on this machine and what not, each with the reason; or explain one knob.

    Args:
        name: A knob to explain, for instance OMP_NUM_THREADS.
        space: What may be tried: auto, the name of a space, or the path of a space file.
        allow: Documentation classes that may be searched: system, debugging, undocumented, with commas.
        nproc: Ranks a node. Default: one for each visible GPU; 2 on a CPU machine.
        nnodes: Nodes that the launch prefix reaches, where it is not srun's own -N.
        emulate_nodes: Let NCCL see this many nodes on one machine, over loopback sockets.
        launch_prefix: Words before torchrun's, for instance "srun -N2 --ntasks-per-node=1".
        json: Print the answer as JSON.
        verbose: Say more on the standard error stream.
    """
    _configure_logging(verbose)
    from . import knobs as stage
    from . import plan as plans

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
        _print_json(stage.table_data(table)) if json else _print(stage.table_lines(table))
        return 0
    stage.check(name)
    here = stage.here(name, options, dict(os.environ))
    _print_json(stage.knob_data(name, here)) if json else _print(stage.knob_lines(name, here))
    return 0


@app.command
def explain(*files: Path, json: _Flag = False, verbose: _Flag = False) -> int:
    """Say what files say: an NCCL or torchrun log, the output of 'nvidia-smi topo -m', or profiler traces.

    Args:
        files: One log or matrix; or the logs or traces of one run, a file a rank.
        json: Print the answer as JSON.
        verbose: Say more on the standard error stream.
    """
    _configure_logging(verbose)
    from . import explain as explainer

    answer = explainer.explain(files)
    _print_json(answer) if json else _print([explainer.words(answer)])
    return 0


@app.command
def export(
    profile: Path,
    /,
    *,
    format: Literal["env", "sh", "nccl-conf", "dockerfile", "k8s"] = "env",
    guard: _Flag = False,
    emulated: _Flag = False,
    collective_only: _Flag = False,
    allow: str | None = None,
    out: Path | None = None,
    verbose: _Flag = False,
) -> int:
    """Write a profile's settings for who will read them: all of them, or none and the reason.

    A profile that keeps the defaults gives the header and no setting.

    Args:
        profile: Folder of the profile, or its profile.yaml.
        format: env (docker --env-file), sh (for a shell's source), nccl-conf, dockerfile (ENV and LABEL lines), k8s
            (a ConfigMap).
        guard: With sh: a script that sets them only where the conditions hold, for images without Python.
        emulated: Also write what was measured on emulated nodes, marked as such.
        collective_only: Also write what was measured on a collective alone.
        allow: Documentation classes that may be written: system, debugging, undocumented, with commas.
        out: File to write. Default: the standard output.
        verbose: Say more on the standard error stream.
    """
    _configure_logging(verbose)
    from .plan import read_allow
    from .verdict import export as exports
    from .verdict import guard as guards
    from .verdict.profile import write_file
    from .verdict.reading import read_profile

    if guard and format != "sh":
        raise UsageError("--guard is a shell script", "add --format sh")
    found = read_profile(profile)
    why = exports.why_not(found, emulated=emulated, collective_only=collective_only, allow=read_allow(allow))
    if why is not None:
        raise why
    if format == "nccl-conf" and (late := exports.too_late(found)):
        _warn(f"NCCL reads this file too late for {', '.join(late)}: set that in the environment")
    for line in exports.conflicts(found, os.environ):
        _warn(line)
    text = guards.script(found) if guard else exports.render(found, format)
    if out is None:
        _print(text.splitlines())
    else:
        write_file(out, text, 0o755 if guard else 0o644)
    return 0


@app.command
def check(
    profile: Path,
    /,
    *,
    format: Literal["sh"] | None = None,
    emulated: _Flag = False,
    collective_only: _Flag = False,
    json: _Flag = False,
    verbose: _Flag = False,
) -> int:
    """Say whether this machine is the one that a profile was measured on. Takes no GPU and imports no torch.

    Exit status 0 when it is and 5 when it is not. For an image's entry point:
    eval "$(nccltune check profile.yaml --format sh)"

    Args:
        profile: Folder of the profile, or its profile.yaml.
        format: sh: print the exports where the profile holds, for what is not set yet; else nothing.
        emulated: With sh: also what was measured on emulated nodes.
        collective_only: With sh: also what was measured on a collective alone.
        json: Print the answer as JSON.
        verbose: Say more on the standard error stream.
    """
    _configure_logging(verbose)
    from .machine import facts
    from .verdict import guard as guards
    from .verdict.reading import read_profile

    found = read_profile(profile, thoroughly=False)
    differing = guards.differing(found, facts.gather(os.environ), os.environ)
    if json:
        _print_json({"holds": not differing, "differing": list(differing)})
    elif format == "sh":
        why = guards.why_withheld(found, emulated=emulated, collective_only=collective_only)
        differing = (*differing, why.what) if why is not None else differing
        if differing:
            _warn(f"nothing was set: {'; '.join(differing)}")
        else:
            _print(guards.exports(found, os.environ))
    else:
        for line in differing:
            _warn(line)
        _print([] if differing else ["the profile holds here"])
    return _DIFFERS if differing else 0


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
    json: _Flag = False,
    verbose: _Flag = False,
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
    _configure_logging(verbose)
    from . import terminal
    from . import validate as stage

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
        _warn(f"changed since the profile was measured: {line}")
    with _signals() as stop, terminal.Screen(job.plan) as screen:
        try:
            result = stage.run(job, screen, stop.is_set)
        except Interrupted as error:
            raise Interrupted(error.what, "what was measured is kept; run the same command again to go on") from error
    if json:
        _print_json(result.model_dump(mode="json"))
    else:
        _print([f"{result.sentence}.", *([f"launches  {result.runs}"] if result.runs else [])])
    return stage.STATUS[result.word]


# The usage and the example above are the main job's.
for _name in (name for name in app if not name.startswith("-")):
    app[_name].usage, app[_name].help_epilogue = None, ""


def main() -> NoReturn:
    """Entry point of the console script."""
    _open_standard_streams()
    sys.exit(run(sys.argv[1:]))


def run(argv: Sequence[str]) -> int:
    """Run one command line.

    Args:
        argv: The words after the program's name.

    Returns:
        The exit status: 0 done, 1 failed, 2 usage, 130 interrupted; with ``--strict`` and for ``validate`` 3 and 4 for
        the verdict; 5 when ``check`` finds another machine.
    """
    words = list(argv)
    try:
        command, bound, unparsed = app.parse_args(words[: words.index("--")] if "--" in words else words)
        if "--" in words:
            if "arguments" not in unparsed:
                raise UsageError("this command takes no arguments after '--'", "leave out '--' and what follows it")
            bound.arguments["arguments"] = tuple(words[words.index("--") + 1 :])
        return int(command(*bound.args, **bound.kwargs) or 0)
    except CycloptsError as error:
        return _fail(_usage(error))
    except NccltuneError as error:
        return _fail(error)
    except KeyboardInterrupt:
        return _fail(Interrupted("stopped at once", "run the same command again to go on"))
    except BrokenPipeError:
        # The reader of our output went away (nccltune … | head): nobody is left to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            return _internal(error)
        what = f"cannot write {error.filename or 'the output'}: {error.strerror}"
        return _fail(StorageError(what, "free space, then run the same command again: what was measured is kept"))
    except Exception as error:
        return _internal(error)


def _internal(error: Exception) -> int:
    logging.getLogger(__name__).debug("internal error", exc_info=True)
    what = f"internal error: {type(error).__name__}: {error}"
    return _fail(NccltuneError(what, "what was measured is kept; run again with --verbose and report what it prints"))


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _print_json(data: Any) -> None:
    import json

    _print([json.dumps(data, indent=1)])


def _open_standard_streams() -> None:
    """Put the null device where a standard stream was closed: the next file that is opened would take its number.

    Whatever a library then prints would go into that file, which might be the ledger.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) < 3:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - for good
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115


def _warn(text: str) -> None:
    sys.stderr.write(f"nccltune: {text}\n")


def _fail(error: NccltuneError) -> int:
    sys.stderr.write(f"nccltune: {error}\n")
    return error.exit_status


def _usage(error: CycloptsError) -> UsageError:
    """Turn a parser's error into ours, with the nearest command or option."""
    if isinstance(error, UnusedCliTokensError):
        word = (error.unused_tokens or [""])[0]
        return UsageError(f"there is no command '{word}'", f"{nearest(word, _COMMANDS)}; see nccltune --help")
    if isinstance(error, UnknownOptionError) and error.token is not None:
        word = error.token.keyword or error.token.value
        known = [name for argument in error.argument_collection for name in argument.names]
        return UsageError(f"there is no option '{word}'", f"{nearest(word, known)}; see nccltune --help")
    return UsageError(" ".join(str(error).split()), "see nccltune --help")


def _configure_logging(verbose: bool) -> None:
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.DEBUG if verbose else logging.WARNING,
        format="nccltune: %(message)s" if not verbose else "%(asctime)s %(name)s: %(message)s",
    )


@contextmanager
def _signals() -> Iterator[threading.Event]:
    """Turn the first SIGINT, SIGTERM or SIGHUP into a flag that is looked at between and within launches.

    A flag, not an exception: an exception in the middle of a ledger line would tear it. A second SIGINT stops at once.
    """
    stop = threading.Event()

    def handle(number: int, _frame: FrameType | None) -> None:
        if stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
