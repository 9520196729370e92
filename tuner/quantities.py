"""Numbers as people write them: sizes, durations, shares."""

from __future__ import annotations

import re

from .errors import UsageError

_BYTES = re.compile(r"(\d+(?:\.\d+)?)\s*([kmg]?)i?b?\Z", re.IGNORECASE)
_SECONDS = re.compile(r"(?:(\d+)h)?(?:(\d+)m(?:in)?)?(?:(\d+(?:\.\d+)?)s?)?\Z", re.IGNORECASE)
_FACTOR = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}


def parse_bytes(text: str) -> int:
    """Read a message size, as nccl-tests users write it.

    Args:
        text: For instance ``32M``, ``8K``, ``1048576``; the letters count in powers of 1024.

    Returns:
        Bytes, at least 1.

    Raises:
        UsageError: If it is no size.
    """
    match = _BYTES.match(text.strip())
    number = float(match[1]) * _FACTOR[match[2].lower()] if match else 0.0
    if number < 1 or number != int(number):
        raise UsageError(f"'{text}' is no message size", "write for instance 32M, 8K or 1048576")
    return int(number)


def parse_sizes(text: str) -> tuple[tuple[int, int], ...]:
    """Read a message size or a mix of sizes with their calls a step.

    Args:
        text: ``32M``, or ``1M:20,32M:4`` for 20 calls of 1 MiB and 4 of 32 MiB in every step.

    Returns:
        Pairs of bytes and calls a step, in the order given.

    Raises:
        UsageError: If an entry is no size, names no call, or a size stands there twice.
    """
    mix: dict[int, int] = {}
    for entry in text.split(","):
        size, _, calls = entry.partition(":")
        n_bytes = parse_bytes(size)
        n_calls = int(calls) if calls.strip().isdecimal() else (0 if calls else 1)
        if n_calls < 1:
            raise UsageError(f"'{entry}' in --sizes names no number of calls", "write for instance 1M:20,32M:4")
        if n_bytes in mix:
            raise UsageError(f"--sizes names {size.strip()} twice", "name each size once, with all its calls a step")
        mix[n_bytes] = n_calls
    return tuple(mix.items())


def parse_seconds(text: str) -> float:
    """Read a duration.

    Args:
        text: ``90``, ``90s``, ``30m``, ``1h30m``.

    Returns:
        Seconds, more than 0.

    Raises:
        UsageError: If it is no positive duration.
    """
    match = _SECONDS.match(text.strip())
    hours, minutes, seconds = match.groups() if match and text.strip() else (None, None, None)
    total = 3600.0 * int(hours or 0) + 60.0 * int(minutes or 0) + float(seconds or 0)
    if total <= 0:
        raise UsageError(f"'{text}' is no duration above zero", "write for instance 30m, 1h30m or 90s")
    return total


def parse_share(text: str) -> float:
    """Read a share.

    Args:
        text: ``1%`` or ``0.01``.

    Returns:
        The share as a number from 0 to below 1.

    Raises:
        UsageError: If it is no such share.
    """
    stripped = text.strip()
    try:
        share = float(stripped[:-1]) / 100 if stripped.endswith("%") else float(stripped)
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:
        raise UsageError(f"'{text}' is no share between 0 % and 100 %", "write for instance 1% or 0.01")
    return share


def format_bytes(n_bytes: int) -> str:
    """Write a size the way ``parse_bytes`` reads it: ``32M``, ``8K``, ``1000``."""
    for letter in ("g", "m", "k"):
        if n_bytes and n_bytes % _FACTOR[letter] == 0:
            return f"{n_bytes // _FACTOR[letter]}{letter.upper()}"
    return str(n_bytes)


def format_us(time_us: float) -> str:
    """Write a time with the unit that suits it: ``824 µs``, ``55.29 ms``, ``1.204 s``."""
    for unit, factor in (("s", 1e6), ("ms", 1e3)):
        if time_us >= factor:
            return f"{time_us / factor:.4g} {unit}"
    return f"{time_us:.4g} µs"


def format_seconds(seconds: float) -> str:
    """Write a duration for a person: ``42 s``, ``12 min``, ``3 h 20 min``."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    hours, rest = divmod(minutes, 60)
    return f"{hours} h {rest} min" if rest else f"{hours} h"


def format_percent(share: float) -> str:
    """Write a share without a sign, in two digits and never with an exponent: ``0.071 %``, ``28 %``, ``210 %``."""
    return f"{float(f'{100 * share:.2g}'):g} %"


def format_share(share: float) -> str:
    """Write a share with its sign, in three digits: ``+12.3 %``, ``+1230 %``."""
    return f"{float(f'{100 * share:.3g}'):+g} %"
