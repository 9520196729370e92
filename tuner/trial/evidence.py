"""What NCCL itself said it did with a candidate's settings: taken, changed, refused, or never looked at.

A changed or refused value makes the candidate invalid; a setting that was never looked at is inert. How a setting shows
itself is the catalogue's knowledge (``proof`` and ``proof_line``); other wordings stand in ``log_patterns.yaml``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, cached_property
from importlib import resources
from pathlib import Path
from typing import Literal

import yaml
from pydantic import ValidationError

from ..errors import SpaceError
from ..records import Candidate, Evidence, Record, first_problem
from ..space.catalogue import Catalogue, Knob
from .nccl_facts import NcclLog
from .nccl_log import parse_files

_PLACEHOLDER = re.compile(r"\\\{(\w+)\\\}")


class Refusal(Record):
    """A wording by which NCCL says that it changed or refused a value.

    Attributes:
        names: The settings meant, where the line names none.
        by_value: Whether the line quotes the value instead of naming the setting.
    """

    match: str
    sample: str
    names: tuple[str, ...] = ()
    by_value: bool = False

    @cached_property
    def regex(self) -> re.Pattern[str]:
        """``match``, compiled."""
        return re.compile(self.match)


class LogPatterns(Record):
    """``search_spaces/log_patterns.yaml``.

    Attributes:
        sockets_by_choice: Setting to the values by which sockets are chosen on purpose.
        vpn_interfaces: Regular expression for names of interfaces of a VPN.
    """

    schema_version: Literal[1]
    refusals: tuple[Refusal, ...]
    sockets_by_choice: dict[str, tuple[str, ...]]
    vpn_interfaces: str

    def is_vpn(self, interface: str) -> bool:
        """Whether a network interface looks like one of a VPN."""
        return re.search(self.vpn_interfaces, interface) is not None


@cache
def load_log_patterns() -> LogPatterns:
    """Read the patterns of this installation.

    Raises:
        SpaceError: When a field is wrong.
    """
    source = resources.files("nccltune.search_spaces").joinpath("log_patterns.yaml")
    try:
        return LogPatterns.model_validate(yaml.safe_load(source.read_text(encoding="utf-8")))
    except ValidationError as error:
        raise SpaceError(f"log_patterns.yaml is wrong at {first_problem(error)}", "Reinstall nccltune") from None


def read_logs(paths: Sequence[Path]) -> NcclLog:
    """Read NCCL's logs of one launch; a file that is not there says nothing.

    Raises:
        OSError: When a file that exists cannot be read.
    """
    return parse_files([path for path in paths if path.is_file()])


def evidence(
    log: NcclLog, candidate: Candidate, catalogue: Catalogue | Mapping[str, Knob], *, completed: bool = True
) -> Evidence:
    """Hold a candidate against what NCCL said.

    Args:
        log: Of all ranks of the launch.
        candidate: The settings that were asked for.
        catalogue: How each setting proves itself.
        completed: Whether the launch came to its end; only then does silence say that a setting was never looked at.

    Returns:
        The evidence. ``refused`` is never guessed: without a line of the log about it, a setting is at most inert.
    """
    knobs = catalogue.knobs if isinstance(catalogue, Catalogue) else catalogue
    refused: dict[str, str] = {}
    inert: list[str] = []
    told = complaints(log.texts, candidate.settings)
    for name, value in candidate.settings.items():
        knob = knobs.get(name)
        reason = told.get(name) or _changed(log, name, value, knob)
        if reason:
            refused[name] = reason
        elif _is_silent(log, name, knob) and completed and log.lines:
            word = _unknown_word(value, knob)
            if word:
                refused[name] = word
            else:
                inert.append(name)
    return Evidence(
        nccl_version=log.version,
        nranks=log.nranks,
        nnodes=log.nnodes,
        network=log.network,
        transports=log.transports,
        channels=log.channels,
        sockets=log.sockets,
        echoed={name: " | ".join(values) for name, values in log.echoed.items()},
        refused=refused,
        inert=tuple(inert),
        choices=choices(log),
        ll128=log.ll128,
    )


def complaints(texts: Iterable[str], asked: Mapping[str, str] | None = None) -> dict[str, str]:
    """The settings that NCCL changed or refused in so many words, each with NCCL's own line.

    Args:
        texts: Lines of the log.
        asked: The settings in question; every setting that a line names, unless given.
    """
    found: dict[str, str] = {}
    for text in texts:
        for refusal in load_log_patterns().refusals:
            if match := refusal.regex.search(text):
                for name in _meant(refusal, match, asked):
                    found.setdefault(name, text)
    return found


def _meant(refusal: Refusal, match: re.Match[str], asked: Mapping[str, str] | None) -> list[str]:
    groups = match.groupdict()
    if refusal.by_value:
        return [name for name, value in (asked or {}).items() if value == groups.get("value")]
    names = refusal.names or (groups["name"],)
    return list(names[:1]) if asked is None else [name for name in names if name in asked]


def _changed(log: NcclLog, name: str, value: str, knob: Knob | None) -> str | None:
    """Why the value that NCCL read is not the one that was asked for."""
    others = [seen for seen in log.echoed.get(name, ()) if seen != value]
    if knob and knob.proof_line:
        # What a line of its own shows is NCCL's spelling ("Socket" for "socket").
        others += [
            seen for seen in proven(log.texts, knob) if seen.casefold() != value.casefold() and seen not in others
        ]
    if not others:
        return None
    return f"NCCL read {' and '.join(others)} instead of {value}"


def proven(texts: Iterable[str], knob: Knob) -> tuple[str, ...]:
    """The values of a knob that its proof line shows, each once."""
    regex = _proof(knob.proof_line)
    found = (match["value"] for text in texts if (match := regex.search(text)))
    return tuple(dict.fromkeys(found))


@cache
def _proof(line: str) -> re.Pattern[str]:
    seen: set[str] = set()

    def hole(match: re.Match[str]) -> str:
        name = match[1]
        if name in seen:
            return f"(?P={name})"
        seen.add(name)
        return rf"(?P<{name}>\S+?)"

    body = _PLACEHOLDER.sub(hole, re.escape(line))
    if "value" not in seen:
        body = f"(?P<value>{body})"
    return re.compile(body + r"(?!\S)")


def _is_silent(log: NcclLog, name: str, knob: Knob | None) -> bool:
    """Whether a setting that shows itself in the log did not."""
    if name in log.echoed:
        # An echo shows that a value was read; a knob with a line of its own also needs that one.
        return knob is not None and knob.proof == "effect-line" and not proven(log.texts, knob)
    if knob is None:
        return True
    if knob.proof in ("process-env", "none"):
        return False
    return not (knob.proof_line and proven(log.texts, knob))


def _unknown_word(value: str, knob: Knob | None) -> str | None:
    """Why a word is none that the setting knows: NCCL compares path types exactly and says nothing about others."""
    if knob is None or knob.values.kind != "path_level":
        return None
    if value in knob.values.words or value.isdecimal():
        return None
    return f"NCCL knows no {value} here and takes the setting as unset; it reads {', '.join(knob.values.words)}"


def choices(log: NcclLog) -> dict[str, str]:
    """``"AllReduce 1048576"`` to ``"Ring Simple 2"``, the last being the number of channels.

    Several choices for one size are joined by `` + ``.
    """
    found: dict[str, dict[str, None]] = {}
    for choice in log.choices:
        what = f"{choice.function or '?'} {choice.size_bytes}"
        channels = f" {choice.channels[1] - choice.channels[0] + 1}" if choice.channels else ""
        found.setdefault(what, {})[f"{choice.algorithm} {choice.protocol}{channels}"] = None
    return {what: " + ".join(words) for what, words in found.items()}
