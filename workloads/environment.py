"""Whether this rank sees exactly the environment that the request asks for.

Between the text that the tuner wrote and this process stand torchrun, perhaps a cluster launcher, and
perhaps a shell start-up file of a container. A setting that got lost on that way would be measured as if
it had no effect, so a difference ends the launch.

torchrun 2.6 to 2.14 adds no ``NCCL_*`` variable of its own to a worker
(``torch/distributed/elastic/agent/server/local_elastic_agent.py``, ``_start_workers``: the one it adds is
``TORCH_NCCL_ASYNC_ERROR_HANDLING``), so none is excepted here.
"""

from __future__ import annotations

from collections.abc import Mapping

from .request import Request

PREFIX = "NCCL_"


def of_rank(request: Request, rank: int) -> dict[str, str]:
    """Give the variables that only one rank gets.

    Args:
        request: The request.
        rank: Global rank.

    Returns:
        Name to value; empty where the rank is like all others.
    """
    return dict(request.per_rank_env.get(str(rank), {}))


def wanted(request: Request, rank: int) -> dict[str, str]:
    """Give all variables that this rank must see, exactly.

    Args:
        request: The request.
        rank: Global rank.

    Returns:
        Name to value: the request's environment, the candidate, and on top what this rank alone gets.
    """
    return {**request.environment, **request.candidate.settings, **of_rank(request, rank)}


def echo(request: Request, rank: int, environ: Mapping[str, str]) -> dict[str, str]:
    """Say what this rank sees of the variables that matter.

    Args:
        request: The request.
        rank: Global rank.
        environ: The environment of the process.

    Returns:
        Name to value, sorted: every ``NCCL_*`` variable and every name that the request mentions.
    """
    names = set(wanted(request, rank))
    return {
        name: environ[name] for name in sorted(environ) if name in names or (name.startswith(PREFIX) and environ[name])
    }


def difference(request: Request, rank: int, environ: Mapping[str, str]) -> str | None:
    """Compare what this rank sees with what the request asks for.

    Args:
        request: The request.
        rank: Global rank.
        environ: The environment of the process, after ``of_rank`` was applied.

    Returns:
        One line that names the first variable that differs, or ``None``.
    """
    for name, value in sorted(request.candidate.settings.items()):
        if request.environment.get(name, value) != value:
            return f"{name}: the candidate says {value!r}, the request's environment {request.environment[name]!r}"
    asked, seen = wanted(request, rank), echo(request, rank, environ)
    for name in sorted(asked.keys() | seen.keys()):
        if asked.get(name) != seen.get(name):
            return f"{name}: rank {rank} sees {_say(seen.get(name))}, the request asks for {_say(asked.get(name))}"
    return None


def _say(value: str | None) -> str:
    return "nothing" if value is None else repr(value)
