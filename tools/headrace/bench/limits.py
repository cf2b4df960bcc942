"""Measure the best rates of this machine: memory, a socket and a file."""

from __future__ import annotations

import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

_MIB = 1 << 20
_BUFFER_BYTES = 64 * _MIB  # much larger than any processor cache
_PART_BYTES = _MIB
_ROUNDS = 5
_WAIT_S = 30.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Rates in MiB/s, each the best of five measurements.

    Attributes:
        memcpy: One thread copies memory.
        socket: Bytes pass a TCP connection over the loopback.
        file: One thread reads a file from the page cache.
    """

    memcpy: float
    socket: float
    file: float

    def or_better(self, other: Limits) -> Limits:
        """Return the better value of each rate."""
        return Limits(
            memcpy=max(self.memcpy, other.memcpy),
            socket=max(self.socket, other.socket),
            file=max(self.file, other.file),
        )


def measure_limits() -> Limits:
    """Measure the limits, in a few seconds."""
    return Limits(memcpy=_best_rate(_memcpy), socket=_best_rate(_socket), file=_best_rate(_file()))


def _best_rate(run: Callable[[], None]) -> float:
    run()  # touches the memory
    rates = []
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        run()
        rates.append(_BUFFER_BYTES / _MIB / (time.perf_counter() - start))
    return max(rates)


_SOURCE = np.ones(_BUFFER_BYTES, dtype=np.uint8)
_TARGET = np.empty_like(_SOURCE)


def _memcpy() -> None:
    np.copyto(_TARGET, _SOURCE)


def _socket() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sender = threading.Thread(target=_send, args=(listener.getsockname()[1],))
        sender.start()
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(_WAIT_S)
            view, received = _TARGET.data, 0
            while received < _BUFFER_BYTES:
                received += connection.recv_into(view[received : received + _PART_BYTES])
        sender.join(_WAIT_S)


def _send(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=_WAIT_S) as connection:
        connection.sendall(_SOURCE.data)


def _file() -> Callable[[], None]:
    folder = tempfile.TemporaryDirectory()
    path = Path(folder.name) / "bytes"
    path.write_bytes(_SOURCE.tobytes())

    def read(folder: tempfile.TemporaryDirectory[str] = folder) -> None:
        del folder  # the default keeps it as long as this function
        file = os.open(path, os.O_RDONLY)
        try:
            view, received = _TARGET.data, 0
            while received < _BUFFER_BYTES:
                received += os.readv(file, [view[received : received + _PART_BYTES]])
        finally:
            os.close(file)

    return read
