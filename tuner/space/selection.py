"""The grammar of algorithm and protocol lists: ``allreduce:ring,tree;allgather:^nvls``.

Source: NCCL ``src/graph/tuning.cc`` ``parseList`` (2.24 and later).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True)
class Entry:
    """What is selected for one collective.

    Attributes:
        function: The collective in lower case; empty for the entry without prefix, which holds for all.
        exclude: Whether the words are those left out.
        words: In lower case, as they stand.
    """

    function: str
    exclude: bool
    words: tuple[str, ...]

    def enabled(self, known: Sequence[str]) -> tuple[str, ...]:
        """The words that remain, out of all known ones, in their order."""
        return tuple(word for word in known if (word in self.words) is not self.exclude)

    def __str__(self) -> str:
        prefix = f"{self.function}:" if self.function else ""
        return f"{prefix}{'^' if self.exclude else ''}{','.join(self.words)}"


@lru_cache(maxsize=4096)
def parse_selection(text: str) -> tuple[Entry, ...]:
    """Split a list into its entries; nothing is judged and nothing trimmed, as in NCCL."""
    return tuple(_entry(part) for part in text.lower().split(";"))


def render_selection(entries: Sequence[Entry]) -> str:
    """The text of the entries."""
    return ";".join(map(str, entries))


def canonical_selection(text: str, words: Sequence[str], functions: Sequence[str], prefixed: bool) -> str:
    """The one spelling of all lists that mean the same: lower case, no blanks, words and collectives in NCCL's order.

    Args:
        text: As written.
        words: The known algorithms or protocols, in order.
        functions: The known collectives, in order.
        prefixed: Whether the library reads ``function:``; if not, a list that is the same for every
            collective it names is written without.

    Returns:
        The canonical text, or the given one where it cannot be understood.
    """
    entries = parse_selection("".join(text.split()))
    if not all(_understood(entry, words, functions) for entry in entries):
        return text
    ordered = [
        Entry(entry.function, entry.exclude, tuple(word for word in words if word in entry.words))
        for entry in sorted(entries, key=lambda entry: functions.index(entry.function) if entry.function else -1)
    ]
    if not prefixed and len({(entry.exclude, entry.words) for entry in ordered}) == 1:
        ordered = [Entry("", ordered[0].exclude, ordered[0].words)]
    return render_selection(ordered)


def why_no_selection(text: str, words: Sequence[str], functions: Sequence[str], prefixed: bool) -> str | None:
    """Say why a list is none that the library takes, or ``None``; a list must name each collective once."""
    entries = parse_selection(text)
    named = [entry.function for entry in entries]
    for entry in entries:
        if entry.function and entry.function not in functions:
            return f"{entry.function!r} is no collective; known: {', '.join(functions)}"
        for word in entry.words:
            if word not in words:
                return f"{word!r} is unknown; known: {', '.join(words)}"
        if not entry.enabled(words):
            return "leaves nothing to choose from"
    if len(set(named)) != len(named):
        return "names a collective twice"
    if prefixed and "" in named:
        return "must name the collective ('allreduce:...'), since others would fail without their own algorithm"
    if not prefixed and named != [""]:
        return "this NCCL does not read a collective in front; write one list for all"
    return None


def _entry(part: str) -> Entry:
    function, colon, rest = part.partition(":")
    if not colon:
        function, rest = "", part
    exclude = rest.startswith("^")
    return Entry(function, exclude, tuple((rest[1:] if exclude else rest).split(",")))


def _understood(entry: Entry, words: Sequence[str], functions: Sequence[str]) -> bool:
    return (not entry.function or entry.function in functions) and all(word in words for word in entry.words)
