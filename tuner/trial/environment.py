"""The environment of a launch: rendered once as the text of an env file, then the child's full mapping from it.

The file holds what is decided for the launch and every ``NCCL_*`` variable that a rank will see, nothing else of the
caller's environment: that may hold secrets. What a rank sees of ``NCCL_*`` is exactly what the file says (and
``per_rank_env`` on top, for emulated nodes), so that the ranks' own echo can be compared with it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Protocol

from ..errors import EnvironmentFault, UsageError
from ..records import Placement, Request
from .paths import LaunchPaths

TOKEN = "NCCLTUNE_TOKEN"  # noqa: S105 - the name of a variable

DEBUG_PREFIX = "NCCL_DEBUG"
DEBUG = "NCCL_DEBUG"
DEBUG_SUBSYS = "NCCL_DEBUG_SUBSYS"
DEBUG_FILE = "NCCL_DEBUG_FILE"
CONF_FILE = "NCCL_CONF_FILE"
HOSTID = "NCCL_HOSTID"
SOCKET_IFNAME = "NCCL_SOCKET_IFNAME"

SUBSYSTEMS = "INIT,ENV,NET,GRAPH"
"""What NCCL logs in every launch. TUNING is left out: it prints a line for each collective and costs time."""
_CHOICES = ",TUNING"

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")

_LEFTOVER_NAMES = frozenset({
    # torchrun's own, when we are started below it; MASTER_* would send the ranks to another job's store
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "NODE_RANK",
    "ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT",
    # torchrun starts $PYTHON_EXEC instead of its own interpreter; with PYTHONINSPECT a worker never ends
    "PYTHON_EXEC", "PYTHONINSPECT",
    "MPI_LOCALRANKID", "MPI_LOCALNRANKS",
    TOKEN,
})  # fmt: skip

_LEFTOVER_PREFIXES = ("PET_", "TORCHELASTIC_", "OMPI_COMM_WORLD_", "PMI_", "PMIX_", "MV2_COMM_WORLD_", "PALS_")
"""torchrun takes ``PET_<OPTION>`` as the default of nearly every option (torch/distributed/argparse_util.py)."""

_SLURM_RANK = re.compile(r"SLURM_(PROCID|LOCALID|NODEID|GTIDS|TASK_PID|NTASKS\w*|NPROCS|STEP_\w+)\Z")


def _baseline(environ: Mapping[str, str], request: Request) -> dict[str, str]:
    """Return the ``NCCL_*`` settings that belong to the baseline: the caller's, and those that the request names.

    The request's win: it also names what was read from NCCL's configuration files. The caller's ``NCCL_DEBUG*`` and
    ``NCCL_CONF_FILE`` are no part of the result, since a launch sets its own.

    Args:
        environ: The caller's environment.
        request: Its ``environment`` holds at least the settings read from files.
    """
    settings = {name: value for name, value in environ.items() if name.startswith("NCCL_")}
    settings.update(request.environment)
    return {name: value for name, value in settings.items() if not _is_control(name)}


def replaced(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the caller's settings that every launch replaces by its own (``NCCL_DEBUG*``, ``NCCL_CONF_FILE``)."""
    return {name: value for name, value in sorted(environ.items()) if _is_control(name)}


def settings(
    request: Request, paths: LaunchPaths, environ: Mapping[str, str], *, subsystems: str = SUBSYSTEMS
) -> dict[str, str]:
    """Return everything that the env file of a launch says, in its order.

    Args:
        request: What is launched.
        paths: The launch's folder, for NCCL's logs.
        environ: The caller's environment.
        subsystems: What NCCL logs (``NCCL_DEBUG_SUBSYS``).
    """
    return {
        **decided(request, environ),
        **_baseline(environ, request),
        **(controls(paths, subsystems + _CHOICES * request.log_choices) if request.backend == "nccl" else {}),
        **request.candidate.settings,
        TOKEN: request.token,
    }


def decided(request: Request, environ: Mapping[str, str]) -> dict[str, str]:
    """Return what is set on purpose in every launch; the caller's own value stands where it is only a default.

    ``OMP_NUM_THREADS`` and ``TORCH_NCCL_ASYNC_ERROR_HANDLING`` get the value that torchrun would give them
    (torch/distributed/run.py, elastic/agent/server/local_elastic_agent.py), so that it is known and recorded.
    On one machine gloo gets the loopback interface: it would else look up the host name, which fails or takes
    seconds in many containers.
    """
    placement = request.placement
    defaults = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}
    if placement.nproc_per_node > 1:
        defaults["OMP_NUM_THREADS"] = "1"
    if placement.nnodes == 1 and not placement.launch_prefix:
        defaults["GLOO_SOCKET_IFNAME"] = "lo"
    return {
        **{name: environ.get(name, value) for name, value in defaults.items()},
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(request.limits.shutdown_s),
        "PYTHONSAFEPATH": "1",  # a user's queue.py in the working folder must not shadow the standard library's
        "PYTHONUNBUFFERED": "1",  # the log of a worker that is killed ends where the worker ended
        "PYTHONFAULTHANDLER": "1",  # a segfault names the Python line
    }


def controls(paths: LaunchPaths, subsystems: str = SUBSYSTEMS) -> dict[str, str]:
    """Return the settings that make NCCL read no file of its own and log into the launch's folder.

    ``NCCL_CONF_FILE`` masks only ``~/.nccl.conf``; ``/etc/nccl.conf`` is always read but never overrides what is set
    (NCCL ``src/misc/param.cc``, ``initEnvFunc``), which is why its settings are made explicit.
    """
    folder = str(paths.nccl).replace("%", "%%")  # NCCL expands %h and %p (src/debug.cc)
    return {
        CONF_FILE: "/dev/null",
        DEBUG: "INFO",
        DEBUG_SUBSYS: subsystems,
        DEBUG_FILE: f"{folder}/%h.%p.log",
        # a hang's flight record goes beside the logs, not into /tmp; the older torch reads the first name
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": f"{paths.nccl}/trace_rank_",
        "TORCH_FR_DUMP_TEMP_FILE": f"{paths.nccl}/trace_rank_",
    }


def expected(
    request: Request, paths: LaunchPaths, environ: Mapping[str, str], *, subsystems: str = SUBSYSTEMS
) -> dict[str, str]:
    """Return what ``Request.environment`` must hold: each ``NCCL_*`` that a rank will see and all that it names."""
    named = request.candidate.settings.keys() | request.environment.keys()
    return {
        name: value
        for name, value in sorted(settings(request, paths, environ, subsystems=subsystems).items())
        if name.startswith("NCCL_") or name in named
    }


class Inherited(Protocol):
    """What is known of the settings that NCCL would see before a candidate (``machine.Facts.inherited``)."""

    @property
    def settings(self) -> Mapping[str, str]:
        """Name to value, from the environment and from NCCL's configuration files."""


def complete(request: Request, inherited: Inherited, environ: Mapping[str, str]) -> Request:
    """Return the request with everything about its environment that does not depend on the launch's folder.

    Args:
        request: What is to be launched.
        inherited: Settings of the baseline; those read from files become explicit by this.
        environ: The caller's environment.

    Raises:
        UsageError: The ranks cannot be split evenly over the emulated nodes.
    """
    named = request.model_copy(update={"environment": {**inherited.settings, **request.environment}})
    baseline = {**_baseline(environ, named), **request.candidate.settings}
    return request.model_copy(
        update={
            "environment": dict(sorted(baseline.items())),
            "per_rank_env": request.per_rank_env or per_rank(request.placement),
        }
    )


def in_folder(
    request: Request, paths: LaunchPaths, environ: Mapping[str, str], *, subsystems: str = SUBSYSTEMS
) -> Request:
    """Return the request exactly as the ranks will see it when it is launched in this folder.

    Doing so twice changes nothing. See ``settings`` for the arguments.

    Raises:
        UsageError: The ranks cannot be split evenly over the emulated nodes.
    """
    return request.model_copy(
        update={
            "environment": expected(request, paths, environ, subsystems=subsystems),
            "per_rank_env": request.per_rank_env or per_rank(request.placement),
        }
    )


def per_rank(placement: Placement) -> dict[str, dict[str, str]]:
    """Return what makes NCCL see emulated nodes: a host identity for each of them, and loopback sockets.

    NCCL takes ranks with different ``NCCL_HOSTID`` for ranks of different machines and connects them by its network
    transport (src/misc/utils.cc, ``getHostHash``). Ranks are split evenly, in order.

    Raises:
        UsageError: The ranks cannot be split evenly, or there is more than one real node.
    """
    nodes = placement.emulated_nodes
    if not nodes:
        return {}
    if placement.nnodes != 1:
        raise UsageError("nodes can be emulated on one machine only", "leave out --emulate-nodes or the other nodes")
    ranks = placement.world_size
    if nodes < 0 or ranks % nodes:
        raise UsageError(
            f"{ranks} ranks cannot be split evenly over {nodes} emulated nodes",
            "choose --nproc as a multiple of --emulate-nodes",
        )
    return {str(rank): {HOSTID: f"emulated-{rank * nodes // ranks}", SOCKET_IFNAME: "lo"} for rank in range(ranks)}


def render(settings: Mapping[str, str], comments: Sequence[str] = ()) -> str:
    """Write settings as the text of an env file: ``NAME=VALUE`` lines, ``#`` in column one only.

    Such a text is valid for ``docker --env-file`` and as ``nccl.conf`` alike: neither knows quotes, trailing comments
    or blanks around the equals sign.

    Raises:
        EnvironmentFault: A name or value that the grammar cannot hold.
    """
    for name, value in settings.items():
        if not _NAME.match(name):
            raise EnvironmentFault(f"{name!r} is no name of an environment variable", "unset it")
        if any(ord(character) < 32 or 0xD800 <= ord(character) < 0xE000 for character in value):
            raise EnvironmentFault(
                f"the value of {name} holds a line break, a control character or bytes that are not UTF-8",
                "unset the variable, or choose a folder with a plain name",
            )
    lines = [f"# {line}".rstrip() for comment in comments for line in comment.splitlines() or [""]]
    lines += [f"{name}={value}" for name, value in settings.items()]
    return "\n".join(lines) + "\n" if lines else ""


def parse(text: str) -> dict[str, str]:
    """Read the text of an env file back, exactly: no quotes, no trimming.

    Raises:
        UsageError: A line that is no ``NAME=VALUE``; the message has its number.
    """
    found: dict[str, str] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        line = line.removesuffix("\r")
        if not line or line.startswith("#"):
            continue
        name, equals, value = line.partition("=")
        if not equals or not _NAME.match(name):
            raise UsageError(f"line {number} of the env file is no NAME=VALUE: {line!r}", "correct the line")
        found[name] = value
    return found


def child(text: str, environ: Mapping[str, str], placement: Placement) -> dict[str, str]:
    """Return the full environment of the launcher: the caller's, cleaned, and the env file on top.

    Other launchers' leftovers are dropped. Slurm's own variables stay where a launch prefix may need them.

    Args:
        text: The env file of the launch.
        environ: The caller's environment.
        placement: Where the ranks run.
    """
    kept = {name: value for name, value in environ.items() if not _is_leftover(name, placement)}
    return kept | parse(text)


def _is_control(name: str) -> bool:
    return name.startswith(DEBUG_PREFIX) or name == CONF_FILE


def _is_leftover(name: str, placement: Placement) -> bool:
    if name in _LEFTOVER_NAMES or name.startswith((*_LEFTOVER_PREFIXES, "NCCL_")):
        return True
    return not placement.launch_prefix and _SLURM_RANK.match(name) is not None
