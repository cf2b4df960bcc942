"""Read batches over a second TCP connection, which costs less than gRPC's messages: the lane."""

from headrace.client.transports.lane.attach import LanePlug as Plug

__all__ = ["Plug"]
