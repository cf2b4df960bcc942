"""Tests of ReadBatches over a real socket: what arrives is what the order and the samples say."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import grpc
import pyarrow as pa
import pytest

from headrace.order import Order, OrderSpec, table_of
from headrace.storage import open_dataset
from headrace.v1 import shard_service_pb2 as pb
from support.running import RICH_SAMPLES, Running, running, server_of
from support.served import epoch_request, read

_ENDS = {
    "drop_last": pb.END_MODE_DROP_LAST,
    "uneven": pb.END_MODE_UNEVEN,
    "pad": pb.END_MODE_PAD,
}


def _request(**fields: object) -> pb.ReadBatchesRequest:
    request = epoch_request(
        dataset="rich",
        order=pb.OrderSpec(seed=5, shuffle_samples=300),
        global_batch_size=64,
        with_ids=True,
    )
    request.MergeFrom(pb.ReadBatchesRequest(**fields))  # type: ignore[arg-type]  # by name
    return request


def _order(rich_url: str, spec: OrderSpec) -> Order:
    with open_dataset(rich_url) as dataset:
        return Order(spec, table_of(dataset.stretches()))


def _expected(table: pa.Table, ids: list[object]) -> dict[str, list[object]]:
    everything = table.to_pydict()
    return {
        name: [values[cast("int", number)] for number in ids] for name, values in everything.items()
    }


@pytest.mark.parametrize("end", list(_ENDS))
@pytest.mark.parametrize(
    ("size", "world_size"), [(2, 1), (7, 3), (64, 1), (64, 5), (333, 2), (1000, 8)]
)
def test_every_rank_gets_its_slice_of_every_global_batch(
    served: Running, rich_url: str, end: str, size: int, world_size: int
) -> None:
    """Rank r of W gets positions [floor(rG/W), floor((r+1)G/W)) of each batch of G."""
    ids = (
        _order(rich_url, OrderSpec(seed=5, shuffle_samples=300))
        .sample_ids(0, 0, RICH_SAMPLES)
        .tolist()
    )
    whole, rest = divmod(RICH_SAMPLES, size)
    expected: dict[int, list[list[int]]] = {}
    for rank in range(world_size):
        share = slice(rank * size // world_size, (rank + 1) * size // world_size)
        expected[rank] = [ids[k * size : (k + 1) * size][share] for k in range(whole)]

    transcripts = {
        rank: read(
            served.channel,
            _request(
                global_batch_size=size,
                rank=rank,
                world_size=world_size,
                end=_ENDS[end],
                columns=["number"],
            ),
        )
        for rank in range(world_size)
    }

    for rank, seen in transcripts.items():
        assert expected[rank] == seen.ids[:whole]
        assert whole + (1 if rest and end != "drop_last" else 0) == len(seen.batches)
        assert (rest if end == "drop_last" else 0) == seen.ends[0].dropped_sample_count
    if rest and end != "drop_last":
        last = [transcripts[rank].batches[-1] for rank in range(world_size)]
        own = [batch.ids[: len(batch.ids) - batch.header.pad_count] for batch in last]
        assert ids[whole * size :] == list(itertools.chain(*own))
        assert {rest} == {batch.header.global_sample_count for batch in last}
        if end == "pad":
            widths = [
                (r + 1) * size // world_size - r * size // world_size for r in range(world_size)
            ]
            assert widths == [batch.header.sample_count for batch in last]
            assert set(itertools.chain(*(batch.ids for batch in last))) == set(ids[whole * size :])


@pytest.mark.parametrize("size", [1, 37, 256, 1000])
def test_values_are_those_of_the_samples(served: Running, rich: pa.Table, size: int) -> None:
    """Every type of column arrives as it was written, nulls included."""
    request = _request(global_batch_size=size, end=pb.END_MODE_UNEVEN)
    if size == 1:
        request.epoch_start.position = RICH_SAMPLES - 30

    seen = read(served.channel, request)

    for batch in seen.batches:
        values = batch.values
        ids = values.pop("headrace.sample_id")
        assert _expected(rich, ids) == values


@pytest.mark.parametrize(
    "order",
    [
        pb.OrderSpec(shuffle=False),
        pb.OrderSpec(seed=1, shuffle_bytes=0),
        pb.OrderSpec(seed=2, shuffle_samples=100, lanes=4),
        pb.OrderSpec(seed=3, shuffle_bytes=50_000),
        pb.OrderSpec(seed=4),
    ],
)
def test_ranks_together_are_the_epoch(served: Running, order: pb.OrderSpec) -> None:
    """The union over all ranks is every sample exactly once, whatever the order."""
    seen = [
        read(
            served.channel,
            _request(
                order=order, rank=rank, world_size=3, end=pb.END_MODE_UNEVEN, columns=["tiny"]
            ),
        )
        for rank in range(3)
    ]

    ids = list(itertools.chain.from_iterable(itertools.chain(*(part.ids for part in seen))))
    assert list(range(RICH_SAMPLES)) == sorted(ids)


def test_epochs_differ_and_follow_one_another(served: Running) -> None:
    """A stream of three epochs has three ends, rising steps, and another order each time."""
    seen = read(served.channel, _request(epoch_count=3, global_batch_size=100, columns=["tiny"]))

    epochs = [list(itertools.chain(*seen.ids[k * 10 : k * 10 + 10])) for k in range(3)]
    assert [0, 1, 2] == [end.epoch for end in seen.ends]
    assert [10, 10, 10] == [end.batch_count for end in seen.ends]
    assert [1000, 1000, 1000] == [end.sample_count for end in seen.ends]
    assert list(range(30)) == [batch.header.step for batch in seen.batches]
    assert 3 == len({tuple(epoch) for epoch in epochs})
    assert all(sorted(epoch) == list(range(RICH_SAMPLES)) for epoch in epochs)


def test_equal_requests_get_equal_bytes(served: Running) -> None:
    """A request repeated gives the same payloads and tokens, byte for byte."""
    first = read(served.channel, _request())
    again = read(served.channel, _request())

    assert [batch.payload for batch in first.batches] == [batch.payload for batch in again.batches]
    assert first.tokens == again.tokens


def test_seeds_give_orders(served: Running) -> None:
    """Another seed gives another order of the same samples."""
    five = read(served.channel, _request(end=pb.END_MODE_UNEVEN))
    six = read(served.channel, _request(order=pb.OrderSpec(seed=6), end=pb.END_MODE_UNEVEN))

    assert five.ids != six.ids
    assert sorted(itertools.chain(*five.ids)) == sorted(itertools.chain(*six.ids))


def test_columns_come_as_wanted(served: Running, rich: pa.Table) -> None:
    """The columns asked for come in the order asked for, and the ids last."""
    names = ["blob", "number", "maybe", "wide"]

    seen = read(served.channel, _request(columns=names))

    assert seen.start is not None
    assert [*names, "headrace.sample_id"] == [column.name for column in seen.start.columns]
    values = seen.batches[3].values
    ids = values.pop("headrace.sample_id")
    assert _expected(rich.select(names), ids) == values


@pytest.mark.parametrize("stride", [1, 2, 7, 100])
def test_strided_readers_share_the_batches(served: Running, stride: int) -> None:
    """Readers with strides have all batches of the rank between them, steps and tokens kept."""
    whole = read(served.channel, _request(columns=["tiny"]))
    parts = [
        read(
            served.channel,
            _request(batch_stride=stride, batch_offset=offset, columns=["tiny"]),
        )
        for offset in range(stride)
    ]

    batches = sorted(
        itertools.chain(*(part.batches for part in parts)), key=lambda batch: batch.header.step
    )
    assert whole.ids == [batch.ids for batch in batches]
    assert whole.tokens == [batch.header.resume_token for batch in batches]
    assert [end.batch_count for end in whole.ends] == [
        sum(part.ends[0].batch_count for part in parts)
    ]


def test_start_fills_in_every_default(served: Running) -> None:
    """The first message says which order was taken, and what the dataset is."""
    request = _request()
    request.ClearField("order")

    start = read(served.channel, request).start

    assert start is not None
    spec = OrderSpec()
    expected = pb.OrderSpec(
        version=spec.version,
        seed=spec.seed,
        shuffle=spec.shuffle,
        run_bytes=spec.run_bytes,
        shuffle_bytes=spec.shuffle_bytes,
        shuffle_samples=spec.shuffle_samples,
        lanes=spec.lanes,
        unit=spec.unit,
        ramp=spec.ramp,
    )
    assert expected == start.order
    assert (RICH_SAMPLES, 5) == (start.dataset.sample_count, start.dataset.shard_count)
    assert (64, 0, 0) == (start.global_batch_size, start.epoch, start.position)


@pytest.mark.parametrize("chunk_bytes", [0, 64 * 1024, 3 * 1024 * 1024])
def test_chunks_keep_their_limit(served: Running, chunk_bytes: int) -> None:
    """No message has more payload than asked for, and a stock client takes the largest."""
    request = _request(global_batch_size=RICH_SAMPLES, max_chunk_bytes=chunk_bytes)

    (batch,) = read(served.channel, request).batches

    limit = chunk_bytes or 2 * 1024 * 1024
    assert limit == max(batch.chunk_sizes)
    assert -(-len(batch.payload) // limit) == len(batch.chunk_sizes)


def test_a_rank_without_samples_gets_empty_batches(served: Running) -> None:
    """With `uneven`, a rank that has nothing of the last batch still gets one, of no rows."""
    request = _request(
        global_batch_size=999,
        world_size=3,
        rank=0,
        end=pb.END_MODE_UNEVEN,
        columns=["text", "wide"],
    )

    last = read(served.channel, request).batches[-1]

    assert 0 == last.header.sample_count
    assert {"text": [], "wide": [], "headrace.sample_id": []} == last.values


def test_a_tiny_cache_serves_the_same(rich_url: str, served: Running) -> None:
    """A cache of a few blocks gives the same bytes as one that holds everything."""
    request = _request(order=pb.OrderSpec(seed=5, shuffle_bytes=0), global_batch_size=250)
    expected = read(served.channel, request)

    with running(rich_url, cache_bytes=120_000, fetch_threads=4) as small:
        seen = read(small.channel, request)
        used_bytes = small.server._cache.used_bytes

    assert [b.payload for b in expected.batches] == [b.payload for b in seen.batches]
    assert 0 < used_bytes <= 120_000


def test_many_streams_share_one_server(served: Running) -> None:
    """Eight ranks that read at the same time get what each would get alone."""
    requests = [_request(rank=rank, world_size=8, columns=["text", "wide"]) for rank in range(8)]
    alone = [read(served.channel, request).ids for request in requests]

    with grpc.insecure_channel(served.server.address) as channel, ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda request: read(channel, request).ids, requests))

    assert alone == together


def test_a_unix_socket_serves_too(rich_url: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Several addresses are listened on, one of them a unix socket."""
    path = tmp_path_factory.mktemp("s") / "s"
    with server_of({"rich": rich_url}, listen=("127.0.0.1:0", f"unix:{path}")) as server:
        seen = []
        for address in server.addresses:
            with grpc.insecure_channel(address) as channel:
                seen.append(read(channel, _request()).tokens)

    assert seen[0] == seen[1]
