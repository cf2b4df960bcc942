"""Read batches from memory that a server on the same host shares: the ring."""

from headrace.client.transports.ring.attach import RingPlug as Plug

__all__ = ["Plug"]
