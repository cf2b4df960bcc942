"""The settings of the lane."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from headrace.errors import ConfigurationError
from headrace.server.settings.numbers import check_numbers
from headrace.server.settings.plug_settings import PlugSettings

_BESIDE = 2
"""The port after gRPC's is that of health checks in our images."""
_PORTS = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneSettings(PlugSettings):
    """The settings of the lane.

    Attributes:
        lane: Port of the lane, a second connection for the bytes of batches, at the hosts of
            ``listen``: ``auto`` is gRPC's port plus 2, or any that is free if gRPC's is 0; ``off``
            is none.
        lane_ports: How many ports from that one on to choose from, >= 1; each of several worker
            processes takes one.
    """

    lane: str = "off"
    lane_ports: int = 1

    def __post_init__(self) -> None:
        check_numbers(self, least={"lane_ports": 1})
        port = self.lane
        is_port = port.isascii() and port.isdigit() and int(port) < _PORTS
        if port not in ("auto", "off") and not is_port:
            raise ConfigurationError(f"lane is {port!r}; expected a port, auto or off")

    def of_worker(self, worker_count: int) -> Self:
        return replace(self, lane_ports=max(self.lane_ports, worker_count))

    @property
    def is_on(self) -> bool:
        """Whether there is a lane."""
        return self.lane != "off"

    def ports(self, grpc_port: int) -> range:
        """Return the ports to choose from, given gRPC's; 0 is any that is free."""
        first = grpc_port + _BESIDE if self.lane == "auto" else int(self.lane)
        return range(first, min(first + self.lane_ports, _PORTS) if first else 1)
