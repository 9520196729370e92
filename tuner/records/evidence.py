"""What NCCL itself said it did."""

from __future__ import annotations

from .base import Record


class Evidence(Record):
    """What NCCL itself said it did; ``None`` and empty mean that its log does not say.

    Attributes:
        echoed: Name to the value that NCCL printed when it read the variable.
        refused: Name to the reason: NCCL changed or refused the value, so the candidate is invalid.
        inert: Names that were set and that NCCL never consulted.
        transports: Transport (``P2P/CUMEM``, ``NET/Socket`` …) to the number of channel connections.
        sockets: ``(threads, sockets per thread)`` of NET/Socket.
        choices: ``"<collective> <bytes>"`` to ``"<algorithm> <protocol> <channels>"``.
        ll128: Whether NCCL's own table gives LL128 a bandwidth (its safety check passed); ``None`` without a table.
    """

    nccl_version: str | None = None
    nranks: int | None = None
    nnodes: int | None = None
    network: str | None = None
    transports: dict[str, int] = {}
    channels: int | None = None
    sockets: tuple[int, int] | None = None
    echoed: dict[str, str] = {}
    refused: dict[str, str] = {}
    inert: tuple[str, ...] = ()
    choices: dict[str, str] = {}
    ll128: bool | None = None
