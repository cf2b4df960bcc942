"""Tests of resume: from any token, with any world size, equals never having stopped."""

from __future__ import annotations

import itertools

import pytest

from headrace.order import OrderSpec, decode_token
from headrace.v1 import shard_service_pb2 as pb
from support.running import RICH_SAMPLES, Running, running
from support.served import Transcript, read

_SIZE = 90


def _first(served: Running, *, epoch_count: int, end: pb.EndMode) -> Transcript:
    request = pb.ReadBatchesRequest(
        dataset="rich",
        order=pb.OrderSpec(seed=11, shuffle_samples=200),
        global_batch_size=_SIZE,
        world_size=1,
        epoch_start=pb.EpochStart(),
        epoch_count=epoch_count,
        with_ids=True,
        columns=["tiny"],
        end=end,
    )
    return read(served.channel, request)


def _resumed(
    served: Running, token: bytes, *, epoch_count: int, end: pb.EndMode, world_size: int
) -> list[Transcript]:
    return [
        read(
            served.channel,
            pb.ReadBatchesRequest(
                dataset="rich",
                resume_token=token,
                rank=rank,
                world_size=world_size,
                epoch_count=epoch_count,
                with_ids=True,
                columns=["tiny"],
                end=end,
            ),
        )
        for rank in range(world_size)
    ]


@pytest.mark.parametrize("end", [pb.END_MODE_DROP_LAST, pb.END_MODE_UNEVEN])
def test_every_token_resumes_as_if_nothing_had_happened(served: Running, end: pb.EndMode) -> None:
    """From each token, with another world size, come the same global batches as without a stop."""
    whole = _first(served, epoch_count=2, end=end)

    for index, token in enumerate(whole.tokens[:-1]):
        world_size = 1 + index % 4
        left = 2 - decode_token(token).epoch
        parts = _resumed(served, token, epoch_count=left, end=end, world_size=world_size)
        joined = [
            list(itertools.chain(*ranks)) for ranks in zip(*(p.ids for p in parts), strict=True)
        ]

        assert whole.ids[index + 1 :] == joined
        steps = [batch.header.step for batch in parts[0].batches]
        assert list(range(index + 1, len(whole.batches))) == steps
        assert whole.tokens[index + 1 :] == parts[0].tokens


def test_the_last_token_of_an_epoch_opens_the_next(served: Running) -> None:
    """After the last batch the token is (epoch + 1, 0), and so is that of the epoch's end."""
    seen = _first(served, epoch_count=1, end=pb.END_MODE_DROP_LAST)

    token = decode_token(seen.tokens[-1])
    assert (1, 0) == (token.epoch, token.position)
    assert seen.tokens[-1] == seen.ends[0].resume_token
    assert (11, 11 * _SIZE) == (token.step, token.sample_count)


def test_tokens_carry_the_run(served: Running) -> None:
    """A token holds the dataset, the order, the place and the run's counts."""
    seen = _first(served, epoch_count=1, end=pb.END_MODE_DROP_LAST)

    token = decode_token(seen.tokens[3])
    assert seen.start is not None
    assert seen.start.dataset.fingerprint == token.fingerprint
    assert OrderSpec(seed=11, shuffle_samples=200) == token.spec
    assert (0, 4 * _SIZE, _SIZE, 4, 4 * _SIZE) == (
        token.epoch,
        token.position,
        token.global_batch_size,
        token.step,
        token.sample_count,
    )


def test_another_batch_size_goes_on_at_the_same_sample(served: Running) -> None:
    """On resume the global batch size may change; the samples go on where they stopped."""
    whole = _first(served, epoch_count=1, end=pb.END_MODE_UNEVEN)
    request = pb.ReadBatchesRequest(
        dataset="rich",
        resume_token=whole.tokens[4],
        global_batch_size=41,
        world_size=1,
        epoch_count=1,
        with_ids=True,
        end=pb.END_MODE_UNEVEN,
        columns=["tiny"],
    )

    seen = read(served.channel, request)

    assert list(itertools.chain(*whole.ids[5:])) == list(itertools.chain(*seen.ids))


def test_a_rest_shorter_than_a_batch_ends_the_epoch(served: Running) -> None:
    """A resume with less than a batch left gives no batch, counts what it drops, and goes on."""
    request = pb.ReadBatchesRequest(
        dataset="rich",
        global_batch_size=_SIZE,
        world_size=1,
        epoch_start=pb.EpochStart(position=RICH_SAMPLES - 5),
        epoch_count=2,
        with_ids=True,
        columns=["tiny"],
    )

    seen = read(served.channel, request)

    assert [0, 11] == [end.batch_count for end in seen.ends]
    assert [5, 10] == [end.dropped_sample_count for end in seen.ends]
    assert (1, 0) == (seen.batches[0].header.epoch, seen.batches[0].header.step)


def test_an_order_that_agrees_is_taken(served: Running) -> None:
    """An order given with a token is checked against it; the same one is fine."""
    whole = _first(served, epoch_count=1, end=pb.END_MODE_DROP_LAST)
    request = pb.ReadBatchesRequest(
        dataset="rich",
        order=pb.OrderSpec(seed=11, shuffle_samples=200),
        resume_token=whole.tokens[0],
        world_size=1,
        epoch_count=1,
        with_ids=True,
        columns=["tiny"],
    )

    assert whole.ids[1:] == read(served.channel, request).ids


def test_a_stream_goes_on_after_its_server_was_replaced(rich_url: str, served: Running) -> None:
    """Another server of the same dataset takes any token."""
    whole = _first(served, epoch_count=1, end=pb.END_MODE_DROP_LAST)

    with running(rich_url) as other:
        (part,) = _resumed(
            other, whole.tokens[2], epoch_count=1, end=pb.END_MODE_DROP_LAST, world_size=1
        )

    assert whole.ids[3:] == part.ids
