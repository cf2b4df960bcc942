"""HTTP/2 as no client of gRPC's speaks it: frames made by hand, over a socket."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import hpack

DATA, HEADERS, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 8, 9
END_STREAM, END_HEADERS, ACK = 1, 4, 1
INITIAL_WINDOW_SIZE = 4

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_TIMEOUT_S = 5.0
_HEAD = 9


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return one frame."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def settings(*pairs: tuple[int, int]) -> bytes:
    """Return a frame of settings."""
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", *pair) for pair in pairs))


def header_block(
    method: str, metadata: Sequence[tuple[str, str]] = (), *, is_huffman: bool = False
) -> bytes:
    """Return the compressed headers of a call; they leave nothing in the receiver's table."""
    encoder = hpack.Encoder()
    encoder.header_table_size = 0
    headers = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", method),
        (":authority", "server"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        *metadata,
    ]
    return bytes(encoder.encode(headers, huffman=is_huffman))


def message(request: bytes) -> bytes:
    """Return a request as gRPC frames it."""
    return struct.pack(">BI", 0, len(request)) + request


def call(stream: int, block: bytes, request: bytes | None, *, is_last: bool = True) -> bytes:
    """Return the frames of a call; None for one whose request does not come."""
    begun = frame(HEADERS, END_HEADERS, stream, block)
    if request is None:
        return begun
    return begun + frame(DATA, END_STREAM if is_last else 0, stream, message(request))


@contextmanager
def connected(
    place: tuple[str, int], *pairs: tuple[int, int], source: str = ""
) -> Iterator[socket.socket]:
    """Connect, from an address if one is given, and say the preface with some settings."""
    with socket.create_connection(place, _TIMEOUT_S, (source, 0)) as connection:
        connection.sendall(PREFACE + settings(*pairs) + frame(SETTINGS, ACK, 0))
        yield connection


def drain(connection: socket.socket) -> bool:
    """Throw away what has come; return False if the other end is closed."""
    connection.setblocking(False)
    try:
        while connection.recv(1 << 16):
            pass
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        connection.settimeout(_TIMEOUT_S)
    return False


def frames_in(data: bytes) -> tuple[list[tuple[int, int, bytes]], bytes]:
    """Return the kind, the flags and the payload of each whole frame, and the bytes after them."""
    found, at = [], 0
    while len(data) >= at + _HEAD:
        end = at + _HEAD + int.from_bytes(data[at : at + 3])
        if end > len(data):
            break
        found.append((data[at + 3], data[at + 4], data[at + _HEAD : end]))
        at = end
    return found, data[at:]
