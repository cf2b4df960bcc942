"""Claims about dealing over the wire: each global batch as in order, and even costs.

How it could go wrong: ranks that deal one global batch in different ways, so that a sample comes
twice or never; another dealing after a resume; a transform's random numbers that follow the rank.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, cast

import grpc
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from headrace.cli.stored.row_counter import row_counter
from headrace.order import deal_evenly
from headrace.server.order_stages.dealing.dealer import dealt
from headrace.storage import RowOptions, index_cost, index_packing
from headrace.v1 import dealing_pb2 as dealing_pb
from headrace.v1 import mixtures_pb2 as mixtures_pb
from headrace.v1 import shard_service_pb2 as pb
from support.asking import asking
from support.datasets import write_dataset
from support.running import channel_of
from support.served import (
    TIMEOUT_S,
    ReadBatch,
    epoch_request,
    failure_of,
    messages_of,
    read,
    read_until_failure,
    stub_of,
)

_COUNT = 300


@pytest.fixture(scope="module")
def lengths() -> list[int]:
    """Of the samples."""
    drawn = np.exp(np.random.default_rng(2).normal(3, 1, _COUNT)).astype(np.int64)
    capped: list[int] = np.minimum(drawn, 200).tolist()
    return capped


@pytest.fixture(scope="module")
def channel(lengths: list[int], tmp_path_factory: pytest.TempPathFactory) -> Iterator[grpc.Channel]:
    """A server of samples of these lengths, once with lengths stored and once without."""
    urls = {}
    for name in ("d", "bare"):
        urls[name] = str(tmp_path_factory.mktemp(name))
        table = pa.table(
            {"tokens": pa.array([[7] * each for each in lengths], pa.list_(pa.int32()))}
        )
        write_dataset(urls[name], table, shard_samples=(200, 100))
    index_packing(urls["d"], RowOptions(256), count_rows=row_counter())
    with channel_of(urls) as opened:
        yield opened


@pytest.fixture(scope="module")
def patches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[grpc.Channel]:
    """A server of images whose patches are stored as costs; after an append, too."""
    url = str(tmp_path_factory.mktemp("patches") / "d")
    counts = (np.random.default_rng(4).lognormal(4, 1, _COUNT)).astype(np.int64)
    table = pa.table({"patches": pa.array(counts, pa.uint16()), "tokens": [[1]] * _COUNT})
    write_dataset(url, table[:200], shard_samples=(120, 80))
    index_cost(url, "patches")
    write_dataset(url, table[200:], shard_samples=(100,), mode="append")
    index_cost(url, "patches")
    with channel_of({"d": url}) as opened:
        yield opened


def test_costs_come_from_a_column(patches: grpc.Channel) -> None:
    """Global batches stay, and ranks get as many patches; without costs, nobody guesses them."""
    options: dict[str, Any] = {"columns": ["patches"]}
    plain = _ranks(patches, 4, **options)
    even = _ranks(patches, 4, deal=dealing_pb.Deal(cost="patches"), **options)

    def sums(ranks: list[list[ReadBatch]]) -> NDArray[np.int64]:
        return np.array(
            [[sum(cast("list[int]", each.values["patches"])) for each in own] for own in ranks]
        )

    def global_batches(ranks: list[list[ReadBatch]]) -> list[list[int]]:
        return [
            sorted(each for own in batch for each in own.ids) for batch in zip(*ranks, strict=True)
        ]

    assert global_batches(plain) == global_batches(even)
    assert np.ptp(sums(even), axis=0).mean() < np.ptp(sums(plain), axis=0).mean() / 5


@pytest.mark.parametrize(
    ("cost", "message"),
    [
        ("tokens", r"no costs of column 'tokens' are stored for 'd'.*index URL --cost COLUMN"),
        ("", r"no lengths are stored for 'd'"),
    ],
)
def test_costs_that_are_not_stored_are_refused(
    patches: grpc.Channel, cost: str, message: str
) -> None:
    """Neither another column's nor lengths take their place."""
    request = _request(world_size=4, deal=dealing_pb.Deal(cost=cost))
    with pytest.raises(grpc.RpcError, match=message):
        read(patches, request)


def test_packed_rows_have_no_cost_of_a_column(channel: grpc.Channel) -> None:
    """They cost what their documents do."""
    request = _request(dataset="d:256", world_size=4, deal=dealing_pb.Deal(cost="tokens"))
    with pytest.raises(grpc.RpcError, match=r"rows are packed.*leave the cost out"):
        read(channel, request)


def _request(**fields: Any) -> pb.ReadBatchesRequest:
    return epoch_request(
        **{
            "dataset": "d",
            "order": pb.OrderSpec(seed=3),
            "global_batch_size": 32,
            "with_ids": True,
            "columns": ["tokens"],
            "end": pb.END_MODE_UNEVEN,
            **fields,
        }
    )


def _ranks(channel: grpc.Channel, world: int, **fields: Any) -> list[list[ReadBatch]]:
    """Return the batches of each rank."""
    return [
        read(channel, _request(rank=rank, world_size=world, **fields)).batches
        for rank in range(world)
    ]


def _cost(batch: ReadBatch) -> int:
    return sum(len(row) for row in cast("list[list[int]]", batch.values["tokens"]))


@settings(max_examples=8)
@given(
    world=st.sampled_from([2, 3, 4, 6]),
    lanes=st.sampled_from([1, 2]),
    end=st.sampled_from([pb.END_MODE_UNEVEN, pb.END_MODE_PAD, pb.END_MODE_DROP_LAST]),
    deal=st.sampled_from(
        [
            dealing_pb.Deal(),
            dealing_pb.Deal(square_cost=1),
            dealing_pb.Deal(length_cost=1, square_cost=0.5, accumulate=3),
        ]
    ),
    # The token after the last batch is of the next epoch.
    resumed=st.integers(0, 2),
    dataset=st.sampled_from(["d", "d:256"]),
    skips=st.sampled_from([(), (1, 2, 3, 150)]),
)
def test_each_global_batch_is_that_of_dealing_in_order(  # noqa: PLR0917 - as Hypothesis gives them
    channel: grpc.Channel,
    world: int,
    lanes: int,
    end: pb.EndMode,
    deal: dealing_pb.Deal,
    resumed: int,
    dataset: str,
    skips: tuple[int, ...],
) -> None:
    """Each sample goes to one rank, ranks get as many as in order, and a resume changes nothing."""
    size = 32 if dataset == "d" else 8
    fields: dict[str, Any] = {
        "dataset": dataset,
        "columns": ["tokens", "tokens.samples"] if dataset != "d" else ["tokens"],
        "order": pb.OrderSpec(seed=3, lanes=lanes, unit=size),
        "global_batch_size": size,
        "end": end,
        "skips": pb.SkipList(sample_ids=skips),
    }
    plain, dealt_ranks = (
        _ranks(channel, world, **fields),
        _ranks(channel, world, **fields, deal=deal),
    )
    token = dealt_ranks[0][resumed].header.resume_token
    rest = _ranks(channel, world, **fields, deal=deal, resume_token=token)

    for mine, in_order in zip(
        zip(*dealt_ranks, strict=True), zip(*plain, strict=True), strict=True
    ):
        assert [len(batch.ids) for batch in mine] == [len(batch.ids) for batch in in_order]
        assert sorted(i for batch in mine for i in batch.ids) == sorted(
            i for batch in in_order for i in batch.ids
        )
        assert [batch.header.resume_token for batch in mine] == [
            batch.header.resume_token for batch in in_order
        ]
    whole = [[batch.values for batch in each] for each in dealt_ranks]
    assert [[batch.values for batch in each] for each in rest] == [
        each[resumed + 1 :] for each in whole
    ]


def test_costs_are_even_where_they_were_not(channel: grpc.Channel) -> None:
    """Of eight ranks with eight samples each, the greatest number of elements over the mean."""
    fields: dict[str, Any] = {"global_batch_size": 64, "end": pb.END_MODE_DROP_LAST}
    plain, even = _ranks(channel, 8, **fields), _ranks(channel, 8, **fields, deal=dealing_pb.Deal())

    def worst(ranks: list[list[ReadBatch]]) -> float:
        costs = np.array([[_cost(batch) for batch in each] for each in ranks])
        return float((costs.max(axis=0) / costs.mean(axis=0)).max())

    assert worst(plain) > 1.5
    assert worst(even) < 1.25


def test_accumulated_batches_are_even_together(channel: grpc.Channel) -> None:
    """What a rank has of a few batches, of four ranks with one packed row each."""
    fields: dict[str, Any] = {
        "dataset": "d:256",
        "columns": ["tokens.boundaries"],
        "global_batch_size": 4,
        "end": pb.END_MODE_DROP_LAST,
    }

    def cost(batch: ReadBatch) -> int:
        rows = cast("list[list[int]]", batch.values["tokens.boundaries"])
        return sum(
            sum((end - start) ** 2 for start, end in itertools.pairwise(row)) for row in rows
        )

    def worst(ranks: list[list[ReadBatch]]) -> float:
        costs = np.array([[cost(batch) for batch in each[: len(each) // 4 * 4]] for each in ranks])
        steps = costs.reshape(4, -1, 4).sum(axis=2)
        return float((steps.max(axis=0) / steps.mean(axis=0)).mean())

    assert worst(_ranks(channel, 4, **fields, deal=dealing_pb.Deal(accumulate=4))) < worst(
        _ranks(channel, 4, **fields)
    )


def test_samples_are_found_where_they_were_dealt(channel: grpc.Channel) -> None:
    """FindSamples names the rank and row that ReadBatches gave, and ExplainBatch the samples."""
    ranks = _ranks(channel, 4, deal=dealing_pb.Deal())
    wanted = {
        sample: (step, rank, row)
        for rank, batches in enumerate(ranks)
        for step, batch in enumerate(batches)
        for row, sample in enumerate(batch.ids)
    }
    fields = {name: getattr(_request(), name) for name in ("dataset", "order", "end")}
    batch = asking(
        pb.GetBatchRequest,
        **fields,
        global_batch_size=32,
        world_size=4,
        rank=2,
        epoch_start=pb.EpochStart(),
        deal=dealing_pb.Deal(),
    )

    found = stub_of(channel).FindSamples(
        pb.FindSamplesRequest(batch=batch, sample_ids=range(_COUNT)), timeout=TIMEOUT_S
    )
    explained = stub_of(channel).ExplainBatch(
        pb.ExplainBatchRequest(batch=batch), timeout=TIMEOUT_S
    )

    assert {row.sample: (row.step, row.rank, row.row) for row in found.rows} == wanted
    assert list(explained.sample_ids) == ranks[2][0].ids


@pytest.mark.parametrize("dataset", ["d", "bare"])
@pytest.mark.parametrize("end", [pb.END_MODE_UNEVEN, pb.END_MODE_DROP_LAST])
def test_ranks_get_batches_of_their_sizes(
    channel: grpc.Channel, dataset: str, end: pb.EndMode
) -> None:
    """Of the same global batches: in order, without lengths, or balanced."""
    (whole,) = _ranks(channel, 1, dataset=dataset, end=end)
    sizes = [17, 3, 12]
    deals = [dealing_pb.Deal(sizes=sizes, in_order=True)]
    deals += [dealing_pb.Deal(sizes=sizes)] if dataset == "d" else []
    for deal in deals:
        ranks = _ranks(channel, 3, dataset=dataset, end=end, deal=deal)
        for batch, parts in zip(whole, zip(*ranks, strict=True), strict=True):
            joined = [i for part in parts for i in part.ids]
            assert batch.header.resume_token == parts[1].header.resume_token
            if len(batch.ids) == 32:
                assert sizes == [len(part.ids) for part in parts]
            assert batch.ids == (joined if deal.in_order else batch.ids)
            assert sorted(batch.ids) == sorted(joined)


def test_what_cannot_be_dealt_is_refused(channel: grpc.Channel) -> None:
    """Without lengths, with speeds of other ranks, more at once than memory holds, and mixtures."""
    mixture = mixtures_pb.Mixture(
        datasets=[mixtures_pb.MixtureDataset(name="d"), mixtures_pb.MixtureDataset(name="bare")]
    )
    requests = {
        "no lengths are stored": _request(dataset="bare", deal=dealing_pb.Deal()),
        "3 speeds, and 1 ranks": _request(deal=dealing_pb.Deal(speeds=[1, 1, 1])),
        "must be in [0, 1e+09]": _request(deal=dealing_pb.Deal(length_cost=-1)),
        "at most 4194304 samples": _request(
            deal=dealing_pb.Deal(accumulate=2), global_batch_size=1 << 21 | 1, world_size=1 << 21
        ),
        "2 sizes, together 31, but 1 ranks share": _request(deal=dealing_pb.Deal(sizes=[16, 15])),
        "sizes, but 2 lanes": _request(
            deal=dealing_pb.Deal(sizes=[32]), order=pb.OrderSpec(lanes=2, unit=32)
        ),
        "sizes, but batches are padded": _request(
            deal=dealing_pb.Deal(sizes=[32]), end=pb.END_MODE_PAD
        ),
        "accumulate is 257": _request(deal=dealing_pb.Deal(accumulate=257)),
        "deal needs the lengths": _request(dataset="", mixture=mixture, deal=dealing_pb.Deal()),
    }

    for message, request in requests.items():
        _, failure = read_until_failure(messages_of(channel, request))
        assert failure_of(failure)[1].reason == "BAD_COORDINATES"
        assert message in str(failure.details())


@settings(max_examples=60)
@given(
    st.lists(st.sampled_from([0.0, 1.0, 2.5, 7.0, 1e9]), min_size=1, max_size=90),
    st.integers(1, 12),
    st.lists(st.integers(1, 89), max_size=3, unique=True),
    st.booleans(),
)
def test_the_compiled_loop_deals_alike(
    costs: list[float],
    parts: int,
    inner: list[int],
    even: bool,  # noqa: FBT001 - as Hypothesis gives it
) -> None:
    """The same owners, and the same loads to the last bit."""
    found, count = np.array(costs), len(costs)
    edges = np.array([0, *sorted(edge for edge in inner if edge < count), count])
    part_edges = np.arange(parts + 1) * count // parts
    pace = np.ones(parts) if even else 1.0 / np.arange(1, parts + 1)
    loads = np.zeros((2, parts))

    owners = [
        deal(found, edges, part_edges, own, pace)
        for deal, own in zip((deal_evenly, dealt), loads, strict=True)
    ]

    assert owners[0].tolist() == owners[1].tolist()
    assert loads[0].tolist() == loads[1].tolist()
