"""Turn a failed call into an error of our tree: the only place that reads gRPC's errors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf
from typing import cast

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

import headrace.errors
from headrace.client.servers.wrong_protocol import mistake_in
from headrace.errors import (
    CallerError,
    HeadraceError,
    InternalError,
    ServerBusyError,
    ServerUnreachableError,
    StreamCorruptError,
    StreamLimitError,
)

_BY_REASON: dict[str, type[HeadraceError]] = {
    cls.reason: cls
    for cls in vars(headrace.errors).values()
    if isinstance(cls, type) and issubclass(cls, HeadraceError) and cls is not CallerError
}

# A headrace server adds an ErrorInfo to every failure, so a status without one was made on the way:
# by gRPC on either side, or by a proxy. These codes then mean a broken connection, whatever the
# text (a reset in mid-stream is reported as UNAVAILABLE, UNKNOWN, INTERNAL or CANCELLED, depending
# on where it is noticed).
_CONNECTION_CODES = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
    }
)

# What gRPC itself says with RESOURCE_EXHAUSTED, on either side: it would say the same again.
_TOO_LARGE = "message larger than max"


def error_from_call(failure: grpc.RpcError, *, target: str) -> HeadraceError:
    """Return our error for a failed call.

    Args:
        failure: The exception of grpcio, which is also a call, with code and trailing metadata.
        target: The address that was called, for the message.
    """
    code = failure.code()
    text = failure.details() or code.name
    status = _details(failure)
    reason, metadata, retry_after_s = _unpack(status)
    if reason:
        error = error_of_reason(reason, text, metadata)
        if retry_after_s is not None:
            error.metadata["retry_after_s"] = str(retry_after_s)
        return error
    if code in _CONNECTION_CODES:
        return _unreachable(code, _last_cause(text), target)
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return CallerError(
            f"{target} speaks gRPC but is not a headrace server of this version ({text}); correct "
            "the address",
            target=target,
            code=code.name,
        )
    if code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
        return CallerError(
            f"{target} did not accept this client ({code.name}: {text}); give a bearer token with "
            "access=Access(auth=…), or another one",
            target=target,
        )
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and _TOO_LARGE not in text:
        return ServerBusyError(
            f"something before {target} let no more calls through ({text}), as a proxy that limits "
            "their rate does; raise its limit if ranks wait long",
            target=target,
        )
    return CallerError(f"{target} refused the call ({code.name}: {text})", target=target)


def _unreachable(code: grpc.StatusCode, cause: str, target: str) -> ServerUnreachableError:
    mistake = mistake_in(cause)
    if mistake is not None:
        return ServerUnreachableError(
            f"{target} {mistake} ({cause})", target=target, mistake="protocol"
        )
    return ServerUnreachableError(
        f"no headrace server answers at {target} ({code.name}: {cause}); start one with "
        "`headrace serve NAME=URL`, or correct the address",
        target=target,
    )


def error_of_reason(reason: str, message: str, metadata: Mapping[str, str]) -> HeadraceError:
    """Return the error of our tree with this reason; an unknown reason is a bug."""
    error = _BY_REASON.get(reason, InternalError)(message)
    # The server chooses the names: one may be the name of an argument.
    error.metadata.update(metadata)
    return error


def is_unknown_call(error: HeadraceError) -> bool:
    """Return whether a server does not know this kind of call."""
    return error.metadata.get("code") == grpc.StatusCode.UNIMPLEMENTED.name


def retry_after_s(error: HeadraceError) -> float | None:
    """Return how long the server asked to wait, in seconds, or None if it did not."""
    try:
        seconds = float(error.metadata.get("retry_after_s", "nan"))
    except ValueError:
        return None
    return seconds if 0 <= seconds < inf else None


def may_retry(error: HeadraceError) -> bool:
    """Return whether the same call may succeed later, against this server or another."""
    if isinstance(error, StreamLimitError):
        return retry_after_s(error) is not None
    if isinstance(error, StreamCorruptError) and error.metadata.get("field"):
        # Larger than the caller allows: it would be the same again.
        return False
    return error.retryable


def _last_cause(text: str) -> str:
    # gRPC puts a connection's history before its last failure.
    return text.rpartition("last error: ")[2]


def _details(failure: grpc.RpcError) -> status_pb2.Status:
    status = status_pb2.Status()
    for key, value in _trailing(failure):
        if key == "grpc-status-details-bin":
            try:
                status.ParseFromString(value)
            except DecodeError:
                return status_pb2.Status()
    return status


def _trailing(failure: grpc.RpcError) -> Iterable[tuple[str, bytes]]:
    # grpcio makes pairs, with bytes for "-bin" keys; its stubs say less.
    return cast("Iterable[tuple[str, bytes]]", failure.trailing_metadata() or ())


def _unpack(status: status_pb2.Status) -> tuple[str, dict[str, str], float | None]:
    reason, metadata, wait_s = "", {}, None
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    for detail in status.details:
        if detail.Unpack(info) and info.domain == "headrace":
            reason, metadata = info.reason, dict(info.metadata)
        elif detail.Unpack(retry):
            # `ToTimedelta` would fail for an invalid duration.
            wait_s = max(0.0, retry.retry_delay.seconds + retry.retry_delay.nanos / 1e9)
    return reason, metadata, wait_s
