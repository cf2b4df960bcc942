"""Requests that repeat something many times are refused before anything goes through them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import grpc
import pytest
from google.protobuf import any_pb2
from google.protobuf.descriptor import Descriptor
from google.protobuf.message_factory import GetMessageClass

from headrace.errors import BadArgumentError
from headrace.server.front.request_limits import LIMITS, check_lengths
from headrace.v1 import mixtures_pb2 as mixtures_pb
from headrace.v1 import shard_service_pb2 as pb
from support.asking import asking
from support.datasets import small_table, write_dataset
from support.running import channel_of
from support.served import TIMEOUT_S, failure_of, stub_of


def _repeated(kind: Descriptor, seen: set[str]) -> Iterator[str]:
    """Yield the lists of a message and of those in it, by message and field."""
    if kind.full_name in seen:
        return
    seen.add(kind.full_name)
    nothing = GetMessageClass(kind)()
    for field in kind.fields:
        value = getattr(nothing, field.name)
        if hasattr(value, "__len__") and not isinstance(value, str | bytes):
            yield f"{kind.name}.{field.name}"
        if field.message_type is not None:
            yield from _repeated(field.message_type, seen)


def _requests() -> list[Descriptor]:
    service = pb.DESCRIPTOR.services_by_name["ShardService"]
    return [method.input_type for method in service.methods]


def test_every_list_of_every_request_has_a_limit() -> None:
    """A field that is added without one is found here; so is a limit of nothing."""
    seen: set[str] = set()

    assert set(LIMITS) == {name for kind in _requests() for name in _repeated(kind, seen)}


@pytest.mark.parametrize("name", LIMITS)
def test_one_more_than_the_limit_is_refused(name: str) -> None:
    """As many as the limit are not; the error says what there may be."""
    message, field = name.split(".")
    made = getattr(pb, message)()
    values = getattr(made, field)
    is_text = message.endswith("Request") and field == "columns"
    for _ in range(LIMITS[name]):
        if hasattr(values, "add"):
            values.add()
        else:
            values.append("a" if is_text else 1)
    check_lengths(made)
    values.extend([values[0]])

    with pytest.raises(BadArgumentError, match=f"it must have at most {LIMITS[name]}") as caught:
        check_lengths(made)
    assert field == caught.value.metadata["field"]


def test_lists_are_compared_before_what_is_in_them() -> None:
    """Ten thousand datasets are not gone through for a request with too many stages."""
    many = mixtures_pb.Mixture(datasets=[mixtures_pb.MixtureDataset(name="a")] * 10_000)
    request = asking(pb.ReadBatchesRequest, mixture=many, stages=[any_pb2.Any()] * 64)
    check_lengths(pb.ReadBatchesRequest())
    calls = 0

    def note(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        with pytest.raises(BadArgumentError, match="stages"):
            check_lengths(request)
    finally:
        sys.setprofile(None)

    assert calls < 1000


def test_a_server_refuses_them_and_short_pieces_of_schedules(tmp_path: Path) -> None:
    """As the caller's error, by the name of the field."""
    for name in ("a", "b"):
        write_dataset(str(tmp_path / name), small_table(8), shard_samples=[8])
    urls = {name: str(tmp_path / name) for name in ("a", "b")}
    mixture = mixtures_pb.Mixture(
        datasets=[mixtures_pb.MixtureDataset(name="a"), mixtures_pb.MixtureDataset(name="b")],
        epoch_size=16,
        schedule=[mixtures_pb.SchedulePiece(start=at * 15, weights=[1.0, 1.0]) for at in range(17)],
    )
    refused = {
        "stages": pb.ReadBatchesRequest(dataset="a", stages=[any_pb2.Any()] * 50_000),
        "schedule": asking(pb.ReadBatchesRequest, mixture=mixture),
    }
    with channel_of(urls) as channel:
        for field, request in refused.items():
            request.global_batch_size, request.world_size = 4, 1
            request.epoch_start.epoch = 0
            with pytest.raises(grpc.RpcError) as caught:
                list(stub_of(channel).ReadBatches(request, timeout=TIMEOUT_S))

            assert grpc.StatusCode.INVALID_ARGUMENT == failure_of(caught.value)[0]
            assert field in failure_of(caught.value)[1].metadata["field"]
