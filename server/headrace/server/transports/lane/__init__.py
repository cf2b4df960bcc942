"""Send batches over a second TCP connection, which costs less than gRPC's messages: the lane."""

from headrace.server.transports.lane.lanes import Lanes as Plug
from headrace.server.transports.lane.settings import LaneSettings

__all__ = ["LaneSettings", "Plug"]
