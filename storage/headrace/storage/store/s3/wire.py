"""Get ranges of objects over connections of our own, with as few calls as possible.

For 1 MiB without TLS, botocore's session takes 1.3 ms of processor time under Python's lock, half
of it whatever the length; this takes 0.57 (docs/decisions/which-client-reads-s3.md). It supports
only answers with a stated length, and no proxies; botocore does the rest.

Contract of `Wire.get`:

1. Success: the answer is complete, even if it is an error, and its connection is kept.
2. The store is silent for ``read_timeout_s``, or the answer takes longer than that and its length
   at `MIN_BYTES_PER_S`: `ReadTimeoutError`. The answer is cut off: `ConnectionClosedError`. The
   connection is closed.
3. If the store closed an idle connection, the request is sent over a new one at once. If it is
   silent over an idle connection, all idle ones are closed, because a gateway on the way may have
   forgotten them; so a retry uses a new one.
4. The answer is of an unsupported kind, or the certificate is not trusted: `OtherAnswerError`, and
   the connection is closed. This request, and all later ones for a minute (`is_usable`), must be
   sent by botocore. Then they are tried here again, because the fault may have passed.
5. An error of an unsupported kind, such as one without a length, which S3 itself sends, says
   nothing about later answers. If its status says that it is temporary, that status is the answer.
   Otherwise `OtherAnswerError`: botocore must send this one request, and reads the reason.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import re
import ssl
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus

from botocore.exceptions import (
    ConnectionClosedError,
    ConnectTimeoutError,
    EndpointConnectionError,
    ReadTimeoutError,
)

from headrace.storage.store.s3.connection import (
    Connection,
    EndlessHeadError,
    PlainConnection,
    StaleError,
    TlsConnection,
)

_MAX_ERROR_BYTES = 65536
_MAX_OBJECT_BYTES = 1 << 31

# Long enough that a failed attempt costs nothing, short enough that nobody restarts a server after
# correcting a certificate (arbitrary).
_PAUSE_S = 60.0

_NUMBER = re.compile(r"[0-9]{1,18}")


class OtherAnswerError(Exception):
    """The answer is of a kind that only botocore supports."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer of a store.

    Attributes:
        status: The HTTP status.
        headers: By names in lower case.
        content: The body.
    """

    status: int
    headers: Mapping[str, str]
    content: bytes


class Wire:
    """Connections to one store; thread-safe.

    Attributes:
        is_usable: Whether all answers of the last minute, except errors, were of the supported
            kind.

    Args:
        url: The URL of the store, for errors.
        address: Host and port.
        context: The trusted certificates; None for no TLS.
        connect_timeout_s: Longest wait for a connection.
        read_timeout_s: Longest silence.
        max_connections: The most connections to keep open.
        clock: Returns monotonic seconds.
    """

    def __init__(
        self,
        url: str,
        address: tuple[str, int],
        *,
        context: ssl.SSLContext | None = None,
        connect_timeout_s: float,
        read_timeout_s: float,
        max_connections: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._usable_at_s = clock()
        self._url = url
        self._address = address
        self._context = context
        self._connect_timeout_s = connect_timeout_s
        self._read_timeout_s = read_timeout_s
        self._max_connections = max_connections
        self._idle: list[Connection] = []
        # Closes the connections even if nobody closes the store.
        weakref.finalize(self, _close_all, self._idle)

    @property
    def is_usable(self) -> bool:
        return self._clock() >= self._usable_at_s

    def get(self, path: str, headers: Mapping[str, str], *, max_bytes: int) -> Reply:
        """Send a GET and return its answer.

        Args:
            path: The encoded path.
            headers: The headers, including ``Host``.
            max_bytes: Length of the range; a store that ignores ranges would send more.

        Raises:
            BotoCoreError: See the contract.
            OtherAnswerError: See the contract.
        """
        request = _request(path, headers)
        kept = self._idle_connection()
        if kept is not None:
            try:
                return self._ask(kept, request, max_bytes)
            except ReadTimeoutError:
                _close_all(self._idle)
                raise
            except StaleError:
                pass
        try:
            return self._ask(self._connect(), request, max_bytes)
        except StaleError as error:
            raise ConnectionClosedError(endpoint_url=self._url) from error

    def close(self) -> None:
        """Close idle connections."""
        _close_all(self._idle)

    def _pause(self) -> None:
        self._usable_at_s = self._clock() + _PAUSE_S

    def _idle_connection(self) -> Connection | None:
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _connect(self) -> Connection:
        connect_timeout_s, read_timeout_s = self._connect_timeout_s, self._read_timeout_s
        try:
            if self._context is None:
                return PlainConnection(
                    self._address,
                    connect_timeout_s=connect_timeout_s,
                    read_timeout_s=read_timeout_s,
                )
            return TlsConnection(
                self._address,
                context=self._context,
                connect_timeout_s=connect_timeout_s,
                read_timeout_s=read_timeout_s,
            )
        except ssl.SSLCertVerificationError as error:
            self._pause()
            raise OtherAnswerError(str(error)) from error
        except (TimeoutError, BlockingIOError) as error:
            raise ConnectTimeoutError(endpoint_url=self._url, error=error) from error
        except OSError as error:
            raise EndpointConnectionError(endpoint_url=self._url, error=error) from error

    def _ask(self, connection: Connection, request: bytes, max_bytes: int) -> Reply:
        is_kept = is_error = False
        try:
            connection.send(request)
            status, headers = _parsed(connection.head())
            is_error = status >= HTTPStatus.BAD_REQUEST
            if _is_temporary(status) and not _is_length_known(headers):
                return Reply(status, headers, b"")
            length = _length(status, headers, max_bytes)
            reply = Reply(status, headers, connection.body(length))
            is_kept = "close" not in headers.get("connection", "").lower()
        except (OtherAnswerError, EndlessHeadError) as error:
            if not is_error:
                self._pause()
            raise OtherAnswerError(str(error)) from error
        except BlockingIOError as error:
            raise ReadTimeoutError(endpoint_url=self._url, error=error) from error
        except (OSError, EOFError) as error:
            raise ConnectionClosedError(endpoint_url=self._url) from error
        else:
            return reply
        finally:
            if is_kept and len(self._idle) < self._max_connections:
                self._idle.append(connection)
            else:
                connection.close()


def _close_all(connections: list[Connection]) -> None:
    with suppress(IndexError):  # when other threads have taken the last ones
        while True:
            connections.pop().close()


def _request(path: str, headers: Mapping[str, str]) -> bytes:
    lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    head = "\r\n".join([*lines, "accept-encoding: identity", "user-agent: headrace", "", ""])
    if (
        not head.isascii()
        or head.count("\n") != len(lines) + 3
        or head.count("\r") != len(lines) + 3
    ):
        raise OtherAnswerError("a header of the request is not a single line of text")
    return head.encode("ascii")


def _parsed(head: bytes) -> tuple[int, dict[str, str]]:
    """Return the status and the headers of an answer."""
    first, *lines = head.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    status = rest[:3]
    if version != "HTTP/1.1" or not _NUMBER.fullmatch(status):
        raise OtherAnswerError(f"the answer starts with {first[:50]!r}")
    pairs = (line.partition(":") for line in lines)
    return int(status), {name.strip().lower(): value.strip() for name, _, value in pairs}


def _is_temporary(status: int) -> bool:
    """Return whether a status says that a retry may succeed."""
    return status == HTTPStatus.TOO_MANY_REQUESTS or status >= HTTPStatus.INTERNAL_SERVER_ERROR


def _is_length_known(headers: Mapping[str, str]) -> bool:
    stated = headers.get("content-length", "")
    return bool(_NUMBER.fullmatch(stated)) and "transfer-encoding" not in headers


def _length(status: int, headers: Mapping[str, str], max_bytes: int) -> int:
    stated = headers.get("content-length", "")
    most = _MAX_ERROR_BYTES
    if status == HTTPStatus.PARTIAL_CONTENT:
        most = max_bytes
    elif status == HTTPStatus.OK:
        most = _MAX_OBJECT_BYTES
    if not _is_length_known(headers) or status < HTTPStatus.OK or int(stated) > most:
        raise OtherAnswerError(f"the answer {status} has {stated or 'an unknown number of'} bytes")
    return int(stated)
