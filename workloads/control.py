"""How the ranks talk to each other without the candidate's communicator: torchrun's key-value store.

The candidate may be slow, wrong or hanging; what is decided and reported must not depend on it. Every
wait here ends after ``patience_s``.
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any, Protocol


class Store(Protocol):
    """What is needed of a ``torch.distributed.Store``."""

    def set(self, key: str, value: str) -> None:
        """Store a value."""

    def get(self, key: str) -> bytes:
        """Read a value."""

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        """Wait until the keys are there."""


class RankSilent(RuntimeError):
    """A rank did not say its part in time: it hangs, or it is at another point of the run."""


class Control:
    """Numbered messages between the ranks; all ranks must call the methods in the same order.

    Args:
        store: A store of our own connection, not the process group's: a blocking read holds a lock that
            NCCL's watchdog would wait for.
        rank: Global rank.
        world_size: Number of ranks.
        patience_s: Longest wait for another rank, in seconds.
    """

    def __init__(self, store: Store, rank: int, world_size: int, patience_s: float) -> None:
        self._store = store
        self._patience_s = patience_s
        self._number = 0
        self.rank = rank
        self.world_size = world_size

    def gather(self, topic: str, value: Any) -> list[Any] | None:
        """Bring one value of each rank to rank 0.

        Args:
            topic: What it is about, for error messages.
            value: Anything that JSON holds.

        Returns:
            On rank 0 the values in the order of the ranks, elsewhere ``None``.

        Raises:
            RankSilent: A rank did not deliver in time.
        """
        key = self._next(topic)
        self._store.set(f"{key}/{self.rank}", json.dumps(value))
        if self.rank:
            return None
        return [self._read(f"{key}/{rank}", topic, rank) for rank in range(self.world_size)]

    def announce(self, topic: str, value: Any = None) -> Any:
        """Tell all ranks what rank 0 has decided.

        Args:
            topic: What it is about, for error messages.
            value: On rank 0 anything that JSON holds; ignored elsewhere.

        Returns:
            Rank 0's value.

        Raises:
            RankSilent: Rank 0 did not decide in time.
        """
        key = self._next(topic)
        if self.rank == 0:
            self._store.set(key, json.dumps(value))
            return value
        return self._read(key, topic, 0)

    def _next(self, topic: str) -> str:
        self._number += 1
        return f"{self._number}/{topic}"

    def _read(self, key: str, topic: str, rank: int) -> Any:
        try:
            self._store.wait([key], timedelta(seconds=self._patience_s))
        except RuntimeError as error:
            raise RankSilent(
                f"rank {rank} did not answer '{topic}' within {self._patience_s:g} s ({type(error).__name__})"
            ) from error
        return json.loads(self._store.get(key))
