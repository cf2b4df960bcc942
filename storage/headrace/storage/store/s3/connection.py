"""Connections to a store, with and without TLS.

Contract of both, for one request after another:

1. `send`, `head` and `body` return when they are done, or raise an `OSError`; the caller then
   closes the connection. `BlockingIOError`: the store was silent for ``read_timeout_s``, or the
   answer took longer than that and its length at `MIN_BYTES_PER_S`.
2. No wait is longer: the system ends each receive after ``read_timeout_s``, and the deadline is
   checked between two of them.
3. `StaleError`: the store closed the connection before it sent any part of the answer.
4. `body` returns exactly as many bytes as requested.

If the code differs, the code is wrong.

A TLS connection receives large parts and decrypts them from memory. `ssl.SSLSocket` makes two
system calls for each record of 16 KiB.
"""

from __future__ import annotations

import io
import socket
import ssl
import struct
import time
from collections.abc import Callable
from typing import Protocol

from botocore.httpsession import create_urllib3_context

_PEEKED_BYTES = 4096
_MAX_HEAD_BYTES = 65536
_HEAD_END = b"\r\n\r\n"

# Received at once over TLS (arbitrary: 3 ms at the rate of one connection to S3).
_RECEIVED_BYTES = 256 << 10

# The most bytes in a TLS record (RFC 8446, section 5.1).
_RECORD_BYTES = 16 << 10

MIN_BYTES_PER_S = 16 << 10
"""Slower than any store that is fit for training, but fast enough that a range ends."""

IS_SUPPORTED = hasattr(socket, "MSG_WAITALL") and hasattr(socket, "SO_RCVTIMEO")
"""Whether the sockets of this system support what the connections need."""


class StaleError(Exception):
    """The store closed the connection before it sent any part of an answer."""


class EndlessHeadError(Exception):
    """The headers of an answer are too long."""


class Connection(Protocol):
    """A connection; the contract is above."""

    def send(self, request: bytes) -> None:
        """Send a request."""

    def head(self) -> bytes:
        """Return the status line and the headers of the next answer, without the empty line.

        Raises:
            StaleError: The connection was closed before any answer.
            EOFError: The headers are cut off.
            EndlessHeadError: They are too long.
        """

    def body(self, length: int) -> bytes:
        """Return the next ``length`` bytes, which follow the head.

        Raises:
            EOFError: The body is cut off.
        """

    def close(self) -> None:
        """Close the connection."""


class PlainConnection:
    """A connection in clear text.

    Args:
        address: Host and port.
        connect_timeout_s: Longest wait for the connection.
        read_timeout_s: Longest silence.
    """

    def __init__(
        self, address: tuple[str, int], *, connect_timeout_s: float, read_timeout_s: float
    ) -> None:
        self._socket = _connected(address, connect_timeout_s, read_timeout_s)
        self._read_timeout_s = read_timeout_s

    def send(self, request: bytes) -> None:
        _send(self._socket.sendall, request)

    def head(self) -> bytes:
        receive = self._socket.recv
        try:
            seen = receive(_PEEKED_BYTES, socket.MSG_PEEK)
        except BlockingIOError:
            raise
        except OSError as error:
            raise StaleError from error
        if not seen:
            raise StaleError
        deadline = _deadline(self._read_timeout_s, _MAX_HEAD_BYTES)
        before = b""
        while (end := (before + seen).find(_HEAD_END)) < 0:
            before += receive(len(seen), socket.MSG_WAITALL)
            seen = receive(_PEEKED_BYTES, socket.MSG_PEEK)
            if not seen:
                raise EOFError("the headers break off")
            if len(before) > _MAX_HEAD_BYTES:
                raise EndlessHeadError
            if time.monotonic() > deadline:
                raise BlockingIOError(f"the headers take too long: {len(before)} bytes so far")
        head = before + receive(end + len(_HEAD_END) - len(before), socket.MSG_WAITALL)
        return head[:end]

    def body(self, length: int) -> bytes:
        deadline = _deadline(self._read_timeout_s, length)
        parts: list[bytes] = []
        left = length
        while left:
            # Returns early, with what has arrived, when the timeout passes.
            part = self._socket.recv(left, socket.MSG_WAITALL)
            if not part:
                raise EOFError
            left -= len(part)
            parts.append(part)
            if left and time.monotonic() > deadline:
                raise BlockingIOError(f"{left} of {length} bytes are missing")
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        self._socket.close()


class TlsConnection:
    """A connection over TLS.

    Args:
        address: Host and port.
        context: The trusted certificates.
        connect_timeout_s: Longest wait for the connection, and then for the handshake.
        read_timeout_s: Longest silence.

    Raises:
        ssl.SSLCertVerificationError: The certificate of the store is not trusted.
        OSError: The store cannot be reached.
    """

    def __init__(
        self,
        address: tuple[str, int],
        *,
        context: ssl.SSLContext,
        connect_timeout_s: float,
        read_timeout_s: float,
    ) -> None:
        connected = _connected(address, connect_timeout_s, read_timeout_s)
        try:
            self._plain = _TlsBytes(connected, context, address[0])
            self._plain.handshake(time.monotonic() + connect_timeout_s)
        except BaseException:
            connected.close()
            raise
        self._socket = connected
        self._read_timeout_s = read_timeout_s
        # It reads long bodies into their final memory, without a copy.
        self._reader = io.BufferedReader(self._plain, _PEEKED_BYTES)

    def send(self, request: bytes) -> None:
        _send(self._plain.send, request)

    def head(self) -> bytes:
        self._plain.deadline = _deadline(self._read_timeout_s, _MAX_HEAD_BYTES)
        try:
            head = self._reader.readline(_MAX_HEAD_BYTES)
        except (BlockingIOError, ssl.SSLError):
            raise
        except OSError as error:
            raise StaleError from error
        if not head:
            raise StaleError
        while not head.endswith(_HEAD_END):
            line = self._reader.readline(_MAX_HEAD_BYTES)
            head += line
            if not line:
                raise EOFError("the headers break off")
            if len(head) > _MAX_HEAD_BYTES:
                raise EndlessHeadError
        return head.removesuffix(_HEAD_END)

    def body(self, length: int) -> bytes:
        self._plain.deadline = _deadline(self._read_timeout_s, length)
        content = self._reader.read(length)
        if len(content) != length:
            raise EOFError
        return content

    def close(self) -> None:
        self._socket.close()


class _TlsBytes(io.RawIOBase):
    """The decrypted bytes of a TLS connection, as an unbuffered file.

    Attributes:
        deadline: When to give up, by the monotonic clock.
    """

    def __init__(self, connected: socket.socket, context: ssl.SSLContext, host: str) -> None:
        super().__init__()
        self.deadline = 0.0
        self._socket = connected
        self._received, self._to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._received, self._to_send, server_hostname=host)

    def handshake(self, deadline: float) -> None:
        """Do the TLS handshake, which verifies the certificate of the store."""
        self.deadline = deadline
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._flush()
                if not self._receive(0):
                    raise ConnectionResetError("the store closed the connection") from None
            else:
                self._flush()
                return

    def send(self, content: bytes) -> None:
        """Encrypt and send all bytes."""
        self._tls.write(content)
        self._flush()

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, into: memoryview) -> int:  # type: ignore[override]  # `BufferedReader` gives nothing else
        """Fill a buffer, for headers only with what has arrived; 0 at the end."""
        is_body = len(into) > _PEEKED_BYTES
        count = 0
        while count < len(into):
            try:
                found = self._tls.read(len(into) - count, into[count:])
            except ssl.SSLWantReadError:
                self._flush()
                if count and not is_body:
                    break
                if not self._receive(len(into) - count if is_body else 0):
                    break
                continue
            if not found:
                break
            count += int(found)
        return count

    def _receive(self, missing_bytes: int) -> bool:
        """Receive encrypted bytes, and return whether there were any before the end.

        Args:
            missing_bytes: Decrypted bytes still to come; all but one record are received at once.
        """
        if time.monotonic() > self.deadline:
            raise BlockingIOError("the answer takes too long")
        # OpenSSL may hold an incomplete record, and does not tell its length.
        certain_bytes = min(missing_bytes - _RECORD_BYTES, _RECEIVED_BYTES)
        if certain_bytes > 0:
            content = self._socket.recv(certain_bytes, socket.MSG_WAITALL)
        else:
            content = self._socket.recv(_RECEIVED_BYTES)
        self._received.write(content)
        return bool(content)

    def _flush(self) -> None:
        if self._to_send.pending:
            self._socket.sendall(self._to_send.read())


def tls_context(certificates: str) -> ssl.SSLContext:
    """Return a TLS context that verifies certificates as botocore does.

    Args:
        certificates: The file of the trusted certificates.
    """
    context: ssl.SSLContext = create_urllib3_context()
    context.load_verify_locations(certificates)
    context.check_hostname = True
    return context


def _connected(
    address: tuple[str, int], connect_timeout_s: float, read_timeout_s: float
) -> socket.socket:
    connected = socket.create_connection(address, connect_timeout_s)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # The system waits, so one call can receive a whole body.
    connected.settimeout(None)
    whole_s, part_s = divmod(read_timeout_s, 1)
    timeout = struct.pack("ll", int(whole_s), int(part_s * 1e6))
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)
    return connected


def _send(send: Callable[[bytes], None], request: bytes) -> None:
    """Send a request; any failure but a timeout means that the store closed the connection."""
    try:
        send(request)
    except BlockingIOError:
        raise
    except OSError as error:
        raise StaleError from error


def _deadline(read_timeout_s: float, length: int) -> float:
    return time.monotonic() + read_timeout_s + length / MIN_BYTES_PER_S
