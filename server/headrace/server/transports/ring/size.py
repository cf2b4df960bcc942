"""Determine the size of a ring from the request, the settings and the container's memory."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.errors import NoTransportError

# The part of the container's free memory that one ring may take, so that others fit too.
_SHARE = 4
# Smaller rings are not worthwhile (arbitrary).
LEAST_BYTES = 1 << 20
DEFAULT_BYTES = 128 << 20
# In a ring of our choice: one that the loop has, one that is ready, and one that is written.
_BATCHES = 3
_SLOT_SPARE_BYTES = 64 << 10
_PAGE = 4096
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class RingSize:
    """The size that a client gets.

    Attributes:
        size: The size of its ring in bytes.
        warning: Why that is less than requested, and what to do; empty if it is not.
    """

    size: int
    warning: str = ""


def ring_size(
    wanted: int,
    *,
    most: int,
    limit: int | None,
    cache_bytes: int,
    open_bytes: int,
    batch_bytes: int = 0,
) -> RingSize:
    """Return the size of a new ring.

    Args:
        wanted: The bytes that the client requests; 0 lets the server choose: `DEFAULT_BYTES`, or
            room for three batches if there is memory for that.
        most: ``ring_bytes`` of the server.
        limit: The memory limit of the server's container in bytes; None without a limit.
        cache_bytes: The part of it that the cache may take.
        open_bytes: The total size of the open rings.
        batch_bytes: The payload of a batch, where it is known; else 0.

    Raises:
        NoTransportError: There is no room for a ring.
    """
    roomy = max(DEFAULT_BYTES, _BATCHES * (batch_bytes + _SLOT_SPARE_BYTES))
    size, warning = min(wanted or roomy, most), ""
    if limit is not None:
        left = (limit - cache_bytes - open_bytes) // _SHARE
        if not wanted:
            size = min(size, max(DEFAULT_BYTES, left))
        if left < size:
            size = left
            warning = (
                f"the container's memory limit of {limit // _MIB} MiB leaves "
                f"{max(0, left) // _MIB} MiB for a ring besides the cache of {cache_bytes // _MIB} "
                f"MiB and rings of {open_bytes // _MIB} MiB; raise the limit, or lower "
                "--cache-bytes"
            )
    if size < LEAST_BYTES:
        raise NoTransportError(
            warning or f"a ring of {size} bytes is smaller than {LEAST_BYTES}; request more"
        )
    return RingSize(size - size % _PAGE, warning)
