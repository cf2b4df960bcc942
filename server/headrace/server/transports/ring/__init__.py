"""Send batches through shared memory to clients on the same host."""

from headrace.server.transports.ring.rings import Rings as Plug
from headrace.server.transports.ring.settings import RingSettings

__all__ = ["Plug", "RingSettings"]
