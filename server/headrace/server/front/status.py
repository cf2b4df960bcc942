"""Turn errors into gRPC statuses; nothing else does."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import grpc
from google.protobuf.duration_pb2 import Duration
from google.rpc import code_pb2, error_details_pb2, status_pb2

from headrace.errors import HeadraceError, InternalError

DOMAIN = "headrace"
DETAILS_KEY = "grpc-status-details-bin"

# How long a client should wait before it tries again, in seconds, by reason. If streams rotate, a
# place becomes free within seconds. A store that failed all retries needs a moment. After a drain
# or a rotation, this server or another one takes the stream at once.
_RETRY_AFTER_S = {
    "DRAINING": 0.0,
    "FILTER_PENDING": 0.5,
    "PAYLOAD_LIMIT": 1.0,
    "REBALANCE": 0.0,
    "REQUEST_MISSING": 0.0,
    "SERVER_BUSY": 1.0,
    "STORE_UNAVAILABLE": 1.0,
    "STREAM_LIMIT": 1.0,
}

# In bytes. All trailing metadata of a call must stay below gRPC's soft limit of 8 KiB. The message
# is sent three times: percent-encoded, which may triple it, and twice in the details, in base64.
_MESSAGE_LIMIT = 800
_VALUE_LIMIT = 160
_VALUES_LIMIT = 8


@dataclass(frozen=True, slots=True)
class Failure:
    """The status of a failed call."""

    code: grpc.StatusCode
    message: str
    details: bytes


def failure_of(error: HeadraceError) -> Failure:
    """Return the status of an error, with ``ErrorInfo`` and other details for its reason."""
    metadata = tuple(
        (key, _clip(value, _VALUE_LIMIT))
        for key, value in list(error.metadata.items())[:_VALUES_LIMIT]
    )
    return _failure(error.code, error.reason, _clip(error.message, _MESSAGE_LIMIT), metadata)


@lru_cache(maxsize=256)
def _failure(code: str, reason: str, message: str, pairs: tuple[tuple[str, str], ...]) -> Failure:
    # Cached, because thousands of calls may be refused with the same message within a second.
    metadata = dict(pairs)
    status = status_pb2.Status(code=code_pb2.Code.Value(code), message=message)
    status.details.add().Pack(
        error_details_pb2.ErrorInfo(reason=reason, domain=DOMAIN, metadata=metadata)
    )
    if code == "INVALID_ARGUMENT" and "field" in metadata:
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=metadata["field"], description=message
        )
        status.details.add().Pack(error_details_pb2.BadRequest(field_violations=[violation]))
    if reason in _RETRY_AFTER_S:
        delay = Duration()
        delay.FromMilliseconds(round(_RETRY_AFTER_S[reason] * 1000))
        status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=delay))
    return Failure(grpc.StatusCode[code], message, status.SerializeToString())


def internal_failure() -> Failure:
    """Return the status of a bug, without details."""
    return failure_of(InternalError("the server failed; its log says how"))


def _clip(text: str, limit: int) -> str:
    encoded = text.encode(errors="replace")
    if len(encoded) <= limit:
        return encoded.decode()
    return encoded[: limit - len("…".encode())].decode(errors="ignore") + "…"
