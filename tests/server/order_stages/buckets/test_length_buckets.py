"""Claims about length buckets over the wire: every sample once, and batches of like length.

How it could go wrong: a window that two batches read in different arrangements, so that a sample
comes twice or never; ranks of one step with other buckets; another arrangement after a resume, with
other skips, or once other lengths are stored, without a word; samples found at positions that they
do not come at.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import grpc
import numpy as np
import pyarrow as pa
import pytest
from google.rpc.error_details_pb2 import ErrorInfo
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.cli.stored.row_counter import row_counter
from headrace.order import decode_token, split_buckets
from headrace.server import Server
from headrace.storage import RowOptions, index_packing
from headrace.v1 import dealing_pb2 as dealing_pb
from headrace.v1 import mixtures_pb2 as mixtures_pb
from headrace.v1 import shard_service_pb2 as pb
from support.asking import asking
from support.datasets import write_dataset
from support.running import channel_of, server_of
from support.served import (
    ReadBatch,
    epoch_request,
    failure_of,
    messages_of,
    read,
    read_until_failure,
    stub_of,
)

_COUNT = 530
_SIZE = 24
_LENGTHS = np.random.default_rng(2).integers(1, 300, _COUNT)
_OTHER = _LENGTHS[::-1]


def _write(url: str) -> None:
    lists = [
        pa.array([[7] * each for each in lengths], pa.list_(pa.int32()))
        for lengths in (_LENGTHS, _OTHER)
    ]
    table = pa.table(
        {"tokens": lists[0], "other": lists[1], "label": [i % 3 for i in range(_COUNT)]}
    )
    write_dataset(url, table, shard_samples=(200, 330), block_bytes=4096)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Samples of these lengths, once with lengths stored and once without."""
    urls = {name: str(tmp_path_factory.mktemp(name)) for name in ("d", "bare")}
    for url in urls.values():
        _write(url)
    index_packing(urls["d"], RowOptions(512), columns=["tokens"], count_rows=row_counter())
    with server_of(urls) as running:
        yield running


@pytest.fixture(scope="module")
def channel(server: Server) -> Iterator[grpc.Channel]:
    """To the server."""
    with grpc.insecure_channel(server.address) as opened:
        yield opened


def _request(**fields: Any) -> pb.ReadBatchesRequest:
    return epoch_request(
        **{
            "dataset": "d",
            "order": pb.OrderSpec(seed=3, shuffle_samples=100),
            "global_batch_size": _SIZE,
            "with_ids": True,
            "columns": ["tokens"],
            "end": pb.END_MODE_UNEVEN,
            "buckets": 6,
            **fields,
        }
    )


def _ranks(channel: grpc.Channel, world: int, **fields: Any) -> list[list[ReadBatch]]:
    """Return the parts of each global batch."""
    ranks = [
        read(channel, _request(rank=rank, world_size=world, **fields)).batches
        for rank in range(world)
    ]
    return list(map(list, zip(*ranks, strict=True)))


def _sets(batches: list[list[ReadBatch]]) -> list[list[int]]:
    """Return the samples of each global batch."""
    return [sorted(i for part in parts for i in part.ids) for parts in batches]


def _failure(channel: grpc.Channel, **fields: Any) -> tuple[ErrorInfo, str]:
    """Return how a stream is refused before its first batch."""
    said, error = read_until_failure(messages_of(channel, _request(**fields)))
    assert not said
    return failure_of(error)[1], str(error.details())


@contextmanager
def _served(url: str) -> Iterator[grpc.Channel]:
    with channel_of({"d": url}) as opened:
        yield opened


def _spread(ids: list[int]) -> float:
    own = _LENGTHS[ids]
    return float(own.max() / own.mean())


@settings(max_examples=10)
@given(
    world=st.sampled_from([2, 3, 4]),
    lanes=st.sampled_from([1, 2, 3]),
    end=st.sampled_from([pb.END_MODE_UNEVEN, pb.END_MODE_PAD, pb.END_MODE_DROP_LAST]),
    shuffle=st.booleans(),
    deal=st.sampled_from([None, dealing_pb.Deal(), dealing_pb.Deal(accumulate=3)]),
    buckets=st.sampled_from([2, 5, 64]),
    where=st.sampled_from(["", "label < 2"]),
    epoch=st.integers(0, 3),
    data=st.data(),
)
def test_worlds_and_resumes_have_the_same_batches(  # noqa: PLR0917 - as Hypothesis gives them
    channel: grpc.Channel,
    world: int,
    lanes: int,
    end: pb.EndMode,
    shuffle: bool,  # noqa: FBT001 - the same
    deal: dealing_pb.Deal | None,
    buckets: int,
    where: str,
    epoch: int,
    data: st.DataObject,
) -> None:
    """Each sample comes once, in one global batch for all worlds, and after any token."""
    fields: dict[str, Any] = {
        "order": pb.OrderSpec(seed=3, shuffle=shuffle, shuffle_samples=100, lanes=lanes),
        "end": end,
        "buckets": buckets,
        "where": where,
        "epoch_start": pb.EpochStart(epoch=epoch),
    }
    alone = _ranks(channel, 1, **fields)
    sets = _sets(alone)
    seen = list(itertools.chain.from_iterable(sets))
    kept = [i for i in range(_COUNT) if not where or i % 3 < 2]
    if end == pb.END_MODE_UNEVEN:
        assert sorted(seen) == kept
    else:
        whole = [i for own in sets[: len(kept) // _SIZE] for i in own]
        assert len(set(whole)) == len(whole) == len(kept) // _SIZE * _SIZE

    assert _sets(_ranks(channel, world, **fields, deal=deal)) == sets

    step = data.draw(st.integers(0, len(alone) - 2))
    token = alone[step][0].header.resume_token
    # The token says which buckets; a request may, and need not.
    fields |= {"buckets": data.draw(st.sampled_from([0, buckets])), "resume_token": token}
    assert _sets(_ranks(channel, world, **fields, deal=deal)) == sets[step + 1 :]


def test_every_token_of_an_epoch_continues_it(channel: grpc.Channel) -> None:
    """At each step, on two ranks, with half of the global batch too."""
    alone = _ranks(channel, 1)
    sets = _sets(alone)
    for step, batch in enumerate(alone[:-1]):
        token = batch[0].header.resume_token
        assert _sets(_ranks(channel, 2, resume_token=token)) == sets[step + 1 :]
    halves = _sets(
        _ranks(channel, 2, resume_token=alone[3][0].header.resume_token, global_batch_size=12)
    )
    joined = [sorted(halves[at] + halves[at + 1]) for at in range(0, len(halves) - 2, 2)]
    assert joined == sets[4 : 4 + len(joined)]
    assert sorted(i for each in halves for i in each) == sorted(
        i for each in sets[4:] for i in each
    )


def test_batches_are_of_like_length_in_shuffled_order(channel: grpc.Channel) -> None:
    """The longest of a batch is hardly longer than its mean; long and short batches alternate."""
    plain, bucketed = (_ranks(channel, 1, buckets=each)[:-1] for each in (0, 22))
    spreads = [[_spread(batch[0].ids) for batch in batches] for batches in (plain, bucketed)]
    means = [float(_LENGTHS[batch[0].ids].mean()) for batch in bucketed]

    assert np.mean(spreads[0]) > 1.8
    assert np.mean(spreads[1]) < 1.15
    assert 5 < np.count_nonzero(np.diff(means) > 0) < 16
    assert all(
        cast("list[list[int]]", batch.values["tokens"])[at] == [7] * int(_LENGTHS[batch.ids[at]])
        for (batch,) in bucketed
        for at in range(_SIZE)
    )


def test_skips_move_no_position(channel: grpc.Channel) -> None:
    """A list that grows during a run leaves all other samples where they are, and is counted."""
    plain = _ranks(channel, 1)
    gone = plain[7][0].ids[3], plain[9][0].ids[0]
    token = plain[6][0].header.resume_token
    rest = _ranks(
        channel, 1, resume_token=token, skips=pb.SkipList(sample_ids=gone), allow_new_skips=True
    )

    assert [batch.header.substitute_count for (batch,) in rest][:3] == [1, 0, 1]
    for (mine,), (was,) in zip(rest, plain[7:], strict=True):
        assert [a for a, b in zip(mine.ids, was.ids, strict=True) if b not in gone] == [
            each for each in was.ids if each not in gone
        ]
        assert not set(gone) & set(mine.ids)


def test_find_and_explain_follow_the_buckets(channel: grpc.Channel) -> None:
    """A sample is found in the batch, rank and row that it comes in."""
    batches = _ranks(channel, 2)
    wanted = asking(
        pb.GetBatchRequest,
        dataset="d",
        order=pb.OrderSpec(seed=3, shuffle_samples=100),
        global_batch_size=_SIZE,
        world_size=2,
        end=pb.END_MODE_UNEVEN,
        epoch_start=pb.EpochStart(),
        buckets=6,
    )
    ids = [0, 17, 200, 529]
    found = stub_of(channel).FindSamples(pb.FindSamplesRequest(batch=wanted, sample_ids=ids))
    assert [row.sample for row in found.rows] == [0, 1, 2, 3]
    for row in found.rows:
        assert batches[row.step][row.rank].ids[row.row] == ids[row.sample]
    wanted.epoch_start.position = 5 * _SIZE
    explained = stub_of(channel).ExplainBatch(pb.ExplainBatchRequest(batch=wanted))
    assert list(explained.sample_ids) == batches[5][0].ids
    assert explained.start.order.unit == _SIZE


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"dataset": "bare"}, "buckets", "--pack-length"),
        ({"dataset": "d:512", "columns": []}, "buckets", "all rows of 'd:512' have 512"),
        ({"buckets": 1}, "buckets", r"must be in \[2, 65537\)"),
        ({"buckets": -1}, "buckets", r"must be in"),
        ({"buckets": 65536}, "buckets", "at most 262144"),
        ({"order": pb.OrderSpec(unit=36)}, "global_batch_size", "36 samples"),
        ({"epoch_start": pb.EpochStart(position=25)}, "global_batch_size", "multiple of 24"),
    ],
)
def test_what_has_no_buckets_is_refused(
    channel: grpc.Channel, fields: dict[str, Any], field: str, words: str
) -> None:
    """By name, with what to do."""
    info, message = _failure(channel, **fields)
    assert info.metadata["field"] == field
    assert re.search(words, message), message


def test_a_mixture_has_no_buckets(channel: grpc.Channel) -> None:
    """Whether they are asked for, or a token has them."""
    mixture = mixtures_pb.Mixture(
        datasets=[mixtures_pb.MixtureDataset(name="d"), mixtures_pb.MixtureDataset(name="bare")]
    )
    _, message = _failure(channel, dataset="", mixture=mixture, columns=[])
    assert "a mixture is requested" in message


def test_a_token_binds_buckets_and_lengths(tmp_path: Path) -> None:
    """Other buckets, or lengths that were stored since, are refused; the first token has none."""
    url = str(tmp_path / "d")
    _write(url)
    index_packing(url, RowOptions(512), columns=["tokens"], count_rows=row_counter())
    tokens = {}
    for buckets in (6, 0):
        with _served(url) as channel:
            tokens[buckets] = _ranks(channel, 1, buckets=buckets)[0][0].header.resume_token
            assert split_buckets(decode_token(tokens[buckets]).stage("buckets"))[0] == buckets
    with _served(url) as channel:
        for had, asked in ((6, 7), (0, 6)):
            info, message = _failure(channel, resume_token=tokens[had], buckets=asked)
            assert info.reason == "TOKEN_SPEC_CHANGED"
            assert f"buckets={asked} is requested" in message
    index_packing(url, RowOptions(512), columns=["other"], count_rows=row_counter())
    with _served(url) as channel:
        info, message = _failure(channel, resume_token=tokens[6], buckets=0)
        assert info.reason == "TOKEN_SPEC_CHANGED"
        assert "store the token's lengths again" in message
