"""What a user may set of the lane."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.client.options.transport import TransportOptions


@dataclass(frozen=True, slots=True)
class Lane(TransportOptions):
    """Lets ``Transport("auto")`` try the lane: a second connection, which costs less than gRPC.

    It is not tried with TLS, with which it is slower. A server's lane that cannot be used is not
    tried again for 5 minutes; batches come over gRPC.
    """
