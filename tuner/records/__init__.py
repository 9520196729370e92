"""The values that cross a process or a file boundary.

Everything here is frozen. What is written to a file carries ``schema_version``, so that a file from
another release gives one clear message. The workload harness reads and writes the same as plain JSON,
without importing this module; a contract test sends every field through it.
"""

from .base import SCHEMA_VERSION, Backend, Record, first_problem
from .batch import BatchChoice, BatchTry
from .candidate import DEFAULT, Candidate, Dimension, Space
from .disturbance import Disturbance, Disturbances, Disturbed
from .evidence import Evidence
from .launch import Launch, Purpose
from .measurement import Blame, Checks, Communication, Failure, FirstStep, Measurement, Outcome, RankReport, ResultFile
from .request import Ladder, Limits, Placement, Request, Steps
from .verdict import Finalist, Pair, Reach, Verdict

__all__ = [
    "DEFAULT",
    "SCHEMA_VERSION",
    "Backend",
    "BatchChoice",
    "BatchTry",
    "Blame",
    "Candidate",
    "Checks",
    "Communication",
    "Dimension",
    "Disturbance",
    "Disturbances",
    "Disturbed",
    "Evidence",
    "Failure",
    "Finalist",
    "FirstStep",
    "Ladder",
    "Launch",
    "Limits",
    "Measurement",
    "Outcome",
    "Pair",
    "Placement",
    "Purpose",
    "RankReport",
    "Reach",
    "Record",
    "Request",
    "ResultFile",
    "Space",
    "Steps",
    "Verdict",
    "first_problem",
]
