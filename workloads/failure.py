"""How a launch that cannot give a number ends: an exception here, a ``failed`` result file outside."""

from __future__ import annotations


class WorkloadFailure(Exception):
    """A failure whose class the harness knows, so that nobody has to guess it from a log.

    Attributes:
        name: Class of the failure (``wrong_data``, ``environment_changed``, ``workload_error``,
            ``unsupported``, ``unsupported_dtype``, ``cuda_oom``).
        detail: What happened, one line.
    """

    name = "workload_error"

    def __init__(self, detail: str) -> None:
        self.detail = " ".join(detail.split())
        super().__init__(self.detail)


class WorkloadError(WorkloadFailure):
    """The workload itself is at fault: a wrong option, or an exception in its code."""


class EnvironmentChanged(WorkloadFailure):
    """A rank does not see the environment that the request asks for."""

    name = "environment_changed"


class WrongData(WorkloadFailure):
    """A collective with a known answer gave another one."""

    name = "wrong_data"


class Unsupported(WorkloadFailure):
    """This torch or its backend lacks what the workload is made of."""

    name = "unsupported"


class UnsupportedDtype(WorkloadFailure):
    """The backend cannot reduce this data type."""

    name = "unsupported_dtype"


class OutOfMemory(WorkloadFailure):
    """The device's memory does not hold the workload."""

    name = "cuda_oom"
