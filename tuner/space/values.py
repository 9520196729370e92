"""The values of one knob: their one spelling, and why a text is none of them."""

from __future__ import annotations

import re

from .catalogue import Algorithms, Catalogue, Choice, Integer, Knob, PathLevel, Protocols, Version, parse_version
from .conditions import c_integer
from .selection import canonical_selection, why_no_selection

_DECIMAL = re.compile(r"(0|-?[1-9][0-9]{0,17})", re.ASCII)
_NUMBER = re.compile(r"\s*[+-]?(0[xX][0-9a-fA-F]{1,15}|0[0-7]{0,20}|[1-9][0-9]{0,17})\s*", re.ASCII)


def canonical_value(text: str, knob: Knob, catalogue: Catalogue, version: Version | None = None) -> str:
    """The one spelling of a value: plain decimal, exact case, no blank; a text that is no value stays as it is."""
    match knob.values:
        case Integer():
            return str(c_integer(text)) if _NUMBER.fullmatch(text) else text
        case Choice() | PathLevel():
            folded = {word.upper(): word for word in knob.values.words}
            if _NUMBER.fullmatch(text) and isinstance(knob.values, Choice):
                text = str(c_integer(text))
            return folded.get(text.strip().upper(), text)
        case Algorithms() | Protocols():
            words = catalogue.words[knob.values.kind]
            return canonical_selection(text, words, catalogue.functions, catalogue.prefixed(version))
        case _:
            return text.strip()


def why_no_value(text: str, knob: Knob, catalogue: Catalogue, version: Version | None = None) -> str | None:
    """Say why a text cannot be set as it stands, or ``None``. Total: any text gets an answer."""
    if not text:
        return "is empty; leave the variable unset instead"
    match knob.values:
        case Integer():
            why = _why_no_integer(text, knob.values, version)
        case Choice() | PathLevel():
            why = None if text in knob.values.words else f"is none of {', '.join(knob.values.words)}"
        case Algorithms() | Protocols():
            words = catalogue.words[knob.values.kind]
            why = why_no_selection(text, words, catalogue.functions, catalogue.prefixed(version))
        case _:
            why = None if re.fullmatch(knob.values.pattern, text) else f"does not match {knob.values.pattern}"
    if why:
        return why
    canonical = canonical_value(text, knob, catalogue, version)
    return None if canonical == text else f"is written {canonical}"


def _why_no_integer(text: str, values: Integer, version: Version | None) -> str | None:
    if not _DECIMAL.fullmatch(text):
        return f"is no plain decimal number; NCCL would read {c_integer(text)}"
    number = int(text)
    if number in values.also:
        return None
    ceiling = min([values.max, *(limit for before, limit in values.ceilings.items() if _older(version, before))])
    if not values.min <= number <= ceiling:
        return f"is outside {values.min} to {ceiling}"
    if number % values.multiple_of:
        return f"is no multiple of {values.multiple_of}"
    if values.power_of_two and number & (number - 1):
        return "is no power of two"
    return None


def _older(version: Version | None, limit: str) -> bool:
    parsed = parse_version(limit)
    return version is not None and parsed is not None and version < parsed
