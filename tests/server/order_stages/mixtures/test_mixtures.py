"""Tests of mixtures over the wire: several datasets in one stream."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import grpc
import numpy as np
import pyarrow as pa
import pytest

from headrace.order import (
    Batching,
    MixtureDataset,
    MixtureOrder,
    MixtureSpec,
    OrderSpec,
    ShardTable,
    decode_token,
    encode_token,
    table_of,
)
from headrace.storage import ShardWriter, commit_dataset, open_dataset, open_store
from headrace.v1 import mixtures_pb2 as mixtures_pb
from headrace.v1 import shard_service_pb2 as pb
from support.asking import asking
from support.datasets import write_dataset
from support.running import channel_of
from support.served import (
    TIMEOUT_S,
    Transcript,
    epoch_request,
    failure_of,
    read,
    rich_table,
    stub_of,
    transcript,
)

SIZES = {"a": 120, "b": 80, "c": 33}
_UNKNOWN_BATCHING = mixtures_pb.Mixture.FromString(bytes([2 << 3, 9]))
_NARROW = ("number", "maybe", "text", "triple", "wide", "big", "ragged")


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Three datasets with the same samples, of which ``c`` has fewer columns, in other places."""
    found = {}
    for name, count in SIZES.items():
        url = found[name] = str(tmp_path_factory.mktemp(name))
        table = rich_table(count)
        if name == "c":
            fields = [table.schema.field(column).with_nullable(True) for column in _NARROW]
            columns = [table.column(column) for column in _NARROW]
            table = pa.table(columns[::-1], schema=pa.schema(fields[::-1]))
        write_dataset(url, table, shard_samples=(count // 3, count - count // 3), block_bytes=4096)
    return found


@pytest.fixture(scope="module")
def channel(urls: dict[str, str]) -> Iterator[grpc.Channel]:
    """A server of all three with a cache that cannot hold a batch's blocks at once."""
    with channel_of(urls, cache_bytes=1 << 17) as opened:
        yield opened


def _mixture(**amounts: float) -> mixtures_pb.Mixture:
    return mixtures_pb.Mixture(
        datasets=[
            mixtures_pb.MixtureDataset(name=name, proportion=amount)
            for name, amount in amounts.items()
        ],
        batching=mixtures_pb.BATCHING_STRATIFIED,
    )


def _request(base: mixtures_pb.Mixture, /, **fields: Any) -> pb.ReadBatchesRequest:
    mixture = mixtures_pb.Mixture()
    mixture.CopyFrom(base)
    mixture.MergeFrom(fields.pop("mixture", mixtures_pb.Mixture()))
    request = epoch_request(
        mixture=mixture, order=pb.OrderSpec(seed=4, unit=20), global_batch_size=20, with_ids=True
    )
    request.MergeFrom(asking(pb.ReadBatchesRequest, **fields))
    return request


def _messages(call: object) -> Iterator[pb.ReadBatchesResponse]:
    # All streams have messages of one shape.
    return cast("Iterator[pb.ReadBatchesResponse]", call)


def _pairs(seen: Transcript) -> list[list[int]]:
    return [pair for batch in seen.batches for pair in batch.values["headrace.sample_id"]]  # type: ignore[misc]  # lists of two


def _tables(urls: dict[str, str], names: str) -> list[ShardTable]:
    tables = []
    for name in names:
        with open_dataset(urls[name]) as dataset:
            tables.append(table_of(dataset.stretches()))
    return tables


def test_a_mixture_is_the_order_of_the_page(urls: dict[str, str], channel: grpc.Channel) -> None:
    """Pairs come as `MixtureOrder` has them, each row is its sample, and the counts are right."""
    seen = read(channel, _request(_mixture(a=3, b=1)))
    prints = []
    for name in "ab":
        with open_dataset(urls[name]) as dataset:
            prints.append(dataset.fingerprint)
    spec = MixtureSpec(
        datasets=(
            MixtureDataset("a", prints[0], proportion=3),
            MixtureDataset("b", prints[1], proportion=1),
        ),
        order=OrderSpec(seed=4, unit=20),
        batching=Batching.STRATIFIED,
    )
    datasets, ids = MixtureOrder(spec, _tables(urls, "ab")).samples(0, 0, 200)
    pairs = _pairs(seen)
    everything = rich_table(120).to_pydict()

    assert np.stack([datasets, ids], axis=1).tolist() == pairs
    for batch in seen.batches:
        for column in batch.columns[:-1]:
            wanted = [everything[column.name][number] for number in _ids_of(batch.values)]
            assert wanted == batch.values[column.name], column.name
    (end,) = seen.ends
    assert np.bincount([index for index, _ in pairs]).tolist() == list(end.dataset_sample_counts)
    assert (10, 200, 0) == (end.batch_count, end.sample_count, end.dropped_sample_count)
    assert seen.start is not None
    assert [("a", prints[0]), ("b", prints[1])] == [
        (dataset.name, dataset.fingerprint) for dataset in seen.start.datasets
    ]
    token = decode_token(seen.tokens[0])
    assert (spec.fingerprint, spec.digest) == (token.fingerprint, token.stage("mixture"))


@pytest.mark.parametrize("base", [_mixture(a=3, b=1), _mixture(a=1, c=1)], ids=["alike", "other"])
def test_a_mixture_is_the_same_from_memory(
    urls: dict[str, str], channel: grpc.Channel, base: mixtures_pb.Mixture
) -> None:
    """Batches that lie in memory, several made together in compiled loops, are those copied out."""
    request = _request(base, columns=_NARROW)
    with channel_of(urls) as roomy:
        found = [read(roomy, request) for _ in range(3)]

    wanted = [batch.values for batch in read(channel, request).batches]
    assert [wanted] * 3 == [[batch.values for batch in seen.batches] for seen in found]


def _ids_of(values: dict[str, list[object]]) -> list[int]:
    return [pair[1] for pair in values["headrace.sample_id"]]  # type: ignore[index]  # pairs


def test_datasets_that_lie_otherwise_agree_in_wanted_columns(channel: grpc.Channel) -> None:
    """Order of columns, other columns and nulls allowed make no difference to the values sent."""
    mixture = _mixture(a=1, c=1)
    seen = read(channel, _request(mixture, columns=_NARROW))
    everything = rich_table(120).to_pydict()

    assert {0, 1} == {pair[0] for pair in _pairs(seen)}
    for batch in seen.batches:
        assert [*_NARROW, "headrace.sample_id"] == [column.name for column in batch.columns]
        for name in _NARROW:
            assert [everything[name][number] for number in _ids_of(batch.values)] == (
                batch.values[name]
            )


def _refused(channel: grpc.Channel, request: pb.ReadBatchesRequest) -> tuple[str, str, str]:
    with pytest.raises(grpc.RpcError) as caught:
        read(channel, request)
    code, info = failure_of(caught.value)
    return code.name, info.reason, str(caught.value.details())


def test_columns_that_differ_are_named(channel: grpc.Channel) -> None:
    """Wanting all columns of datasets that differ says which column differs and how."""
    code, reason, text = _refused(channel, _request(_mixture(a=1, c=1)))

    assert ("INVALID_ARGUMENT", "COLUMN_UNSUPPORTED") == (code, reason)
    assert "'a' has it, 'c' does not" in text
    assert "name the columns that you want" in text


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"dataset": "a"}, "BAD_COORDINATES"),
        ({"fingerprint": "0" * 32}, "BAD_COORDINATES"),
        (
            {"mixture": mixtures_pb.Mixture(datasets=[mixtures_pb.MixtureDataset(name="none")])},
            "DATASET_NOT_FOUND",
        ),
        (
            {"mixture": mixtures_pb.Mixture(datasets=[mixtures_pb.MixtureDataset(name="a")])},
            "BAD_COORDINATES",
        ),
        ({"mixture": mixtures_pb.Mixture(epoch_size=-1)}, "BAD_COORDINATES"),
        ({"mixture": _UNKNOWN_BATCHING}, "BAD_COORDINATES"),
        (
            {"mixture": mixtures_pb.Mixture(schedule=[mixtures_pb.SchedulePiece(weights=[1])])},
            "BAD_COORDINATES",
        ),
        (
            {
                "mixture": mixtures_pb.Mixture(
                    schedule=[mixtures_pb.SchedulePiece(start=3, weights=[1, 1])]
                )
            },
            "BAD_COORDINATES",
        ),
        (
            {
                "mixture": mixtures_pb.Mixture(
                    datasets=[mixtures_pb.MixtureDataset(name="c", repeat=float("nan"))]
                )
            },
            "BAD_COORDINATES",
        ),
        (
            {
                "global_batch_size": 21,
                "mixture": mixtures_pb.Mixture(batching=mixtures_pb.BATCHING_PER_DATASET),
            },
            "BAD_COORDINATES",
        ),
        ({"resume_token": b"hrt"}, "TOKEN_MALFORMED"),
    ],
)
def test_a_mixture_that_cannot_be_is_refused(
    channel: grpc.Channel, change: dict[str, Any], reason: str
) -> None:
    """Hostile and mistaken mixtures fail by the table, and the server goes on."""
    found = _refused(channel, _request(_mixture(a=3, b=1), **change))

    assert reason == found[1], found[2]


def test_an_empty_mixture_is_refused(channel: grpc.Channel) -> None:
    """A mixture of nothing has no order."""
    assert "BAD_COORDINATES" == _refused(channel, _request(mixtures_pb.Mixture()))[1]


def test_a_token_of_another_mixture_is_refused(channel: grpc.Channel) -> None:
    """Other weights, one dataset alone and other versions are each told from the token's."""
    token = read(channel, _request(_mixture(a=3, b=1))).tokens[0]
    other = encode_token(replace(decode_token(token), fingerprint="ab" * 16))

    weights = _refused(channel, _request(_mixture(a=2, b=1), resume_token=token))
    single = pb.ReadBatchesRequest(dataset="a", world_size=1, resume_token=token)
    versions = _refused(channel, _request(_mixture(a=3, b=1), resume_token=other))

    assert "TOKEN_SPEC_CHANGED" == weights[1]
    assert "TOKEN_DATASET_CHANGED" == _refused(channel, single)[1]
    assert "TOKEN_DATASET_CHANGED" == versions[1]


def test_one_batch_is_that_of_the_stream(channel: grpc.Channel) -> None:
    """`GetBatch` sends the bytes of the stream's batch, and `ExplainBatch` its pairs and places."""
    mixture = _mixture(a=3, b=1)
    seen = read(channel, _request(mixture))
    request = asking(
        pb.GetBatchRequest,
        mixture=mixture,
        resume_token=seen.tokens[2],
        world_size=1,
        with_ids=True,
    )

    one = transcript(_messages(stub_of(channel).GetBatch(request, timeout=TIMEOUT_S)))
    why = stub_of(channel).ExplainBatch(pb.ExplainBatchRequest(batch=request), timeout=TIMEOUT_S)

    assert [(seen.batches[3].header, seen.batches[3].payload)] == [
        (batch.header, batch.payload) for batch in one.batches
    ]
    pairs = list(zip(why.dataset_indices, why.sample_ids, strict=True))
    assert seen.batches[3].values["headrace.sample_id"] == [list(pair) for pair in pairs]
    placed = {
        row: (shard.dataset_index, sample)
        for shard in why.shards
        for block in shard.blocks
        for row, sample in zip(block.rows, block.sample_ids, strict=True)
    }
    assert dict(enumerate(pairs)) == placed


def test_samples_of_several_datasets_come_by_pairs(channel: grpc.Channel) -> None:
    """`GetSamples` gives the samples of pairs in the order asked for, repeats too."""
    indices, ids = [1, 0, 1, 1], [32, 119, 0, 32]
    request = asking(
        pb.GetSamplesRequest,
        mixture=_mixture(a=1, c=1),
        dataset_indices=indices,
        sample_ids=ids,
        columns=["number", "text"],
        with_ids=True,
    )

    seen = transcript(_messages(stub_of(channel).GetSamples(request, timeout=TIMEOUT_S)))

    (batch,) = seen.batches
    assert ids == batch.values["number"]
    pairs = [list(pair) for pair in zip(indices, ids, strict=True)]
    assert pairs == batch.values["headrace.sample_id"]


@pytest.mark.parametrize(
    ("indices", "ids"), [([0], [33, 1]), ([2], [0]), ([-1], [0]), ([1], [33]), ([0], [-1])]
)
def test_pairs_that_name_no_sample_are_refused(
    channel: grpc.Channel, indices: list[int], ids: list[int]
) -> None:
    """An index or an id out of range, and lists of two lengths, are BAD_COORDINATES."""
    request = asking(
        pb.GetSamplesRequest,
        mixture=_mixture(a=1, c=1),
        dataset_indices=indices,
        sample_ids=ids,
        columns=["number"],
    )

    with pytest.raises(grpc.RpcError) as caught:
        transcript(_messages(stub_of(channel).GetSamples(request, timeout=TIMEOUT_S)))

    assert "BAD_COORDINATES" == failure_of(caught.value)[1].reason


def test_a_token_finds_the_versions_of_its_datasets(tmp_path: Path) -> None:
    """After appends the versions that have the token's fingerprint together are looked for."""
    urls = {name: str(tmp_path / name) for name in "ab"}
    for url in urls.values():
        write_dataset(url, rich_table(60), shard_samples=[60])
    mixture = _mixture(a=3, b=1)

    def read_all(token: bytes | None = None) -> Transcript:
        request = _request(mixture)
        if token is not None:
            request.resume_token = token
        with channel_of(urls) as opened:
            return read(opened, request)

    whole = read_all()
    for number, name in enumerate("aba"):
        _append(urls[name], number)

    assert [batch.payload for batch in whole.batches[2:]] == [
        batch.payload for batch in read_all(whole.tokens[1]).batches
    ]


def _append(url: str, number: int) -> None:
    table = rich_table(10 + number)
    store = open_store(url)
    with ShardWriter(store, f"later-{number}.arrow", schema=table.schema) as writer:
        for batch in table.to_batches():
            writer.append(batch)
        entry = writer.close()
    commit_dataset(store, table.schema, [entry], mode="append")
