"""Known-answer collectives: under the candidate, does every rank get the right numbers?

The data are small whole numbers that every type adds without rounding, in any order (bf16 holds integers
up to 256 exactly, fp16 up to 2048), so the comparison is exact. They differ per rank, per position and per
repeat. The pattern repeats after a prime number of elements, while NCCL's chunks and slices are powers of
two: chunks that are swapped, torn or left from an earlier call show.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .failure import Unsupported, UnsupportedDtype, WorkloadError

if TYPE_CHECKING:
    import torch

_PERIOD = 8191  # prime
_EXACT = {"bf16": 256, "fp16": 2048, "fp32": 1 << 20}
_SIZES_BYTES = (1 << 10, 1 << 16, 1 << 20, 1 << 25)
_REPEATS = 2
_FAILURES_MAX = 8


@dataclass(frozen=True)
class Outcome:
    """What the checks came to on this rank.

    Attributes:
        cases: Collectives compared.
        failures: One line for each wrong one, the first few.
    """

    cases: int
    failures: tuple[str, ...]


@dataclass(frozen=True)
class _Pattern:
    """The numbers of one repeat of one case."""

    dtype: torch.dtype
    device: torch.device
    world_size: int
    exact: int
    repeat: int

    @property
    def modulus(self) -> int:
        """Number of different values, so that the sum over all ranks is still exact."""
        return max(2, self.exact // self.world_size)

    @property
    def stride(self) -> int:
        """With more ranks than the type can count, only every so many contribute."""
        return -(-self.world_size * (self.modulus - 1) // self.exact)

    def of(self, rank: int, count: int) -> torch.Tensor:
        """What a rank contributes."""
        return self._spread(self._tile(rank), count)

    def sum(self, count: int) -> torch.Tensor:
        """What all ranks contribute, added."""
        tile = self._tile(0)
        for rank in range(1, self.world_size):
            tile = tile + self._tile(rank)
        return self._spread(tile, count)

    def _tile(self, rank: int) -> torch.Tensor:
        import torch

        index = torch.arange(_PERIOD, dtype=torch.int64)
        mixed = (index * 2654435761 + rank * 40503 * 65537 + self.repeat * 97 * 8209) >> 9
        return mixed % self.modulus if (rank + self.repeat) % self.stride == 0 else torch.zeros_like(index)

    def _spread(self, tile: torch.Tensor, count: int) -> torch.Tensor:
        tile = tile.to(device=self.device, dtype=self.dtype)
        return tile.repeat(-(-count // _PERIOD))[:count].contiguous()


def torch_dtype(name: str) -> torch.dtype:
    """Give the torch type of a short name.

    Args:
        name: ``bf16``, ``fp16`` or ``fp32``.

    Returns:
        The type.

    Raises:
        WorkloadError: The name is unknown.
    """
    import torch

    types = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
    if name not in types:
        raise WorkloadError(f"dtype '{name}' is unknown; known: {', '.join(types)}")
    return types[name]


def probe(dtypes: tuple[str, ...], device: torch.device) -> None:
    """Reduce one element of each type, so that an unsupported one is named before anything is measured.

    Args:
        dtypes: Short names.
        device: Where.

    Raises:
        UnsupportedDtype: The backend refuses the type.
        WorkloadError: A name is unknown.
    """
    import torch
    from torch import distributed

    for name in dtypes:
        with naming_what_is_missing("all_reduce", name):
            distributed.all_reduce(torch.ones(1, dtype=torch_dtype(name), device=device))


@contextlib.contextmanager
def naming_what_is_missing(collective: str, dtype: str) -> Iterator[None]:
    """Turn the error of the first call of a collective into one that says what the backend lacks.

    Args:
        collective: The one that is called.
        dtype: Short name of its type.

    Raises:
        UnsupportedDtype: The backend refuses the type.
        Unsupported: It has no such collective.
    """
    import torch
    from torch import distributed

    try:
        yield
    except (RuntimeError, TypeError, ValueError, AttributeError) as error:
        told, backend = str(error).lower(), distributed.get_backend()
        # c10d: "Invalid scalar type" (gloo), "… data type is not supported for NCCL process group"
        if "scalar type" in told or "data type" in told:
            verb = "gather" if collective == "all_gather" else "reduce"
            raise UnsupportedDtype(f"{backend} cannot {verb} {dtype} here ({collective}): {error}") from error
        if isinstance(error, NotImplementedError) or "support" in told or "implement" in told:
            raise Unsupported(f"{backend} of torch {torch.__version__} has no {collective}: {error}") from error
        raise


def all_gather(output: torch.Tensor, data: torch.Tensor) -> None:
    """Gather each rank's ``data`` into ``output``, under whichever name this torch has for it."""
    from torch import distributed

    _first_of(distributed, "all_gather_single", "all_gather_into_tensor")(output, data)


def reduce_scatter(output: torch.Tensor, data: torch.Tensor) -> None:
    """Add ``data`` over the ranks and leave each its share in ``output``, under this torch's name for it."""
    from torch import distributed

    _first_of(distributed, "reduce_scatter_single", "reduce_scatter_tensor")(output, data)


def run(
    dtypes: tuple[str, ...], message_bytes: int, device: torch.device, beat: Callable[[int], None] = lambda _: None
) -> Outcome:
    """Run and compare all cases; every rank of the group must call this with the same arguments.

    Args:
        dtypes: Short names of the types in use.
        message_bytes: Largest message.
        device: Where the data lie.
        beat: Told the number of cases done, after each.

    Returns:
        This rank's outcome.
    """
    from torch import distributed

    rank, world_size = distributed.get_rank(), distributed.get_world_size()
    cases, failures = 0, list[str]()
    skipped: set[str] = set()
    for repeat in range(_REPEATS):
        for name in dtypes:
            pattern = _Pattern(torch_dtype(name), device, world_size, _EXACT[name], repeat)
            for size in sizes(message_bytes):
                count = max(1, size // pattern.dtype.itemsize)
                for collective, got, want in _collectives(pattern, rank, count, skipped):
                    cases += 1
                    wrong = _compare(got, want)
                    if wrong and len(failures) < _FAILURES_MAX:
                        failures.append(f"{collective} {name} {size} bytes, rank {rank}, repeat {repeat}: {wrong}")
                    beat(cases)
    return Outcome(cases, tuple(failures))


def sizes(message_bytes: int) -> list[int]:
    """Choose the message sizes of the checks.

    Args:
        message_bytes: Largest message of the workload.

    Returns:
        Sizes up to it, ascending; one of them is no multiple of any chunk.
    """
    fixed = [size for size in _SIZES_BYTES if size < message_bytes]
    odd = [12_340] if message_bytes > 12_340 else []
    return sorted({*fixed, *odd, max(4, message_bytes)})


def _collectives(
    pattern: _Pattern, rank: int, count: int, skipped: set[str]
) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """Run each collective that the backend has; give its name, what came and what should have come."""
    for name, collective in _COLLECTIVES.items():
        if name in skipped:
            continue
        try:
            got, want = collective(pattern, rank, count)
        except (NotImplementedError, RuntimeError) as error:
            # Only the lack of a collective is passed over; every rank sees it alike, before any is sent.
            if name == "all_reduce" or not any(word in str(error).lower() for word in ("support", "implement")):
                raise
            skipped.add(name)
            continue
        yield name, got, want


def _all_reduce(pattern: _Pattern, rank: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    from torch import distributed

    data = pattern.of(rank, count)
    distributed.all_reduce(data)
    return data, pattern.sum(count)


def _all_gather(pattern: _Pattern, rank: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    import torch

    share = max(1, count // pattern.world_size)
    got = torch.full((share * pattern.world_size,), -1, dtype=pattern.dtype, device=pattern.device)
    all_gather(got, pattern.of(rank, share))
    return got, torch.cat([pattern.of(other, share) for other in range(pattern.world_size)])


def _reduce_scatter(pattern: _Pattern, rank: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    import torch

    share = max(1, count // pattern.world_size)
    got = torch.full((share,), -1, dtype=pattern.dtype, device=pattern.device)
    data = pattern.of(rank, share * pattern.world_size)
    reduce_scatter(got, data)
    return got, pattern.sum(share * pattern.world_size)[rank * share : (rank + 1) * share]


def _broadcast(pattern: _Pattern, rank: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    import torch
    from torch import distributed

    root = pattern.world_size - 1
    want = pattern.of(root, count)
    got = want.clone() if rank == root else torch.full_like(want, -1)
    distributed.broadcast(got, src=root)
    return got, want


_COLLECTIVES: dict[str, Callable[[_Pattern, int, int], tuple[Any, Any]]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "broadcast": _broadcast,
}


def _first_of(module: object, *names: str) -> Callable[..., object]:
    """Give a function under its new or its old name; torch 2.13 renamed two collectives."""
    return next(getattr(module, name) for name in names if hasattr(module, name))  # type: ignore[no-any-return]


def _compare(got: torch.Tensor, want: torch.Tensor) -> str | None:
    import torch

    if torch.equal(got, want):
        return None
    places = (got != want).nonzero().flatten()
    first = int(places[0])
    values = f"{float(got[first]):g} for {float(want[first]):g}"
    return f"{len(places)} of {len(want)} elements wrong, first at {first}: {values}"
