"""The catalogue: what NCCL (and gloo) settings exist, what they accept, and how to prove that they act."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property, lru_cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, model_validator

from ..errors import SpaceError, nearest
from ..records import Backend, Record
from .conditions import Condition, names_of
from .document import read_document

Version: TypeAlias = tuple[int, int, int]
VersionText = Annotated[str, Field(pattern=r"^\d+\.\d+(\.\d+)?$")]
DocsClass: TypeAlias = Literal["system", "debugging", "undocumented"]
Nodes: TypeAlias = Literal["one", "several"]
Need: TypeAlias = Literal[
    "nvlink", "nvswitch", "multicast", "pcie", "sockets", "infiniband", "gpudirect", "several_nics", "collnet",
    "hopper", "blackwell", "grace", "rack_nvlink", "send_recv", "windows", "cuda_graphs", "one_process", "plugin",
]  # fmt: skip
Safety: TypeAlias = Literal["uniform", "slow", "fail", "hang", "corrupt", "memory"]
Proof: TypeAlias = Literal["integer-echo", "string-echo", "config-line", "effect-line", "process-env", "none"]
Role: TypeAlias = Literal["channels_floor", "channels_ceiling", "gpu_paths", "cpu_threads"]


def parse_version(text: str | None) -> Version | None:
    """Read ``2.28.9`` or ``2.24``; ``None`` where the text holds no version."""
    match = re.match(r"\s*(\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?", text or "", re.ASCII)
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else None


class Integer(Record):
    """A whole number, written as plain decimal.

    Attributes:
        also: Numbers outside the range that have a meaning of their own (-2 for automatic).
        ceilings: NCCL version to the lower maximum that holds before it.
    """

    kind: Literal["integer"]
    min: int
    max: int
    multiple_of: Annotated[int, Field(ge=1)] = 1
    power_of_two: bool = False
    also: tuple[int, ...] = ()
    ceilings: dict[VersionText, int] = {}


class Choice(Record):
    """One of some exact words."""

    kind: Literal["choice"]
    words: Annotated[tuple[str, ...], Field(min_length=1)]


class PathLevel(Record):
    """A path type of NCCL's topology, from the nearest to the farthest; ``src/graph/topo.cc`` ``topoPathTypeStr``.

    Attributes:
        unset_means: The level that holds when the variable is unset.
    """

    kind: Literal["path_level"]
    words: Annotated[tuple[str, ...], Field(min_length=2)]
    unset_means: str


class Algorithms(Record):
    """``function:algorithm,…`` entries joined by ``;``; ``src/graph/tuning.cc`` ``parseList``."""

    kind: Literal["algorithms"]


class Protocols(Record):
    """``function:protocol,…`` entries joined by ``;``; ``src/graph/tuning.cc`` ``parseList``."""

    kind: Literal["protocols"]


class Text(Record):
    """Free text, whole by a pattern (Python's ``re``)."""

    kind: Literal["text"]
    pattern: str


Values: TypeAlias = Annotated[Integer | Choice | PathLevel | Algorithms | Protocols | Text, Field(discriminator="kind")]


class Knob(Record):
    """One setting.

    Attributes:
        name: The environment variable.
        does: What it does, in one or two sentences.
        backends: The process-group backends with which it acts.
        values: What the source accepts and takes as written.
        accepts: The legal values in words, with what the source does to others.
        default: What holds when it is unset, in words.
        since: First NCCL version that reads it.
        removed: First NCCL version that does not.
        deprecated: Version since which another name is preferred.
        instead: The names preferred, or the names it had before (``formerly``).
        history: Further changes worth knowing.
        scope: When it is read: once a process, at every communicator, or also settable in ``ncclConfig_t``.
        nodes: On how many nodes it matters; either is enough.
        needs: What it further needs to matter; all of it.
        off_when: Inherited settings under which it does nothing.
        docs: The section of NVIDIA's page it stands in.
        safety: What a value may do, and ``uniform`` if all ranks must agree.
        proof: How NCCL's log shows that it was read.
        proof_line: The line itself, ``{value}`` for the value; empty for the usual one (``evidence_line``).
        source: File and function of NCCL that the entry was read from.
        suggest: Values worth trying; the default of a space file that names the knob alone.
        never: Why it is never searched; empty for a knob that may be.
        role: What narrowing and legality know it by.
        ship: How a profile may carry it: plain, with a note of the conditions, or only when asked for.
    """

    name: str = ""
    does: str
    backends: tuple[Backend, ...] = ("nccl",)
    values: Values
    accepts: str = ""
    default: str | int
    since: VersionText | None = None
    removed: VersionText | None = None
    deprecated: VersionText | None = None
    instead: tuple[str, ...] = ()
    formerly: tuple[str, ...] = ()
    history: str = ""
    scope: Literal["process", "communicator", "config"]
    nodes: Annotated[tuple[Nodes, ...], Field(min_length=1)] = ("one", "several")
    needs: tuple[Need, ...] = ()
    off_when: dict[str, str] = {}
    docs: DocsClass
    safety: tuple[Safety, ...] = ()
    proof: Proof
    proof_line: str = ""
    source: str
    suggest: tuple[str | int | None, ...] = ()
    never: str = ""
    role: Role | None = None
    ship: Literal["plain", "noted", "asked"] = "asked"

    @property
    def evidence_line(self) -> str:
        """The line of the log that shows the value, ``{value}`` in its place; empty where there is none."""
        usual = {"integer-echo": f"{self.name} set by environment to {{value}}.",
                 "string-echo": f"{self.name} set by environment to {{value}}"}  # fmt: skip
        return self.proof_line or usual.get(self.proof, "")

    @model_validator(mode="after")
    def _consistent(self) -> Knob:
        if not self.never and not self.suggest:
            raise ValueError("needs values under 'suggest', or a reason under 'never'")
        return self


class Algorithm(Record):
    """One algorithm and where it exists.

    Attributes:
        pairs: Collective to the protocols that have an implementation.
        off_when: Inherited or candidate settings that switch it off.
        needs_setting: Settings without which it does not exist.
    """

    since: VersionText
    pairs: dict[str, tuple[str, ...]]
    nodes: tuple[Nodes, ...] = ("one", "several")
    needs: tuple[Need, ...] = ()
    off_when: dict[str, str] = {}
    needs_setting: dict[str, str] = {}


class Catalogue(Record):
    """All knobs, the algorithms and protocols, and the rules between knobs.

    Attributes:
        prefixed_since: First NCCL version that reads ``function:`` in front of algorithms and protocols.
        algorithms: In NCCL's own order.
        guarded_protocol: The protocol that must not be forced where NCCL's own check left it off.
        gone: Names that NCCL no longer reads, with the version that dropped them.
    """

    schema_version: Literal[1]
    prefixed_since: VersionText
    protocols: tuple[str, ...]
    guarded_protocol: str
    algorithms: dict[str, Algorithm]
    conditions: tuple[Condition, ...] = ()
    gone: dict[str, VersionText] = {}
    knobs: dict[str, Knob]

    @model_validator(mode="before")
    @classmethod
    def _name_knobs(cls, raw: Any) -> Any:
        if not isinstance(raw, Mapping) or not isinstance(raw.get("knobs"), Mapping):
            return raw
        named = {
            name: {**knob, "name": name} if isinstance(knob, Mapping) else knob for name, knob in raw["knobs"].items()
        }
        return {**raw, "knobs": named}

    @model_validator(mode="after")
    def _known_names(self) -> Catalogue:
        for condition in self.conditions:
            for name in names_of(condition):
                if name not in self.knobs:
                    raise ValueError(f"a condition names {name}, which is no knob. {nearest(name, self.knobs)}")
        return self

    @cached_property
    def functions(self) -> tuple[str, ...]:
        """The collectives that algorithms and protocols can be chosen for."""
        return tuple(dict.fromkeys(function for each in self.algorithms.values() for function in each.pairs))

    @cached_property
    def algorithm_knob(self) -> str:
        """Name of the knob that restricts the algorithms; empty if there is none."""
        return next((name for name, knob in self.knobs.items() if isinstance(knob.values, Algorithms)), "")

    @cached_property
    def protocol_knob(self) -> str:
        """Name of the knob that restricts the protocols; empty if there is none."""
        return next((name for name, knob in self.knobs.items() if isinstance(knob.values, Protocols)), "")

    @cached_property
    def words(self) -> dict[str, tuple[str, ...]]:
        """The known words of the two lists, by the kind of their knob, in NCCL's order."""
        return {"algorithms": tuple(self.algorithms), "protocols": self.protocols}

    def prefixed(self, version: Version | None) -> bool:
        """Whether that NCCL reads ``function:`` in the lists; an unknown version is taken for a current one."""
        since = parse_version(self.prefixed_since)
        return version is None or since is None or version >= since

    def knob(self, name: str) -> Knob:
        """The knob of that name.

        Raises:
            SpaceError: With the nearest names, or with what became of a name that NCCL dropped.
        """
        if name in self.knobs:
            return self.knobs[name]
        if name in self.gone:
            raise SpaceError(f"{name} was dropped in NCCL {self.gone[name]} and has no effect since")
        raise SpaceError(f"{name} is no knob of the catalogue", nearest_knob(name, self))


def nearest_knob(name: str, catalogue: Catalogue) -> str:
    """Name the nearest knobs; the whole catalogue is too long to be listed."""
    said = nearest(name, catalogue.knobs)
    return said if said.startswith("Did you") else "'nccltune knobs' lists what there is"


def data_folder() -> Path:
    """Where the catalogue and the space files of this installation are."""
    return Path(str(resources.files("nccltune.search_spaces")))


@lru_cache(maxsize=1)
def load_catalogue() -> Catalogue:
    """Read the catalogue of this installation.

    Raises:
        SpaceError: With file, line and path of the first wrong field.
    """
    return read_catalogue(data_folder() / "knobs.yaml")


def read_catalogue(path: Path) -> Catalogue:
    """Read a catalogue file.

    Raises:
        SpaceError: With file, line and path of the first wrong field.
    """
    return read_document(path).parse(Catalogue)
