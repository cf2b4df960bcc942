"""What the server said of its cache: that it is too small for the job that reads."""

from __future__ import annotations

from dataclasses import dataclass

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class CacheShortage:
    """A server's cache that was too small for this job when its latest stream began.

    Batches are the same then, but the server reads blocks from its store several times.

    Attributes:
        job_bytes: What the job needs in the server's memory.
        part_bytes: How much of the cache it may use.
    """

    job_bytes: int
    part_bytes: int

    @property
    def missing_bytes(self) -> int:
        """What the cache lacks."""
        return self.job_bytes - self.part_bytes

    def __str__(self) -> str:
        return (
            f"this job needs {-(-self.job_bytes // _MIB):,} MiB of the server's cache and may use "
            f"{self.part_bytes // _MIB:,}, so blocks are read from the store several times; raise "
            "the server's cache_bytes (or that of PrivateServer), whose log says to how much, or "
            "lower shuffle_bytes or lanes of Order"
        )
