"""The two ways on which batches travel, for tests that claim the same of both."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from headrace.client import Feeds, Landing, Transport, TransportState

TRANSPORTS = ("grpc", "ring")


@contextmanager
def listen_for(transport: str) -> Iterator[str]:
    """Give an address to listen on, from which clients take the transport by `feeds_for`."""
    if transport == "grpc":
        yield "127.0.0.1:0"
        return
    # pytest's own folders are too deep for the path of a socket.
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        yield f"unix:{folder}/s.sock"


def plain_memory(size: int) -> NDArray[np.uint8]:
    """Return memory for payloads that come in messages."""
    return np.empty(size, dtype=np.uint8)


def feeds_for(address: str) -> Feeds:
    """Return what opens feeds of the transport that the address is for, and of no other."""
    options = Transport("ring" if address.startswith("unix:") else "grpc")
    return Feeds(options, Landing(plain_memory, None, TransportState()), silence_s=10)
