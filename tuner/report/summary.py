"""What stands on top: the verdict, what it rests on and what it cost."""

from __future__ import annotations

from dataclasses import dataclass

from ..quantities import format_percent, format_seconds, format_share
from ..records import Failure, Launch, Verdict
from ..study.ledger import Ledger
from .source import Source
from .table import NOT_MEASURED, interval

_ROUNDS = ("confirm", "validate")


@dataclass(frozen=True, kw_only=True)
class Fact:
    """A number with its name, and a remark where one is needed."""

    name: str
    value: str
    remark: str = ""


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The answer in one look.

    Attributes:
        word: ``ship``, ``ship (collective only)``, ``keep-default``, ``no-verdict``, or ``unfinished``.
        kind: The same for the page's colours and signs: ``ship``, ``keep``, ``none``.
        sentence: The verdict's own.
        marks: What limits it: emulated nodes, a collective alone.
        needed: What would change the answer.
        settings: What is to be shipped; empty for anything but ``ship``.
    """

    study: str
    word: str
    kind: str
    sentence: str
    marks: tuple[str, ...]
    needed: str
    settings: tuple[str, ...]
    facts: tuple[Fact, ...]


def summarise(source: Source) -> Summary:
    """Put the answer of a study together."""
    ledger, verdict = source.ledger, source.ledger.verdict
    return Summary(
        study=source.study,
        word=verdict.label if verdict else "unfinished",
        kind={"ship": "ship", "keep-default": "keep"}.get(verdict.word, "none") if verdict else "none",
        sentence=_full_stop(verdict.sentence if verdict else _so_far(ledger)),
        marks=_marks(ledger, verdict),
        needed=verdict.needed if verdict else "the command that began it goes on where it stopped",
        settings=tuple(f"{name}={value}" for name, value in verdict.candidate.settings.items())
        if verdict and verdict.word == "ship"
        else (),
        facts=_facts(ledger, verdict),
    )


def ranks(ledger: Ledger) -> int:
    """Processes of a launch."""
    placement = ledger.plan.get("placement", {})
    return int(placement.get("nnodes", 1)) * int(placement.get("nproc_per_node", 1))


def is_fresh(launch: Launch) -> bool:
    """Whether a launch belongs to the rounds that decide."""
    return launch.purpose in _ROUNDS


def _so_far(ledger: Ledger) -> str:
    made = len(ledger.launches)
    fresh = sum(is_fresh(launch) for launch in ledger.launches)
    return f"No verdict yet: the study has {made} launches so far, {fresh} of them in fresh rounds"


def _full_stop(sentence: str) -> str:
    return f"{sentence.rstrip('.')}."


def _marks(ledger: Ledger, verdict: Verdict | None) -> tuple[str, ...]:
    emulated = int(ledger.plan.get("placement", {}).get("emulated_nodes", 0))
    marks = []
    if emulated:
        marks.append(f"EMULATED: {emulated} nodes over loopback on one machine; for study, not for production")
    if verdict and verdict.collective_only:
        marks.append("COLLECTIVE ONLY: a collective was timed alone; the effect on a model step is unknown")
    if ledger.plan.get("machine", {}).get("backend") == "gloo":
        marks.append("NO GPU: measured on gloo; it says nothing about NCCL")
    return tuple(marks)


def _facts(ledger: Ledger, verdict: Verdict | None) -> tuple[Fact, ...]:
    launches = ledger.launches
    fresh = sum(is_fresh(launch) for launch in launches)
    failed = sum(isinstance(launch.outcome, Failure) for launch in launches)
    spent_s = ranks(ledger) * sum(launch.wall_s for launch in launches)
    whose = "GPU time" if ledger.plan.get("machine", {}).get("backend") == "nccl" else "Time of all ranks"
    facts = [*_gain(verdict)] if verdict else []
    facts += [
        Fact(name="Fresh launches", value=str(fresh), remark=f"of {len(launches)}, {failed} failed"),
        Fact(
            name="Noise floor",
            value=format_percent(ledger.noise.relative) if ledger.noise else NOT_MEASURED,
            remark="launches of the default among themselves",
        ),
        Fact(name=whose, value=format_seconds(spent_s), remark=f"{ranks(ledger)} ranks, all launches"),
    ]
    if verdict and verdict.pays_after_steps is not None:
        value = f"{verdict.pays_after_steps:,} steps"
        facts.append(Fact(name="Pays back after", value=value, remark="of the job, for the time of all launches"))
    return tuple(facts)


def _gain(verdict: Verdict) -> list[Fact]:
    alone = "in the search alone: not held against the default again" if not verdict.pairs else ""
    asked = f"more than {format_share(verdict.min_gain)} is asked for"
    return [
        Fact(
            name="Gain",
            value=NOT_MEASURED if verdict.gain is None else format_share(verdict.gain),
            remark=(alone or asked) if verdict.gain is not None else "",
        ),
        Fact(name="95 % interval", value=interval(verdict.interval).text),
        Fact(
            name="One-sided bounds",
            value=interval(verdict.bounds).text,
            remark="these decide" if verdict.bounds else "",
        ),
    ]
