"""Get ranges of objects at half the processor time of boto3.

A request of boto3 takes 2 ms of processor time under Python's lock, independent of its size, so one
process can read 400 to 500 ranges a second. Most of that work is the same for every request. So
boto3 makes the first request to a store, and the others repeat it with another key, range and
signature, through botocore's own HTTP session.

Contract:

1. The first request goes through boto3. The request that was answered, after all redirects, shows
   the URL, the region and service it was signed for, and its headers.
2. Later requests are signed with the current credentials, so expiring ones are renewed.
3. An error in the answer becomes the error that boto3 would have raised. If it may mean another
   region, boto3 repeats the request and follows the redirect, and so do later requests.
4. If the first request cannot be repeated like this (another signature, a URL that does not end
   with the key), all requests go through boto3.
5. If the store is reached without proxies, later requests of known length use our own connections
   (`headrace.storage.store.s3.wire`), as long as the answers are of the kind that is supported
   there.
6. GETs of boto3 use our sessions too, so that a read waits no longer than ``read_timeout_s`` for a
   silent store, and a listing no longer than ``write_timeout_s``: boto3 has only one timeout for
   all operations. A body that arrives slowly may take that time and its length at
   `MIN_BYTES_PER_S`.
7. If a store or a proxy ignores ranges and sends the whole object, it is read up to the end of the
   range, and the rest of it is cut off.
8. Every answer states which bytes of the object it has, and those must be the requested ones:
   otherwise `WrongBytesError`. An answer to a request without a range must be the whole object.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import io
import re
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from html import unescape
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.exceptions import ClientError, IncompleteReadError, ReadTimeoutError
from botocore.httpsession import URLLib3Session, get_cert_path
from botocore.utils import get_environ_proxies, percent_encode
from urllib3.response import HTTPResponse

from headrace.storage.store.byte_range import ByteRange
from headrace.storage.store.s3.connection import IS_SUPPORTED, MIN_BYTES_PER_S, tls_context
from headrace.storage.store.s3.errors import EXPIRED
from headrace.storage.store.s3.sigv4 import SigningKeys, SigningScope, signed_get_headers
from headrace.storage.store.s3.wire import OtherAnswerError, Wire

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_KEY_SAFE = "/~"
_CREDENTIAL = re.compile(r"AWS4-HMAC-SHA256 Credential=[^/]+/\d{8}/([^/]+)/([^/]+)/aws4_request,")
_ERROR_MESSAGE = re.compile(rb"<Message>([^<]{1,2000})</Message>")
_ERROR_CODE = re.compile(rb"<Code>([A-Za-z0-9.]{1,100})</Code>")
_ERROR_PART = ByteRange(0, 1 << 16)
_ALL = ByteRange()
_SIGNED_ANEW = {"x-amz-content-sha256", "x-amz-date", "x-amz-security-token"}
_SERVED = {HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT}
_PART_BYTES = 256 << 10
_PORTS = {"http": 80, "https": 443}
_OTHER_REGION = {
    HTTPStatus.MOVED_PERMANENTLY,
    HTTPStatus.TEMPORARY_REDIRECT,
    HTTPStatus.BAD_REQUEST,
}


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a store.

    Attributes:
        content: The bytes; none if the object ends before the range.
        tag: The entity tag of the object; empty if it ends before the range.
        object_bytes: The size of the object, or `None` if the store does not state it.
    """

    content: bytes
    tag: str
    object_bytes: int | None


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """The settings of connections, as boto3 would make them.

    Attributes:
        verify: A file of certificates, or `True` for those that botocore trusts by default.
        connect_timeout_s: Longest wait for a connection.
        read_timeout_s: Longest silence of the store while an object is read.
        write_timeout_s: Longest silence during any other request.
        max_connections: The most connections to keep open.
    """

    verify: str | bool
    connect_timeout_s: float
    read_timeout_s: float
    write_timeout_s: float
    max_connections: int


class S3Gets:
    """Ranged GETs of one store; thread-safe.

    Args:
        client: A client of boto3, which makes the first request.
        keys: Returns the current credentials; `None` if requests are not signed.
        settings: The settings of the connections.
    """

    def __init__(
        self,
        client: S3Client,
        keys: Callable[[], SigningKeys | None],
        *,
        settings: SessionSettings,
    ) -> None:
        self._client = client
        self._keys = keys
        self._settings = settings
        self._sent = threading.local()  # the handler below runs in the thread of the request
        self._template: _Template | None = None
        self._sessions: dict[tuple[str, float], URLLib3Session] = {}
        client.meta.events.register(
            "before-send.s3",
            self._send,  # type: ignore[arg-type] # the stubs only know handlers that return None
        )

    def get(self, bucket: str, key: str, wanted: ByteRange) -> Answer:
        """Return the bytes of a range.

        Args:
            bucket: The name of the bucket; the same in all calls.
            key: The key of the object.
            wanted: The range.

        Raises:
            ClientError: The store answered with an error.
            WrongBytesError: It answered with another range.
            BotoCoreError: The store cannot be reached, or the request cannot be made.
        """
        try:
            template = self._template
            if template is None:
                return self._learn(bucket, key, wanted)
            try:
                return template.get(percent_encode(key, safe=_KEY_SAFE), wanted, self._keys)
            except ClientError as error:
                if _status_of(error) not in _OTHER_REGION or _code_of(error) in EXPIRED:
                    raise
                self._template = None
                return self._learn(bucket, key, wanted)
        except ClientError as error:
            if _code_of(error) == "InvalidRange":
                wanted.check_is_past_end(_headers_of(error))
                return Answer(b"", "", None)
            raise

    def close(self) -> None:
        """Close the connections."""
        template, self._template = self._template, None
        if template is not None and template.wire is not None:
            template.wire.close()
        for session in tuple(self._sessions.values()):
            session.close()

    def _learn(self, bucket: str, key: str, wanted: ByteRange) -> Answer:
        answer = self._client.get_object(Bucket=bucket, Key=key, Range=wanted.header)
        with answer["Body"] as raw:
            body = _content(raw, wanted, timeout_s=self._settings.read_timeout_s)
        about = answer["ResponseMetadata"]
        content, total = wanted.of_answer(about["HTTPStatusCode"], about["HTTPHeaders"], body)
        request: AWSPreparedRequest | None = getattr(self._sent, "request", None)
        if request is not None and self._template is None:
            self._sent.request = None
            session = self._session(request.url, self._settings.read_timeout_s)
            self._template = _template_of(
                request, percent_encode(key, safe=_KEY_SAFE), session, self._settings
            )
        return Answer(content, answer.get("ETag", ""), total)

    def _send(self, request: AWSPreparedRequest, **_: object) -> AWSResponse | None:
        """Send a GET in place of boto3, and keep that of an object as the template."""
        if request.method != "GET":
            return None
        timeout_s = self._settings.write_timeout_s
        if request.stream_output:
            timeout_s = self._settings.read_timeout_s
            self._sent.request = request
        request.stream_output = True
        answer = self._session(request.url, timeout_s).send(request)
        if "Range" in request.headers and answer.status_code in _SERVED:
            return answer  # `_learn` reads it
        with closing(answer.raw):
            content = _content(answer.raw, _ALL, timeout_s=timeout_s)
        if answer.status_code in _SERVED:
            _ALL.of_answer(answer.status_code, _lower(answer.headers), content)
        whole = HTTPResponse(io.BytesIO(content), preload_content=False)
        return AWSResponse(answer.url, answer.status_code, answer.raw.headers, whole)

    def _session(self, url: str, timeout_s: float) -> URLLib3Session:
        parts = urlsplit(url)
        place = (f"{parts.scheme}://{parts.netloc}", timeout_s)
        session = self._sessions.get(place)
        if session is None:
            # Two threads may both make one, but a session without connections costs nothing.
            made = _session_for(url, self._settings, timeout_s)
            session = self._sessions.setdefault(place, made)
        return session


@dataclass(frozen=True, slots=True)
class _Template:
    """The parts of the first request that all requests share."""

    session: URLLib3Session
    base: str
    host: str
    base_path: str
    headers: Mapping[str, str]
    scope: SigningScope | None
    wire: Wire | None
    read_timeout_s: float

    def get(
        self, quoted_key: str, wanted: ByteRange, keys: Callable[[], SigningKeys | None]
    ) -> Answer:
        path = self.base_path + quoted_key
        headers = {**self.headers, "range": wanted.header}
        found = keys() if self.scope is not None else None
        if self.scope is not None and found is not None:
            headers = signed_get_headers(
                self.host, path, headers, keys=found, scope=self.scope, now_s=time.time()
            )
        if self.wire is not None and self.wire.is_usable and wanted.length:
            with suppress(OtherAnswerError):
                sent = {"host": self.host, **headers}
                reply = self.wire.get(path, sent, max_bytes=wanted.length)
                return _answer_of(reply.status, reply.headers, reply.content, wanted)
        return self._ask(self.base + quoted_key, headers, wanted)

    def _ask(self, url: str, headers: Mapping[str, str], wanted: ByteRange) -> Answer:
        request = AWSPreparedRequest("GET", url, headers, None, True)  # type: ignore[arg-type] # the stubs require a class that urllib3 cannot copy
        answer = self.session.send(request)
        part = wanted if answer.status_code in _SERVED else _ERROR_PART
        with closing(answer.raw):
            content = _content(answer.raw, part, timeout_s=self.read_timeout_s)
        return _answer_of(int(answer.status_code), _lower(answer.headers), content, wanted)


def _answer_of(
    status: int, headers: Mapping[str, str], content: bytes, wanted: ByteRange
) -> Answer:
    """Return the checked answer of a store, from its status, its headers in lower case and body."""
    if status not in _SERVED:
        raise _error_of(status, headers, content)
    found, total = wanted.of_answer(status, headers, content)
    return Answer(found, headers.get("etag", ""), total)


def _content(raw: Any, wanted: ByteRange, *, timeout_s: float) -> bytes:
    """Return the body of an answer, of a whole object only up to the end of a range.

    Raises:
        ReadTimeoutError: The body arrives too slowly.
        IncompleteReadError: It is cut off.
    """
    most = wanted.stop
    read = getattr(raw, "read1", raw.read)  # urllib3 before 2.1 has no read1
    started_s = time.monotonic()
    parts: list[bytes] = []
    seen, part = 0, b"-"
    while (most is None or seen < most) and (part := read(_PART_BYTES)):
        parts.append(part)
        seen += len(part)
        if time.monotonic() > started_s + timeout_s + seen / MIN_BYTES_PER_S:
            raise ReadTimeoutError(endpoint_url="", error=f"only {seen} bytes in {timeout_s:g} s")
    stated = raw.headers.get("content-length", "")
    if not part and stated.isdecimal() and seen != int(stated):
        raise IncompleteReadError(actual_bytes=seen, expected_bytes=int(stated))
    return b"".join(parts)


def _session_for(url: str, settings: SessionSettings, timeout_s: float) -> URLLib3Session:
    return URLLib3Session(
        verify=settings.verify,  # type: ignore[arg-type] # the stubs do not know file names
        proxies=get_environ_proxies(url),
        timeout=(settings.connect_timeout_s, timeout_s),  # type: ignore[arg-type] # as above
        max_pool_connections=settings.max_connections,
    )


def _template_of(
    request: AWSPreparedRequest,
    quoted_key: str,
    session: URLLib3Session,
    settings: SessionSettings,
) -> _Template | None:
    headers = {name.lower(): _text(value) for name, value in request.headers.items()}
    scope = None
    if "authorization" in headers:
        signed = _CREDENTIAL.match(headers["authorization"])
        if signed is None:
            return None
        scope = SigningScope(region=signed[1], service=signed[2])
    if not request.url.endswith(f"/{quoted_key}"):
        return None
    kept = {
        name: value
        for name, value in headers.items()
        if name.startswith("x-amz-") and name not in _SIGNED_ANEW
    }
    base = request.url.removesuffix(quoted_key)
    wire = _wire_to(base, settings)
    host, path = _host_and_path(base)
    return _Template(session, base, host, path, kept, scope, wire, settings.read_timeout_s)


def _wire_to(url: str, settings: SessionSettings) -> Wire | None:
    parts = urlsplit(url)
    if not IS_SUPPORTED or parts.scheme not in _PORTS or get_environ_proxies(url):
        return None
    return Wire(
        url,
        (parts.hostname or "", parts.port or _PORTS[parts.scheme]),
        context=tls_context(_certificates(settings)) if parts.scheme == "https" else None,
        connect_timeout_s=settings.connect_timeout_s,
        read_timeout_s=settings.read_timeout_s,
        max_connections=settings.max_connections,
    )


def _certificates(settings: SessionSettings) -> str:
    return str(get_cert_path(settings.verify))  # type: ignore[arg-type] # the stubs lack the name of a file


def _host_and_path(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    usual = _PORTS.get(parts.scheme)
    host = (parts.hostname or "") if parts.port in {None, usual} else parts.netloc
    return host, parts.path


def _error_of(status: int, headers: Mapping[str, str], content: bytes) -> ClientError:
    code, message = _ERROR_CODE.search(content), _ERROR_MESSAGE.search(content)
    # boto3 uses the status as the code if an answer has no body.
    response: Any = {
        "Error": {
            "Code": code[1].decode() if code else str(status),
            "Message": unescape(message[1].decode(errors="replace")) if message else "",
        },
        "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": headers},
    }
    return ClientError(response, "GetObject")


def _code_of(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code"))


def _headers_of(error: ClientError) -> Mapping[str, str]:
    return error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})


def _lower(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def _status_of(error: ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
