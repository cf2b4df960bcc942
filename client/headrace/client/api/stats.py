"""Statistics of a dataset, as numbers and as a table."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape

from headrace.client.feeds.blame import Culprit
from headrace.client.feeds.shortage import CacheShortage
from headrace.client.feeds.wait_times import HopSeconds


@dataclass(frozen=True, slots=True, repr=False)
class ClientStats:
    """Statistics of a dataset in this process; shown as a table.

    Attributes:
        waited_s: Seconds the loop waited for batches; compare it with the loop's own time to see
            how starved it was.
        reconnect_count: How often the client tried to reopen the stream; one fault may cost
            several tries.
        waited_on: The hops that the loop waited for; the rest of ``waited_s`` is the handover
            between threads.
        transport: How batches arrive at the moment, or arrived last: ``ring``, shared memory with a
            server on this host, ``grpc``, or ``host`` or ``broadcast`` from a rank that reads for
            others; empty before the first stream.
        transport_reason: Why it is gRPC, why a ring is smaller than requested, and who shares a
            stream or why nobody does; otherwise empty.
        transport_batch_count: Batches that came in another way than gRPC's messages.
        hedge_count: Late batches that a second server was asked for (`Transport.hedge`).
        hedge_won_count: Late batches that came from the second server first.
        cache_shortage: How the server's cache was too small when the latest stream began; None if
            it was not.
        culprit: Who kept the loop waiting in the last ten seconds; None before the first stream.
        damaged_count: Samples whose image cannot be decoded and that were replaced by others
            (``on_error="skip"``); `Batch.damaged_ids` has their ids.
    """

    waited_s: float = 0.0
    reconnect_count: int = 0
    waited_on: HopSeconds = field(default_factory=HopSeconds)
    transport: str = ""
    transport_reason: str = ""
    transport_batch_count: int = 0
    hedge_count: int = 0
    hedge_won_count: int = 0
    damaged_count: int = 0
    cache_shortage: CacheShortage | None = None
    culprit: Culprit | None = None

    def __add__(self, other: ClientStats) -> ClientStats:
        latest = other if other.transport else self
        return ClientStats(
            self.waited_s + other.waited_s,
            self.reconnect_count + other.reconnect_count,
            self.waited_on + other.waited_on,
            latest.transport,
            latest.transport_reason,
            self.transport_batch_count + other.transport_batch_count,
            self.hedge_count + other.hedge_count,
            self.hedge_won_count + other.hedge_won_count,
            self.damaged_count + other.damaged_count,
            latest.cache_shortage,
            latest.culprit,
        )

    def __repr__(self) -> str:
        rows = self._rows()
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)

    def _repr_html_(self) -> str:
        """Return the table as a notebook shows it."""
        rows = (
            f"<tr><th style='text-align:left'>{escape(name)}</th><td>{escape(value)}</td></tr>"
            for name, value in self._rows()
        )
        return f"<table>{''.join(rows)}</table>"

    def as_numbers(self) -> dict[str, float]:
        """Return all numbers by name, as totals since the dataset was made, for plots over time."""
        hops = {f"waited_on/{hop}_s": seconds for hop, seconds in self.waited_on._asdict().items()}
        shortage = self.cache_shortage
        missing_bytes = 0 if shortage is None else shortage.missing_bytes
        return {
            "waited_s": self.waited_s,
            **hops,
            "reconnects": self.reconnect_count,
            "transport_batches": self.transport_batch_count,
            "hedges": self.hedge_count,
            "hedges_won": self.hedge_won_count,
            "damaged": self.damaged_count,
            "cache_missing_bytes": missing_bytes,
        }

    def _rows(self) -> list[tuple[str, str]]:
        hops = [
            (f"  on {hop}", _seconds(seconds)) for hop, seconds in self.waited_on._asdict().items()
        ]
        transport = self.transport or "no stream yet"
        if self.transport_reason:
            transport += f" ({_printable(self.transport_reason)})"
        return [
            ("waited", _seconds(self.waited_s)),
            *hops,
            ("lately", str(self.culprit or "no stream yet")),
            ("reconnects", f"{self.reconnect_count:,}"),
            ("transport", transport),
            ("batches beside gRPC", f"{self.transport_batch_count:,}"),
            ("hedges", f"{self.hedge_count:,}, won {self.hedge_won_count:,}"),
            ("damaged samples", f"{self.damaged_count:,}"),
            ("server's cache", str(self.cache_shortage or "large enough")),
        ]


def _seconds(value: float) -> str:
    return f"{value:,.3f} s"


def _printable(text: str) -> str:
    # The text comes from a server, and may contain control characters.
    return "".join(letter if letter.isprintable() else "?" for letter in text)
