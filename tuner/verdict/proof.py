"""Did a candidate run as it was asked to, and right? Pure; read from the launches of the fresh rounds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..records import Backend, Candidate, Evidence, Failure, Launch, Measurement
from ..space.catalogue import Knob
from ..study.ranking import faulty, invalid_reason

_SHOWN_ROLES = ("channels_floor", "channels_ceiling")
_SHOWN_VALUES = ("algorithms", "protocols")


def fault(launches: Iterable[Launch], candidate: Candidate) -> str:
    """Say why a candidate can never ship; empty where nothing speaks against it.

    Args:
        launches: Those of the fresh rounds.
        candidate: The finalist.
    """
    for launch in launches:
        if launch.candidate != candidate or not faulty([launch]):
            continue
        outcome = launch.outcome
        return (
            f"it failed in a fresh launch: {outcome.message}"
            if isinstance(outcome, Failure)
            else invalid_reason(launch)
        )
    return ""


def unproven(launches: Iterable[Launch], candidate: Candidate, backend: Backend) -> str:
    """Say what is missing of the proof that every setting took effect and the sums were right; empty for nothing.

    On NCCL its own log of every launch has to speak, and to name no setting that it refused or never looked at; what
    each rank saw in its environment is the proof on gloo, and of settings that NCCL's log cannot show.

    Args:
        launches: Those of the fresh rounds.
        candidate: The finalist.
        backend: Of the process group.
    """
    for launch in launches:
        if launch.candidate != candidate or not isinstance(launch.outcome, Measurement):
            continue
        missing = _missing(launch.outcome, candidate, backend)
        if missing:
            return f"{launch.launch_id}: {missing}"
    return ""


def _missing(measured: Measurement, candidate: Candidate, backend: Backend) -> str:
    if not measured.checks.cases or measured.checks.failures:
        return "no sum of its collectives was checked"
    if not measured.ranks or any(rank.echo.get(name) is None for rank in measured.ranks for name in candidate.settings):
        return "not every rank says what it saw in its environment"
    if backend != "nccl":
        return ""
    evidence = measured.evidence
    if evidence is None or (evidence.nccl_version is None and evidence.nranks is None):
        return "NCCL's log says nothing"
    silent = [name for name in candidate.settings if name in evidence.inert]
    return f"NCCL never looked at {', '.join(silent)}" if silent else ""


def likeness(candidate: Candidate, evidence: Evidence | None, knobs: Mapping[str, Knob]) -> tuple[object, ...]:
    """Return what tells a candidate from another: equal values mean that NCCL does the same under both.

    Algorithm, protocol and channels are taken from what NCCL says it chose, so that two ways to the same choice are
    one; every other setting is taken as it stands, since the log does not show all that it does.

    Args:
        candidate: Its settings.
        evidence: Of its launch for evidence; without one the settings alone tell.
        knobs: The catalogue.
    """
    if evidence is None or not evidence.choices:
        return (candidate,)
    others = tuple((name, value) for name, value in candidate.settings.items() if not _is_shown(knobs.get(name)))
    chosen = sorted(evidence.choices.items())
    return others, evidence.channels, evidence.sockets, sorted(evidence.transports), chosen


def _is_shown(knob: Knob | None) -> bool:
    return knob is not None and (knob.role in _SHOWN_ROLES or knob.values.kind in _SHOWN_VALUES)


def distinct(candidates: Sequence[tuple[Candidate, tuple[object, ...]]]) -> list[Candidate]:
    """Keep one of those that are alike: the one nearest the default, at the place of the first.

    Args:
        candidates: With their ``likeness``, best first.
    """
    kept: list[tuple[Candidate, tuple[object, ...]]] = []
    for candidate, alike in candidates:
        same = next((index for index, (_, other) in enumerate(kept) if other == alike), None)
        if same is None:
            kept.append((candidate, alike))
        elif len(candidate.settings) < len(kept[same][0].settings):
            kept[same] = (candidate, alike)
    return [candidate for candidate, _ in kept]
