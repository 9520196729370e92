"""Stand-ins for hardware, shared by all tests.

``tests/conftest.py`` makes this module importable as ``fakes`` (pytest runs with ``--import-mode=importlib``, so the
tests' folders are no packages): write ``from fakes import FakeRunner, request``.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any

from nccltune.errors import Interrupted
from nccltune.records import Candidate, Checks, Failure, Measurement, Outcome, RankReport, Request


def request(launch_id: str = "0000-search", settings: Mapping[str, str] | None = None, **fields: Any) -> Request:
    """A small request on gloo."""
    defaults: dict[str, Any] = {
        "study": "s",
        "launch_id": launch_id,
        "token": f"token-of-{launch_id}",
        "workload": "allreduce",
        "backend": "gloo",
        "candidate": Candidate(settings=dict(settings or {})),
    }
    return Request(**defaults | fields)


class FakeRunner:
    """A runner without processes: as fast as a function call, and the same every time.

    Args:
        times_us: Median step time: a number, or a function of the candidate. A function may return an outcome instead.
        outcomes: Candidate key (``default`` for the default) to the outcomes of its launches, in order; the last one
            stays. They take precedence over ``times_us``.
        noise: Relative standard deviation from launch to launch.
        within: Relative standard deviation from step to step.
        steps: Timed steps of a launch.
        seed: Of the noise. The noise of a launch depends on this seed and the launch id only.
        stop: As of any runner.
        before: Called with each request before it is answered; may raise.

    Attributes:
        requests: Every request that was run, in order.
    """

    def __init__(
        self,
        times_us: float | Callable[[Candidate], float | Outcome] = 1000.0,
        *,
        outcomes: Mapping[str, Outcome | Iterable[Outcome]] | None = None,
        noise: float = 0.001,
        within: float = 0.002,
        steps: int = 20,
        seed: int = 0,
        stop: Callable[[], bool] = lambda: False,
        before: Callable[[Request], None] | None = None,
    ) -> None:
        self.requests: list[Request] = []
        self._times_us = times_us
        self._scripts = {
            key: [given] if isinstance(given, Measurement | Failure) else list(given)
            for key, given in (outcomes or {}).items()
        }
        self._noise, self._within, self._steps, self._seed = noise, within, steps, seed
        self._stop = stop
        self._before = before
        self._kept: dict[str, Outcome] = {}

    def run(self, request: Request) -> Outcome:
        """Answer a request; the same launch id gets the same answer."""
        if request.launch_id in self._kept:
            return self._kept[request.launch_id]
        if self._before:
            self._before(request)
        if self._stop():
            raise Interrupted("stopped before the launch")
        self.requests.append(request)
        outcome = self._outcome(request)
        if isinstance(outcome, Measurement):
            self._kept[request.launch_id] = outcome
        return outcome

    @property
    def candidates(self) -> list[Candidate]:
        """The candidates that were run, in order."""
        return [request.candidate for request in self.requests]

    def _outcome(self, request: Request) -> Outcome:
        script = self._scripts.get(request.candidate.key)
        if script:
            return script.pop(0) if len(script) > 1 else script[0]
        answer = self._times_us(request.candidate) if callable(self._times_us) else self._times_us
        if isinstance(answer, Measurement | Failure):
            return answer
        generator = random.Random(f"{self._seed}/{request.launch_id}")
        median = answer * generator.gauss(1.0, self._noise)
        times = tuple(max(0.001, median * generator.gauss(1.0, self._within)) for _ in range(self._steps))
        return measurement(request, times)


def measurement(request: Request, times_us: Iterable[float] = (1000.0, 1001.0, 999.0), **fields: Any) -> Measurement:
    """The measurement of a request whose ranks all saw what they should."""
    ranks = tuple(
        RankReport(
            rank=rank,
            local_rank=rank % request.placement.nproc_per_node,
            host="node",
            pid=1000 + rank,
            device="cpu",
            torch_version="2.6.0",
            echo={
                **request.environment,
                **request.candidate.settings,
                **request.per_rank_env.get(str(rank), {}),
            },
        )
        for rank in range(request.placement.world_size)
    )
    defaults: dict[str, Any] = {
        "step_times_us": tuple(times_us),
        "clock": "host",
        "warmup_steps": 5,
        "ranks": ranks,
        "checks": Checks(cases=8),
        "parts_s": {"start": 2.0, "timed": 0.1, "end": 0.5},
    }
    return Measurement(**defaults | fields)


def failure(name: str = "hang_timeout", blame: str = "candidate", **fields: Any) -> Failure:
    """A failure without a launch."""
    return Failure(**{"name": name, "blame": blame, "message": "it hung", **fields})


class MemoryStore:
    """As much of a torch store as is used."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()
        self._gone = False

    def set(self, key: str, value: str) -> None:
        with self._changed:
            self._values[key] = value.encode()
            self._changed.notify_all()

    def get(self, key: str) -> bytes:
        return self._values[key]

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        with self._changed:
            there = lambda: all(key in self._values for key in keys)  # noqa: E731
            self._changed.wait_for(lambda: there() or self._gone, timeout.total_seconds())
            if not there():
                raise RuntimeError("wait timeout")

    def leave(self) -> None:
        """A rank has ended: who waits for it would wait in vain."""
        with self._changed:
            self._gone = True
            self._changed.notify_all()
