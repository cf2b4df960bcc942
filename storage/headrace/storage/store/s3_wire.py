"""Read ranges from a store over our own connections, with as few calls as possible.

For 1 MiB of a store without TLS, botocore's session takes 1.3 ms of processor time under Python's
lock, half of it independent of the length; this module takes 0.57 ms
(docs/decisions/how-fast-cold-reads-are.md). It supports one kind of answer, with a length, and
connections without TLS and proxies. Botocore handles everything else.

Contract of `PlainWire.get`:

1. Success: the answer is complete, even if it is an error of the store, and its connection is kept.
2. `ReadTimeoutError` if the store is silent for ``read_timeout_s``, or the answer takes longer than
   that plus its length at `_LEAST_BYTES_PER_S`. `ConnectionClosedError` if the answer breaks off.
   In both cases the connection is closed.
3. If the store closed a connection while it was idle, the request is sent over a new one at once.
4. An answer of another kind: `OtherAnswerError`, and the connection is closed. This request and all
   later ones (`is_understood`) must be made in another way.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import socket
import struct
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus

from botocore.exceptions import (
    ConnectionClosedError,
    ConnectTimeoutError,
    EndpointConnectionError,
    ReadTimeoutError,
)

_PEEKED_BYTES = 4096
_MAX_HEAD_BYTES = 65536
_MAX_ERROR_BYTES = 65536
_MAX_OBJECT_BYTES = 1 << 31
_HEAD_END = b"\r\n\r\n"

# Slower than any store that is usable for training, but bounds the time of a range.
_LEAST_BYTES_PER_S = 16 << 10

IS_POSSIBLE = hasattr(socket, "MSG_WAITALL") and hasattr(socket, "SO_RCVTIMEO")
"""Whether this system's sockets have the necessary options."""


class OtherAnswerError(Exception):
    """An answer of a kind that is not supported here."""


class _StaleError(Exception):
    """The store closed a connection before it received the request."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer of a store.

    Attributes:
        status: The HTTP status.
        headers: The headers, by names in lower case.
        content: The body.
    """

    status: int
    headers: Mapping[str, str]
    content: bytes


class PlainWire:
    """Connections to one store; thread-safe.

    Attributes:
        is_understood: Whether all answers so far were of the supported kind.

    Args:
        url: The URL of the store, for errors.
        address: Host and port.
        connect_timeout_s: Longest wait for a connection.
        read_timeout_s: Longest silence.
        max_connections: The most connections to keep open.
    """

    def __init__(
        self,
        url: str,
        address: tuple[str, int],
        *,
        connect_timeout_s: float,
        read_timeout_s: float,
        max_connections: int,
    ) -> None:
        self.is_understood = True
        self._url = url
        self._address = address
        self._connect_timeout_s = connect_timeout_s
        self._read_timeout_s = read_timeout_s
        self._max_connections = max_connections
        self._idle: list[socket.socket] = []
        # Closes the connections even if nobody closes the store.
        weakref.finalize(self, _close_all, self._idle)

    def get(self, path: str, headers: Mapping[str, str], *, most_bytes: int) -> Reply:
        """Send a GET and return its answer.

        Args:
            path: The encoded path.
            headers: The headers, including ``Host``.
            most_bytes: Length of the range; a store that ignores ranges would send more.

        Raises:
            BotoCoreError: See the contract.
            OtherAnswerError: See the contract.
        """
        request = _request(path, headers)
        try:
            return self._ask(self._idle.pop(), request, most_bytes)
        except (IndexError, _StaleError):
            pass
        try:
            return self._ask(self._connect(), request, most_bytes)
        except _StaleError as error:
            raise ConnectionClosedError(endpoint_url=self._url) from error

    def close(self) -> None:
        """Close idle connections."""
        _close_all(self._idle)

    def _connect(self) -> socket.socket:
        try:
            connection = socket.create_connection(self._address, self._connect_timeout_s)
        except TimeoutError as error:
            raise ConnectTimeoutError(endpoint_url=self._url, error=error) from error
        except OSError as error:
            raise EndpointConnectionError(endpoint_url=self._url, error=error) from error
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A blocking socket, so that a whole body takes one system call.
        connection.settimeout(None)
        whole_s, part_s = divmod(self._read_timeout_s, 1)
        timeout = struct.pack("ll", int(whole_s), int(part_s * 1e6))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)
        return connection

    def _ask(self, connection: socket.socket, request: bytes, most_bytes: int) -> Reply:
        is_kept = False
        try:
            status, headers = _head(connection, request)
            length = _length(status, headers, most_bytes)
            reply = Reply(status, headers, self._body(connection, length))
            is_kept = "close" not in headers.get("connection", "").lower()
        except OtherAnswerError:
            self.is_understood = False
            raise
        except BlockingIOError as error:
            raise ReadTimeoutError(endpoint_url=self._url, error=error) from error
        except OSError as error:
            raise ConnectionClosedError(endpoint_url=self._url) from error
        else:
            return reply
        finally:
            if is_kept and len(self._idle) < self._max_connections:
                self._idle.append(connection)
            else:
                connection.close()

    def _body(self, connection: socket.socket, length: int) -> bytes:
        deadline = time.monotonic() + self._read_timeout_s + length / _LEAST_BYTES_PER_S
        parts: list[bytes] = []
        left = length
        while left:
            # Returns early after the timeout, with the bytes received so far.
            part = connection.recv(left, socket.MSG_WAITALL)
            if not part:
                raise ConnectionClosedError(endpoint_url=self._url)
            left -= len(part)
            parts.append(part)
            if left and time.monotonic() > deadline:
                raise ReadTimeoutError(
                    endpoint_url=self._url, error=f"{left} of {length} bytes missing"
                )
        return parts[0] if len(parts) == 1 else b"".join(parts)


def _close_all(connections: list[socket.socket]) -> None:
    while connections:
        connections.pop().close()


def _request(path: str, headers: Mapping[str, str]) -> bytes:
    lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    head = "\r\n".join([*lines, "accept-encoding: identity", "user-agent: headrace", "", ""])
    if (
        not head.isascii()
        or head.count("\n") != len(lines) + 3
        or head.count("\r") != len(lines) + 3
    ):
        raise OtherAnswerError("a header that is not a single line of text")
    return head.encode("ascii")


def _head(connection: socket.socket, request: bytes) -> tuple[int, dict[str, str]]:
    """Send a request, and return the status and headers of the answer without reading its body."""
    try:
        connection.sendall(request)
        seen = connection.recv(_PEEKED_BYTES, socket.MSG_PEEK)
    except BlockingIOError:
        raise
    except OSError as error:
        raise _StaleError from error
    if not seen:
        raise _StaleError
    before = b""
    while (end := (before + seen).find(_HEAD_END)) < 0:
        before += connection.recv(len(seen), socket.MSG_WAITALL)
        seen = connection.recv(_PEEKED_BYTES, socket.MSG_PEEK)
        if not seen or len(before) > _MAX_HEAD_BYTES:
            raise OtherAnswerError("an answer whose headers do not end")
    head = before + connection.recv(end + len(_HEAD_END) - len(before), socket.MSG_WAITALL)
    first, *lines = head[:end].decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    status = rest[:3]
    if version != "HTTP/1.1" or not status.isdigit():
        raise OtherAnswerError(f"an answer that starts with {first[:50]!r}")
    pairs = (line.partition(":") for line in lines)
    return int(status), {name.strip().lower(): value.strip() for name, _, value in pairs}


def _length(status: int, headers: Mapping[str, str], most_bytes: int) -> int:
    stated = headers.get("content-length", "")
    is_known = stated.isdigit() and "transfer-encoding" not in headers
    most = _MAX_ERROR_BYTES
    if status == HTTPStatus.PARTIAL_CONTENT:
        most = most_bytes
    elif status == HTTPStatus.OK:
        most = _MAX_OBJECT_BYTES
    if not is_known or status < HTTPStatus.OK or int(stated) > most:
        raise OtherAnswerError(f"an answer {status} of {stated or 'an unknown number of'} bytes")
    return int(stated)
