"""Connections over which a store is asked: in clear text, and over TLS.

Contract of both, for one request after another:

1. `send`, `head` and `body` return when what they are to do is done, or raise an `OSError`; after
   that the connection is to be closed. `BlockingIOError` means that the store was silent for
   ``read_timeout_s``, or that the time for a body has passed.
2. No wait is longer than that: the system ends each after ``read_timeout_s``, and whoever receives
   in parts looks at the clock between two of them.
3. `StaleError`: the store closed the connection before it answered anything.
4. `body` returns exactly the bytes that it was asked for.

If the code differs, the code is wrong.

A TLS connection takes what has come from the system in large parts, and decrypts from memory.
`ssl.SSLSocket` asks the system twice for each record of 16 KiB.
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

# What TLS takes from the system at once (arbitrary: 3 ms at the rate of one connection to S3).
_TAKEN_BYTES = 256 << 10

# The most that a record of TLS holds (RFC 8446, section 5.1).
_RECORD_BYTES = 16 << 10

LEAST_BYTES_PER_S = 16 << 10
"""Slower than any store that is fit for training, but fast enough that a range ends."""

IS_POSSIBLE = hasattr(socket, "MSG_WAITALL") and hasattr(socket, "SO_RCVTIMEO")
"""Whether this system's sockets can do what is wanted of them."""


class StaleError(Exception):
    """The store has closed a connection before it answered anything over it."""


class EndlessHeadError(Exception):
    """An answer whose headers are too long."""


class Connection(Protocol):
    """A connection; the contract is above."""

    def send(self, request: bytes) -> None:
        """Send a request."""

    def head(self) -> bytes:
        """Return the status line and the headers of the next answer, without the empty line.

        Raises:
            StaleError: There is no answer.
            EOFError: It breaks off.
            EndlessHeadError: It is too long.
        """

    def body(self, length: int) -> bytes:
        """Return what follows the head.

        Raises:
            EOFError: The answer breaks off.
        """

    def close(self) -> None:
        """Close it."""


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
            # Returns early when the time-out passes, with what came so far.
            part = self._socket.recv(left, socket.MSG_WAITALL)
            if not part:
                raise EOFError
            left -= len(part)
            parts.append(part)
            if left and time.monotonic() > deadline:
                raise BlockingIOError(f"{left} of {length} bytes missing")
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        self._socket.close()


class TlsConnection:
    """A connection over TLS.

    Args:
        address: Host and port.
        context: Whom to trust.
        connect_timeout_s: Longest wait for the connection, and then for the handshake.
        read_timeout_s: Longest silence.

    Raises:
        ssl.SSLCertVerificationError: The store is not to be trusted.
        OSError: There is no connection.
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
            self._plain = _Decrypted(connected, context, address[0])
            self._plain.shake_hands(time.monotonic() + connect_timeout_s)
        except BaseException:
            connected.close()
            raise
        self._socket = connected
        self._read_timeout_s = read_timeout_s
        # It reads long bodies to where they are to be, without a copy.
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


class _Decrypted(io.RawIOBase):
    """What a store sends over TLS, as a file without a buffer.

    Attributes:
        deadline: When to give up, by the monotonic clock.
    """

    def __init__(self, connected: socket.socket, context: ssl.SSLContext, host: str) -> None:
        super().__init__()
        self.deadline = 0.0
        self._socket = connected
        self._received, self._to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._received, self._to_send, server_hostname=host)

    def shake_hands(self, deadline: float) -> None:
        """Agree on keys, and look whether the store is the one that it is to be."""
        self.deadline = deadline
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._flush()
                if not self._receive(0):
                    raise ConnectionResetError("the store hung up") from None
            else:
                self._flush()
                return

    def send(self, content: bytes) -> None:
        """Send all of it."""
        self._tls.write(content)
        self._flush()

    def readable(self) -> bool:
        """Say yes."""
        return True

    def readinto(self, into: memoryview) -> int:  # type: ignore[override]  # `BufferedReader` gives nothing else
        """Fill a buffer; one for heads only as far as there is something. 0 at the end."""
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

    def _receive(self, sure_bytes: int) -> bool:
        """Take what has come; return whether there was anything before the end.

        Args:
            sure_bytes: How much is still to be decrypted; all but a record is waited for at once.
        """
        if time.monotonic() > self.deadline:
            raise BlockingIOError("the answer takes too long")
        # Of the record that has come in part OpenSSL does not say how much it holds.
        sure_bytes = min(sure_bytes - _RECORD_BYTES, _TAKEN_BYTES)
        if sure_bytes > 0:
            content = self._socket.recv(sure_bytes, socket.MSG_WAITALL)
        else:
            content = self._socket.recv(_TAKEN_BYTES)
        self._received.write(content)
        return bool(content)

    def _flush(self) -> None:
        if self._to_send.pending:
            self._socket.sendall(self._to_send.read())


def trusting(certificates: str) -> ssl.SSLContext:
    """Return what checks the certificates of stores, as botocore does.

    Args:
        certificates: File of those that are trusted.
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
    # Waiting is left to the system, in one call for a whole body.
    connected.settimeout(None)
    whole_s, part_s = divmod(read_timeout_s, 1)
    timeout = struct.pack("ll", int(whole_s), int(part_s * 1e6))
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)
    return connected


def _send(send: Callable[[bytes], None], request: bytes) -> None:
    """Send a request; a connection that takes none was closed by the store."""
    try:
        send(request)
    except BlockingIOError:
        raise
    except OSError as error:
        raise StaleError from error


def _deadline(read_timeout_s: float, length: int) -> float:
    return time.monotonic() + read_timeout_s + length / LEAST_BYTES_PER_S
