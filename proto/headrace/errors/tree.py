"""Every error of headrace, drawn as one tree.

::

    HeadraceError
    ├── CallerError                  the caller's fault: change the call
    │   ├── AccessDeniedError        PERMISSION_DENIED     ACCESS_DENIED
    │   ├── BadArgumentError         INVALID_ARGUMENT      BAD_COORDINATES
    │   ├── ColumnNotFoundError      INVALID_ARGUMENT      COLUMN_NOT_FOUND
    │   ├── ConfigurationError       FAILED_PRECONDITION   BAD_CONFIGURATION
    │   ├── DatasetNotFoundError     NOT_FOUND             DATASET_NOT_FOUND
    │   ├── NoTransportError         FAILED_PRECONDITION   NO_TRANSPORT
    │   ├── NotADatasetError         NOT_FOUND             NOT_A_DATASET
    │   ├── PositionPastEndError     OUT_OF_RANGE          POSITION_PAST_END
    │   ├── RequestMalformedError    INVALID_ARGUMENT      REQUEST_MALFORMED
    │   ├── SkipsNotFoundError       FAILED_PRECONDITION   SKIPS_NOT_FOUND
    │   ├── StageFailedError         FAILED_PRECONDITION   STAGE_FAILED
    │   ├── TokenDatasetChangedError FAILED_PRECONDITION   TOKEN_DATASET_CHANGED
    │   ├── TokenMalformedError      INVALID_ARGUMENT      TOKEN_MALFORMED
    │   ├── TokenSpecChangedError    FAILED_PRECONDITION   TOKEN_SPEC_CHANGED
    │   ├── UnauthenticatedError     UNAUTHENTICATED       UNAUTHENTICATED
    │   └── UnsupportedColumnError   INVALID_ARGUMENT      COLUMN_UNSUPPORTED
    ├── WorldError                   the world's fault: a disk, a store, a network, a peer
    │   ├── CommitConflictError      ABORTED               COMMIT_CONFLICT
    │   ├── DatasetExistsError       ALREADY_EXISTS        DATASET_EXISTS
    │   ├── DrainingError            UNAVAILABLE           DRAINING        (retried)
    │   ├── FilterPendingError       UNAVAILABLE           FILTER_PENDING  (retried)
    │   ├── ManifestCorruptError     DATA_LOSS             MANIFEST_CORRUPT
    │   ├── ObjectNotFoundError      NOT_FOUND             OBJECT_NOT_FOUND
    │   ├── PayloadLimitError        RESOURCE_EXHAUSTED    PAYLOAD_LIMIT   (retried)
    │   ├── RebalanceError           UNAVAILABLE           REBALANCE       (retried)
    │   ├── RequestMissingError      UNAVAILABLE           REQUEST_MISSING (retried)
    │   ├── ServerBusyError          RESOURCE_EXHAUSTED    SERVER_BUSY     (retried)
    │   ├── ServerUnreachableError   UNAVAILABLE           SERVER_UNREACHABLE (retried)
    │   ├── ShardCorruptError        DATA_LOSS             SHARD_CORRUPT
    │   ├── StoreRefusedError        PERMISSION_DENIED     STORE_REFUSED
    │   ├── StoreUnavailableError    UNAVAILABLE           STORE_UNAVAILABLE (retried)
    │   ├── StreamCorruptError       DATA_LOSS             STREAM_CORRUPT  (retried)
    │   └── StreamLimitError         RESOURCE_EXHAUSTED    STREAM_LIMIT    (retried)
    └── InternalError                our bug               INTERNAL        INTERNAL

``code`` is the name of a canonical gRPC status code and ``reason`` the ``ErrorInfo.reason``
of the wire, so one function turns errors into statuses and one turns statuses into errors.
This package imports nothing, so every layer may use it.
"""

from __future__ import annotations

from typing import ClassVar


class HeadraceError(Exception):
    """Root of all errors that headrace raises on purpose.

    Attributes:
        message: What was found, what was expected, where, and what to do.
        metadata: The dynamic parts of the message, by name, for programs (``ErrorInfo.metadata``).
    """

    code: ClassVar[str] = "UNKNOWN"
    reason: ClassVar[str] = "UNKNOWN"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, **metadata: object) -> None:
        super().__init__(message)
        self.message = message
        self.metadata = {key: str(value) for key, value in metadata.items()}


class CallerError(HeadraceError):
    """The call cannot succeed as it stands, however often it is repeated."""

    code = "INVALID_ARGUMENT"
    reason = "BAD_COORDINATES"


class AccessDeniedError(CallerError):
    """The bearer token is known, but may read nothing."""

    code = "PERMISSION_DENIED"
    reason = "ACCESS_DENIED"


class BadArgumentError(CallerError):
    """An argument is outside its range; ``metadata["field"]`` names it."""

    code = "INVALID_ARGUMENT"
    reason = "BAD_COORDINATES"


class ColumnNotFoundError(CallerError):
    """A column was asked for that the dataset does not have."""

    code = "INVALID_ARGUMENT"
    reason = "COLUMN_NOT_FOUND"


class ConfigurationError(CallerError):
    """The process was started with settings that do not work together or on this machine."""

    code = "FAILED_PRECONDITION"
    reason = "BAD_CONFIGURATION"


class DatasetNotFoundError(CallerError):
    """The server serves no dataset of that name."""

    code = "NOT_FOUND"
    reason = "DATASET_NOT_FOUND"


class NoTransportError(CallerError):
    """A transport cannot be had between this client and this server."""

    code = "FAILED_PRECONDITION"
    reason = "NO_TRANSPORT"


class NotADatasetError(CallerError):
    """The URL holds no dataset, whether or not it exists."""

    code = "NOT_FOUND"
    reason = "NOT_A_DATASET"


class PositionPastEndError(CallerError):
    """A position lies past the end of its epoch."""

    code = "OUT_OF_RANGE"
    reason = "POSITION_PAST_END"


class RequestMalformedError(CallerError):
    """The bytes of a request cannot be parsed."""

    code = "INVALID_ARGUMENT"
    reason = "REQUEST_MALFORMED"


class SkipsNotFoundError(CallerError):
    """A request names a list of samples to skip by a digest that the server does not know."""

    code = "FAILED_PRECONDITION"
    reason = "SKIPS_NOT_FOUND"


class StageFailedError(CallerError):
    """A stage of the server, or the client's ``transform=``, cannot process this batch."""

    code = "FAILED_PRECONDITION"
    reason = "STAGE_FAILED"


class TokenDatasetChangedError(CallerError):
    """A token belongs to another version of the dataset."""

    code = "FAILED_PRECONDITION"
    reason = "TOKEN_DATASET_CHANGED"


class TokenMalformedError(CallerError):
    """The bytes are not a token, or the token is damaged or of an unknown version."""

    code = "INVALID_ARGUMENT"
    reason = "TOKEN_MALFORMED"


class TokenSpecChangedError(CallerError):
    """A token belongs to another order: an option of the order differs."""

    code = "FAILED_PRECONDITION"
    reason = "TOKEN_SPEC_CHANGED"


class UnauthenticatedError(CallerError):
    """The server requires a bearer token, and the call carries none that it knows."""

    code = "UNAUTHENTICATED"
    reason = "UNAUTHENTICATED"


class UnsupportedColumnError(CallerError):
    """A column has a type that cannot be stored or served."""

    code = "INVALID_ARGUMENT"
    reason = "COLUMN_UNSUPPORTED"


class WorldError(HeadraceError):
    """The call was correct, but something around it failed; repeating it may succeed."""

    code = "UNAVAILABLE"
    reason = "WORLD"


class CommitConflictError(WorldError):
    """Two writers committed at the same time, and the other one won."""

    code = "ABORTED"
    reason = "COMMIT_CONFLICT"


class DatasetExistsError(WorldError):
    """A dataset exists already, and the call did not ask to replace it."""

    code = "ALREADY_EXISTS"
    reason = "DATASET_EXISTS"


class DrainingError(WorldError):
    """The server is shutting down and ends its streams between two batches."""

    code = "UNAVAILABLE"
    reason = "DRAINING"
    retryable = True


class FilterPendingError(WorldError):
    """The server is still working out which samples a filter keeps.

    ``metadata["done"]`` samples of ``metadata["samples"]`` have been looked at.
    """

    code = "UNAVAILABLE"
    reason = "FILTER_PENDING"
    retryable = True


class ManifestCorruptError(WorldError):
    """A manifest is damaged, truncated, malicious or of an unknown version."""

    code = "DATA_LOSS"
    reason = "MANIFEST_CORRUPT"


class ObjectNotFoundError(WorldError):
    """An object that a manifest names is not in the store."""

    code = "NOT_FOUND"
    reason = "OBJECT_NOT_FOUND"


class PayloadLimitError(WorldError):
    """Other streams hold all the memory that the server has for batches."""

    code = "RESOURCE_EXHAUSTED"
    reason = "PAYLOAD_LIMIT"
    retryable = True


class RebalanceError(WorldError):
    """The server ended a stream so that the client connects to a less loaded one."""

    code = "UNAVAILABLE"
    reason = "REBALANCE"
    retryable = True


class RequestMissingError(WorldError):
    """The headers of a call arrived, but its request did not."""

    code = "UNAVAILABLE"
    reason = "REQUEST_MISSING"
    retryable = True


class ServerBusyError(WorldError):
    """The server has more calls than it can hold."""

    code = "RESOURCE_EXHAUSTED"
    reason = "SERVER_BUSY"
    retryable = True


class ServerUnreachableError(WorldError):
    """No server answered, or the connection to it broke."""

    code = "UNAVAILABLE"
    reason = "SERVER_UNREACHABLE"
    retryable = True


class ShardCorruptError(WorldError):
    """A block does not have the checksum, the length or the shape that its manifest states."""

    code = "DATA_LOSS"
    reason = "SHARD_CORRUPT"


class StoreRefusedError(WorldError):
    """The store refused the credentials or the operation."""

    code = "PERMISSION_DENIED"
    reason = "STORE_REFUSED"


class StoreUnavailableError(WorldError):
    """The store did not answer, or throttled requests, in spite of all retries."""

    code = "UNAVAILABLE"
    reason = "STORE_UNAVAILABLE"
    retryable = True


class StreamCorruptError(WorldError):
    """A batch arrived damaged or incomplete; no part of it was handed to the loop."""

    code = "DATA_LOSS"
    reason = "STREAM_CORRUPT"
    retryable = True


class StreamLimitError(WorldError):
    """The server has as many streams open as it allows."""

    code = "RESOURCE_EXHAUSTED"
    reason = "STREAM_LIMIT"
    retryable = True


class InternalError(HeadraceError):
    """A bug in headrace; the message reveals nothing of the server's internals."""

    code = "INTERNAL"
    reason = "INTERNAL"
