"""Tests of statuses: every error of the tree has one, and it fits into trailing metadata."""

from __future__ import annotations

import base64
from urllib.parse import quote

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

import headrace.errors
from headrace.errors import BadArgumentError, HeadraceError, StreamLimitError
from headrace.server.front.status import failure_of, internal_failure

_ERRORS = sorted(
    (
        error
        for error in vars(headrace.errors).values()
        if isinstance(error, type) and issubclass(error, HeadraceError)
    ),
    key=lambda error: error.__name__,
)


@pytest.mark.parametrize("error", _ERRORS)
def test_every_error_has_a_status(error: type[HeadraceError]) -> None:
    """Code, message and ErrorInfo are those of the class."""
    failure = failure_of(error("what was found", shard="part-1", offset=8192))

    status = status_pb2.Status.FromString(failure.details)
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert grpc.StatusCode[error.code] == failure.code
    assert (failure.code.value[0], "what was found") == (status.code, status.message)
    assert (error.reason, "headrace") == (info.reason, info.domain)
    assert {"shard": "part-1", "offset": "8192"} == dict(info.metadata)


def test_a_bad_argument_names_its_field() -> None:
    """INVALID_ARGUMENT carries a FieldViolation."""
    failure = failure_of(BadArgumentError("rank is 9", field="rank"))

    status = status_pb2.Status.FromString(failure.details)
    request = error_details_pb2.BadRequest()
    assert status.details[1].Unpack(request)
    assert [("rank", "rank is 9")] == [(v.field, v.description) for v in request.field_violations]


def test_a_full_server_says_how_long_to_wait() -> None:
    """RESOURCE_EXHAUSTED carries RetryInfo, without which clients do not retry it."""
    status = status_pb2.Status.FromString(failure_of(StreamLimitError("full")).details)

    retry = error_details_pb2.RetryInfo()
    assert status.details[1].Unpack(retry)
    assert 1.0 == retry.retry_delay.ToTimedelta().total_seconds()


def test_a_status_stays_small() -> None:
    """Whatever a client puts into an error, its status stays below gRPC's 8 KiB."""
    metadata = {f"key{number}": "é" * 10_000 for number in range(50)}
    failure = failure_of(BadArgumentError("ü" * 100_000, field="x" * 10_000, **metadata))

    encoded = len(quote(failure.message)) + len(base64.b64encode(failure.details))
    assert encoded < 8192 - 500
    assert failure.message.endswith("ü…")


def test_a_bug_says_nothing() -> None:
    """An unexpected exception becomes one fixed text."""
    failure = internal_failure()

    assert (grpc.StatusCode.INTERNAL, "the server failed; its log says how") == (
        failure.code,
        failure.message,
    )
