"""The ways on which batches travel, for tests that claim the same of all."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from headrace.client import (
    BatchEvent,
    BatchReader,
    Deadlines,
    Feeds,
    Landing,
    Place,
    ReadOptions,
    Transport,
    TransportState,
)
from headrace.order import decode_token
from headrace.server.settings.plug_settings import PlugSettings
from headrace.server.transports.lane import LaneSettings

TRANSPORTS = ("grpc", "ring", "lane", "lz4")

_HOSTS = {"grpc": "127.0.0.1", "lane": "127.0.0.2", "lz4": "127.0.0.3"}
"""By the address alone, a client knows which transport a test means."""


@contextmanager
def listen_for(transport: str) -> Iterator[str]:
    """Give an address to listen on, from which clients take the transport by `feeds_for`."""
    if transport != "ring":
        yield f"{_HOSTS[transport]}:0"
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
    return next(kind for kind, host in _HOSTS.items() if address.startswith(f"{host}:"))


def batches_of(
    address: str, options: ReadOptions, token: bytes | None = None, *, wait_s: float = 20
) -> list[BatchEvent]:
    """Read all batches from a token on by the transport that the address is for."""
    at = None if token is None else decode_token(token)
    reader = BatchReader(
        [address],
        options,
        place=Place() if at is None else Place(at.epoch, at.position, token),
        deadlines=Deadlines(connect_s=wait_s, silence_s=wait_s, give_up_s=wait_s),
        allocate=plain_memory,
        open_feed=feeds_for(address),
    )
    return [event for event in reader.events() if isinstance(event, BatchEvent)]


def plain_memory(size: int) -> NDArray[np.uint8]:
    """Return memory for payloads that come in messages."""
    return np.empty(size, dtype=np.uint8)


def feeds_for(address: str) -> Feeds:
    """Return what opens feeds of the transport that the address is for, and of no other."""
    landing = Landing(plain_memory, None, TransportState())
    return Feeds(Transport(kind_for(address)), landing, silence_s=10)
