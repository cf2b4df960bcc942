"""The ways on which batches travel, for tests that claim the same of all."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from headrace.client import Feeds, Landing, Transport, TransportState
from headrace.server.settings.plug_settings import PlugSettings
from headrace.server.transports.lane import LaneSettings

TRANSPORTS = ("grpc", "ring", "lane")

_OF_LANES = "127.0.0.2"


@contextmanager
def listen_for(transport: str) -> Iterator[str]:
    """Give an address to listen on, from which clients take the transport by `feeds_for`."""
    if transport != "ring":
        yield f"{_OF_LANES if transport == 'lane' else '127.0.0.1'}:0"
        return
    # pytest's own folders are too deep for the path of a socket.
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        yield f"unix:{folder}/s.sock"


def plugs_for(transport: str) -> tuple[PlugSettings, ...]:
    """Return the settings with which a server has the transport."""
    return (LaneSettings(lane="auto"),) if transport == "lane" else ()


def kind_for(address: str) -> str:
    """Return the transport that the address is for."""
    if address.startswith("unix:"):
        return "ring"
    return "lane" if address.startswith(_OF_LANES) else "grpc"


def plain_memory(size: int) -> NDArray[np.uint8]:
    """Return memory for payloads that come in messages."""
    return np.empty(size, dtype=np.uint8)


def feeds_for(address: str) -> Feeds:
    """Return what opens feeds of the transport that the address is for, and of no other."""
    landing = Landing(plain_memory, None, TransportState())
    return Feeds(Transport(kind_for(address)), landing, silence_s=10)
