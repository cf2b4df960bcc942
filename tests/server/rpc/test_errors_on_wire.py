"""Tests of errors as a client sees them: code, reason, details, and nothing of the inside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import cast

import grpc
import pytest
from google.rpc import error_details_pb2

from headrace.order import OrderSpec, Token, decode_token, encode_token
from headrace.v1 import shard_service_pb2 as pb
from support.running import RICH_SAMPLES, Running
from support.served import TIMEOUT_S, detail, epoch_request, failure_of, read, stub_of

Change = Callable[[pb.ReadBatchesRequest], object]


def _request() -> pb.ReadBatchesRequest:
    return epoch_request(dataset="rich", global_batch_size=64, world_size=4)


def _refused(served: Running, request: pb.ReadBatchesRequest) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as caught:
        read(served.channel, request)
    return caught.value


def _set(**fields: object) -> Change:
    return lambda request: request.MergeFrom(pb.ReadBatchesRequest(**fields))  # type: ignore[arg-type]  # by name


_BAD_FIELDS: list[tuple[str, Change]] = [
    ("dataset", lambda request: request.ClearField("dataset")),
    ("start", lambda request: request.ClearField("start")),
    ("global_batch_size", lambda request: request.ClearField("global_batch_size")),
    ("global_batch_size", _set(global_batch_size=-1)),
    ("global_batch_size", _set(global_batch_size=3)),
    ("global_batch_size", _set(global_batch_size=1001)),
    ("global_batch_size", _set(global_batch_size=1 << 40)),
    ("global_batch_size", _set(global_batch_size=(1 << 31) - 1, world_size=1, end=pb.END_MODE_PAD)),
    ("world_size", lambda request: request.ClearField("world_size")),
    ("world_size", _set(world_size=-4)),
    ("rank", _set(rank=4)),
    ("rank", _set(rank=-1)),
    ("end", _set(end=cast("pb.EndMode", 77))),
    ("columns", _set(columns=["tiny", "tiny"])),
    ("epoch_start.epoch", _set(epoch_start=pb.EpochStart(epoch=-1))),
    ("epoch_start.epoch", _set(epoch_start=pb.EpochStart(epoch=(1 << 63) - 1))),
    ("epoch_start.position", _set(epoch_start=pb.EpochStart(position=-1))),
    ("epoch_count", _set(epoch_count=-1)),
    ("max_chunk_bytes", _set(max_chunk_bytes=65535)),
    ("max_chunk_bytes", _set(max_chunk_bytes=3 * 1024 * 1024 + 1)),
    ("max_chunk_bytes", _set(max_chunk_bytes=-1)),
    ("max_group_bytes", _set(max_group_bytes=3 * 1024 * 1024 + 1)),
    ("max_group_bytes", _set(max_group_bytes=-1)),
    ("batch_stride", _set(batch_stride=-1)),
    ("batch_stride", _set(batch_stride=257)),
    ("batch_offset", _set(batch_stride=2, batch_offset=2)),
    ("batch_offset", _set(batch_offset=-1)),
    ("order.seed", _set(order=pb.OrderSpec(seed=-1))),
    ("order.version", _set(order=pb.OrderSpec(version=9))),
    ("order.shuffle_samples", _set(order=pb.OrderSpec(shuffle_samples=-1))),
    ("order.shuffle_bytes", _set(order=pb.OrderSpec(shuffle_bytes=-1))),
    ("order.lanes", _set(order=pb.OrderSpec(lanes=-1))),
    ("order.lanes", _set(order=pb.OrderSpec(lanes=65, unit=65))),
    ("order.unit", _set(order=pb.OrderSpec(lanes=4, unit=-3))),
]


@pytest.mark.parametrize(("field", "change"), _BAD_FIELDS)
def test_a_bad_field_is_named(served: Running, field: str, change: Change) -> None:
    """A value outside its range is INVALID_ARGUMENT, and the details name the field."""
    request = _request()
    change(request)
    if field == "global_batch_size" and request.global_batch_size == 1001:
        request.epoch_count = 2

    error = _refused(served, request)

    code, reason = failure_of(error)
    assert (grpc.StatusCode.INVALID_ARGUMENT, "BAD_COORDINATES") == (code, reason.reason)
    assert ("headrace", field) == (reason.domain, reason.metadata["field"])
    violations = cast("error_details_pb2.BadRequest", detail(error, "BadRequest")).field_violations
    assert [(field, error.details())] == [(one.field, one.description) for one in violations]


@pytest.mark.parametrize(
    ("change", "code", "reason"),
    [
        (_set(dataset="nothing"), grpc.StatusCode.NOT_FOUND, "DATASET_NOT_FOUND"),
        (_set(columns=["nothing"]), grpc.StatusCode.INVALID_ARGUMENT, "COLUMN_NOT_FOUND"),
        (_set(resume_token=b"nothing"), grpc.StatusCode.INVALID_ARGUMENT, "TOKEN_MALFORMED"),
        (_set(resume_token=b""), grpc.StatusCode.INVALID_ARGUMENT, "TOKEN_MALFORMED"),
        (
            _set(epoch_start=pb.EpochStart(position=RICH_SAMPLES + 1)),
            grpc.StatusCode.OUT_OF_RANGE,
            "POSITION_PAST_END",
        ),
    ],
)
def test_errors_have_code_and_reason(
    served: Running, change: Change, code: grpc.StatusCode, reason: str
) -> None:
    """Every refusal has the code and the reason of the table."""
    request = _request()
    change(request)

    found, info = failure_of(_refused(served, request))

    assert (code, reason) == (found, info.reason)


def _token(served: Running) -> Token:
    dataset = stub_of(served.channel).GetDataset(
        pb.GetDatasetRequest(name="rich"), timeout=TIMEOUT_S
    )
    return Token(
        fingerprint=dataset.dataset.fingerprint,
        spec=OrderSpec(seed=3),
        epoch=0,
        position=64,
        global_batch_size=64,
        step=1,
        sample_count=64,
    )


def test_a_token_of_another_dataset_is_refused(served: Running) -> None:
    """A token of another version fails with both fingerprints."""
    token = replace(_token(served), fingerprint="ab" * 16)
    request = _request()
    request.resume_token = encode_token(token)

    code, info = failure_of(_refused(served, request))

    assert grpc.StatusCode.FAILED_PRECONDITION == code
    assert "TOKEN_DATASET_CHANGED" == info.reason
    assert {
        "token_fingerprint": token.fingerprint,
        "dataset_fingerprint": _token(served).fingerprint,
    } == dict(info.metadata)


def test_a_token_of_another_order_is_refused(served: Running) -> None:
    """A token and an order that differ fail, and the message says in what."""
    request = _request()
    request.resume_token = encode_token(_token(served))
    request.order.seed = 4

    error = _refused(served, request)

    code, info = failure_of(error)
    assert (grpc.StatusCode.FAILED_PRECONDITION, "TOKEN_SPEC_CHANGED") == (code, info.reason)
    assert "seed: 4 requested, the token has 3" in str(error.details())


def test_a_token_past_the_end_is_refused(served: Running) -> None:
    """A token whose position the epoch does not have is OUT_OF_RANGE."""
    request = _request()
    request.resume_token = encode_token(replace(_token(served), position=RICH_SAMPLES + 1))

    code, info = failure_of(_refused(served, request))

    assert (grpc.StatusCode.OUT_OF_RANGE, "POSITION_PAST_END") == (code, info.reason)


def test_any_flipped_byte_of_a_token_is_refused(served: Running) -> None:
    """A token with one altered byte never resumes anywhere."""
    token = encode_token(_token(served))
    assert decode_token(token) == _token(served)
    for at in range(0, len(token), 7):
        request = _request()
        request.resume_token = token[:at] + bytes([token[at] ^ 0x40]) + token[at + 1 :]

        code, info = failure_of(_refused(served, request))

        assert (grpc.StatusCode.INVALID_ARGUMENT, "TOKEN_MALFORMED") == (code, info.reason)


def test_huge_names_do_not_break_the_answer(served: Running) -> None:
    """A name of 200 kB is refused like any other: details stay below gRPC's limit."""
    request = _request()
    request.dataset = "x" * 200_000

    error = _refused(served, request)

    assert failure_of(error)[1].reason == "DATASET_NOT_FOUND"
    assert len(str(error.details())) <= 800


def test_an_unknown_dataset_is_not_found_by_name(served: Running) -> None:
    """GetDataset of an unknown name is NOT_FOUND; of no name INVALID_ARGUMENT."""
    stub = stub_of(served.channel)

    seen = []
    for name in ("nothing", ""):
        with pytest.raises(grpc.RpcError) as caught:
            stub.GetDataset(pb.GetDatasetRequest(name=name), timeout=TIMEOUT_S)
        seen.append((caught.value.code(), failure_of(caught.value)[1].reason))

    assert [
        (grpc.StatusCode.NOT_FOUND, "DATASET_NOT_FOUND"),
        (grpc.StatusCode.INVALID_ARGUMENT, "BAD_COORDINATES"),
    ] == seen


@pytest.mark.parametrize(
    "request_",
    [pb.ListDatasetsRequest(page_size=-1), pb.ListDatasetsRequest(page_size=1001)]
    + [pb.ListDatasetsRequest(page_token=token) for token in ("x", "é", "YWZ0ZXI", "b3RoZXI6YQ==")],
)
def test_bad_pages_are_refused(served: Running, request_: pb.ListDatasetsRequest) -> None:
    """A page size outside its range, or a token of nobody, is INVALID_ARGUMENT."""
    with pytest.raises(grpc.RpcError) as caught:
        stub_of(served.channel).ListDatasets(request_, timeout=TIMEOUT_S)

    assert grpc.StatusCode.INVALID_ARGUMENT == caught.value.code()


def test_garbage_is_no_request(served: Running) -> None:
    """Bytes that are no message are the caller's fault, and fail the call and nothing else."""
    for method in ("ReadBatches", "GetDataset"):
        path = f"/headrace.v1.ShardService/{method}"
        call = served.channel.unary_stream(path, None, None)
        with pytest.raises(grpc.RpcError) as caught:
            list(call(b"\xff\xff\xff", timeout=TIMEOUT_S))
        code, info = failure_of(caught.value)
        assert (grpc.StatusCode.INVALID_ARGUMENT, "REQUEST_MALFORMED") == (code, info.reason)

    assert read(served.channel, _request()).batches
