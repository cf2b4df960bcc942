"""What a dataset has been through, as numbers and as a table."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from html import escape

from headrace.client.feeds.wait_times import HopSeconds


@dataclass(frozen=True, slots=True, repr=False)
class ClientStats:
    """What a dataset has been through, in this process; a table where it is shown.

    Attributes:
        waited_s: Seconds the loop waited for batches; beside the loop's own time this is how
            starved it was.
        reconnect_count: How often it was tried to open the stream again; a server that is away
            for a while costs several tries, so this counts no faults.
        waited_on: The hops that ``waited_s`` went to; what is missing to the sum went to the
            handover between threads.
        transport: How batches come at the moment, or came last: ``ring``, shared memory with a
            server on this host, or ``grpc``; empty before the first stream.
        transport_reason: Why not through a ring, or why that is smaller than was asked for; else
            empty.
        ring_batch_count: Batches that came through a ring.
        hedge_count: Late batches that a second server was asked for (``hedge=``).
        hedge_won_count: Those that came from it first.
    """

    waited_s: float = 0.0
    reconnect_count: int = 0
    waited_on: HopSeconds = field(default_factory=HopSeconds)
    transport: str = ""
    transport_reason: str = ""
    ring_batch_count: int = 0
    hedge_count: int = 0
    hedge_won_count: int = 0

    def __add__(self, other: ClientStats) -> ClientStats:
        latest = other if other.transport else self
        return ClientStats(
            self.waited_s + other.waited_s,
            self.reconnect_count + other.reconnect_count,
            self.waited_on + other.waited_on,
            latest.transport,
            latest.transport_reason,
            self.ring_batch_count + other.ring_batch_count,
            self.hedge_count + other.hedge_count,
            self.hedge_won_count + other.hedge_won_count,
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
        """Return what can be drawn over time, by name: all totals since the dataset was made."""
        hops = {
            f"waited_on/{hop.name}_s": float(getattr(self.waited_on, hop.name))
            for hop in fields(HopSeconds)
        }
        return {
            "waited_s": self.waited_s,
            **hops,
            "reconnects": self.reconnect_count,
            "ring_batches": self.ring_batch_count,
            "hedges": self.hedge_count,
            "hedges_won": self.hedge_won_count,
        }

    def _rows(self) -> list[tuple[str, str]]:
        hops = [
            (f"  on {hop.name}", _seconds(getattr(self.waited_on, hop.name)))
            for hop in fields(HopSeconds)
        ]
        transport = self.transport or "no stream yet"
        if self.transport_reason:
            transport += f" ({_printable(self.transport_reason)})"
        return [
            ("waited", _seconds(self.waited_s)),
            *hops,
            ("reconnects", f"{self.reconnect_count:,}"),
            ("transport", transport),
            ("batches by ring", f"{self.ring_batch_count:,}"),
            ("hedges", f"{self.hedge_count:,}, won {self.hedge_won_count:,}"),
        ]


def _seconds(value: float) -> str:
    return f"{value:,.3f} s"


def _printable(text: str) -> str:
    # A server's words, which may hold what moves a terminal's cursor.
    return "".join(letter if letter.isprintable() else "?" for letter in text)
