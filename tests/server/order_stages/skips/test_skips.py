"""Tests of skips over the wire: samples that no batch holds, without moving any position."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.any_pb2 import Any as AnyMessage

from headrace.errors import ConfigurationError
from headrace.order import Order, OrderSpec, Skips, decode_token, table_of
from headrace.server import DatasetConfig
from headrace.storage import open_dataset
from headrace.v1 import mixtures_pb2 as mixtures_pb
from headrace.v1 import shard_service_pb2 as pb
from headrace.v1.skips_pb2 import Skip
from headrace.v1.stages import packed
from support.asking import asking, order_stages
from support.datasets import small_table, write_dataset
from support.running import channel_of, server_of
from support.served import TIMEOUT_S, Transcript, epoch_request, failure_of, read, stub_of

SAMPLES = 150
FEW, MORE = Skips(range(0, 150, 10)), Skips(range(0, 150, 5))


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A dataset of 150 samples."""
    found = str(tmp_path_factory.mktemp("skips") / "d")
    write_dataset(found, small_table(SAMPLES), shard_samples=[50, 100], block_bytes=512)
    return found


@pytest.fixture(scope="module")
def channel(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[grpc.Channel]:
    """A server that has the shorter list stored."""
    stored = tmp_path_factory.mktemp("lists") / "few.txt"
    stored.write_text("# taken down\n" + "".join(f"{each}\n" for each in FEW.sample_ids))
    datasets: dict[str, str | DatasetConfig] = {
        "d": DatasetConfig(url=url, skips=(str(stored),)),
        "e": url,
    }
    with channel_of(datasets) as opened:
        yield opened


def _sent(skips: Skips) -> pb.SkipList:
    return pb.SkipList(sample_ids=skips.sample_ids.tolist())


def _request(**fields: Any) -> pb.ReadBatchesRequest:
    request = epoch_request(
        dataset="d",
        order=pb.OrderSpec(seed=2, shuffle_samples=40),
        global_batch_size=20,
        with_ids=True,
    )
    request.MergeFrom(asking(pb.ReadBatchesRequest, **fields))
    return request


def _flat(seen: Transcript) -> list[int]:
    return [sample for ids in seen.ids for sample in ids]


def test_skipped_samples_are_replaced_and_counted(url: str, channel: grpc.Channel) -> None:
    """The order is that of `Order` with the list, and the substitutes are counted."""
    with open_dataset(url) as dataset:
        table = table_of(dataset.stretches())
    order = Order(OrderSpec(seed=2, shuffle_samples=40), table, skips=FEW)

    seen = read(channel, _request(skips=pb.SkipList(digest=FEW.digest)))

    assert order.sample_ids(0, 0, 140).tolist() == _flat(seen)
    assert not FEW.contains(np.array(_flat(seen))).any()
    substitutes = int(order.skipped(0, 0, 140).sum())
    assert substitutes == sum(batch.header.substitute_count for batch in seen.batches)
    assert substitutes == seen.ends[0].substitute_count
    assert FEW.digest == decode_token(seen.tokens[0]).stage("skips")
    assert seen.start is not None
    listed = pb.SkipList(digest=FEW.digest, sample_count=len(FEW))
    assert [packed(Skip(list=listed))] == list(seen.start.stages)


def test_a_list_that_is_sent_is_that_of_its_digest(channel: grpc.Channel) -> None:
    """Ids and digest give the same batches, and a token alone gives the token's list."""
    stored = read(channel, _request(skips=pb.SkipList(digest=FEW.digest)))
    sent = read(channel, _request(skips=_sent(FEW)))
    rest = read(channel, _request(resume_token=stored.tokens[1]))

    assert stored.ids == sent.ids
    assert stored.tokens == sent.tokens
    assert stored.ids[2:] == rest.ids


def test_a_dataset_names_its_lists(channel: grpc.Channel) -> None:
    """`GetDataset` gives digests and counts of the stored lists, and no ids."""
    found = stub_of(channel).GetDataset(pb.GetDatasetRequest(name="d"), timeout=TIMEOUT_S)

    assert [pb.SkipList(digest=FEW.digest, sample_count=15)] == list(found.dataset.skip_lists)


def _refused(channel: grpc.Channel, request: pb.ReadBatchesRequest) -> str:
    with pytest.raises(grpc.RpcError) as caught:
        read(channel, request)
    return str(failure_of(caught.value)[1].reason)


def test_a_longer_list_is_adopted_where_that_is_allowed(channel: grpc.Channel) -> None:
    """A superset goes on at the same positions; without leave, and for less, it is refused."""
    seen = read(channel, _request(skips=_sent(FEW)))
    token = seen.tokens[1]
    adopted = read(channel, _request(resume_token=token, skips=_sent(MORE), allow_new_skips=True))

    assert [20 * (2 + index) for index in range(5)] == [
        batch.header.position for batch in adopted.batches
    ]
    plain = _flat(read(channel, _request()))[40:]
    kept = zip(plain, _flat(adopted), strict=True)
    assert all(a == b for a, b in kept if a not in MORE.sample_ids)
    assert MORE.digest == decode_token(adopted.tokens[0]).stage("skips")
    later = adopted.tokens[0]
    assert "TOKEN_SPEC_CHANGED" == _refused(
        channel, _request(resume_token=token, skips=_sent(MORE))
    )
    assert "TOKEN_SPEC_CHANGED" == _refused(
        channel,
        _request(
            resume_token=later, skips=_sent(FEW), token_skips=_sent(MORE), allow_new_skips=True
        ),
    )


def test_a_server_without_the_tokens_list_is_told_it(channel: grpc.Channel) -> None:
    """Adopting a list needs the token's, from the server or from the client."""
    token = read(channel, _request(dataset="e", skips=_sent(FEW))).tokens[0]
    change = {"dataset": "e", "resume_token": token, "skips": _sent(MORE), "allow_new_skips": True}

    told = read(channel, _request(**change, token_skips=_sent(FEW)))

    assert 6 == len(told.batches)
    assert "SKIPS_NOT_FOUND" == _refused(channel, _request(**change))
    assert "TOKEN_SPEC_CHANGED" == _refused(channel, _request(**change, token_skips=_sent(MORE)))
    assert "SKIPS_NOT_FOUND" == _refused(channel, _request(dataset="e", resume_token=token))


def test_a_run_without_skips_may_adopt_some(channel: grpc.Channel) -> None:
    """A takedown reaches a run that began without a list."""
    token = read(channel, _request()).tokens[0]

    seen = read(channel, _request(resume_token=token, skips=_sent(FEW), allow_new_skips=True))

    assert not FEW.contains(np.array(_flat(seen))).any()


@pytest.mark.parametrize(
    ("skips", "reason"),
    [
        (pb.SkipList(sample_ids=[-1]), "BAD_COORDINATES"),
        (pb.SkipList(sample_ids=[1], digest="ab" * 16), "BAD_COORDINATES"),
        (pb.SkipList(digest="none"), "SKIPS_NOT_FOUND"),
        (pb.SkipList(sample_ids=range(65_537)), "BAD_COORDINATES"),
        (pb.SkipList(sample_ids=range(SAMPLES)), "BAD_COORDINATES"),
    ],
)
def test_a_list_that_cannot_be_is_refused(
    channel: grpc.Channel, skips: pb.SkipList, reason: str
) -> None:
    """Ids below 0, a wrong digest, an unknown list, too many ids, and all samples."""
    assert reason == _refused(channel, _request(skips=skips))


def test_each_dataset_of_a_mixture_has_its_list(channel: grpc.Channel) -> None:
    """Ids are those of the dataset; a token needs the same lists, or leave to adopt more."""
    entries = [
        mixtures_pb.MixtureDataset(name="d", stages=_skipping(pb.SkipList(digest=FEW.digest))),
        mixtures_pb.MixtureDataset(name="e", stages=_skipping(_sent(MORE))),
    ]
    mixture = mixtures_pb.Mixture(datasets=entries)
    fields: dict[str, Any] = {"dataset": "", "mixture": mixture}

    seen = read(channel, _mixed(**fields))
    rest = read(channel, _mixed(**fields, resume_token=seen.tokens[3]))

    pairs = np.concatenate([batch.values["headrace.sample_id"] for batch in seen.batches])
    assert (pairs[:, 1] % np.where(pairs[:, 0], 5, 10)).all()
    assert [batch.payload for batch in seen.batches[4:]] == [
        batch.payload for batch in rest.batches
    ]
    del mixture.datasets[1].stages[:]
    assert "TOKEN_SPEC_CHANGED" == _refused(
        channel, _mixed(mixture=mixture, resume_token=seen.tokens[3])
    )
    assert "BAD_COORDINATES" == _refused(channel, _mixed(**fields, skips=_sent(FEW)))


@pytest.mark.parametrize("allowed", [(), ("d",), ("e",)])
def test_only_a_dataset_that_allows_it_gets_a_longer_list(
    channel: grpc.Channel, allowed: tuple[str, ...]
) -> None:
    """In a mixture the permission of one dataset is none for the lists of the others."""

    def mixture(skips: Skips) -> mixtures_pb.Mixture:
        stages = {
            "d": _skipping(_sent(FEW), token_skips=_sent(FEW), allow_new_skips="d" in allowed)
        }
        stages["e"] = _skipping(
            _sent(skips), token_skips=_sent(FEW), allow_new_skips="e" in allowed
        )
        entries = [mixtures_pb.MixtureDataset(name=one, stages=stages[one]) for one in stages]
        return mixtures_pb.Mixture(datasets=entries)

    token = read(channel, _mixed(mixture=mixture(FEW))).tokens[0]
    request = _mixed(mixture=mixture(MORE), resume_token=token)

    if allowed == ("e",):
        assert read(channel, request).batches
    else:
        assert "TOKEN_SPEC_CHANGED" == _refused(channel, request)


def _skipping(skips: pb.SkipList, **fields: Any) -> list[AnyMessage]:
    return order_stages(skips=skips, **fields)


def _mixed(**fields: Any) -> pb.ReadBatchesRequest:
    request = _request(**fields)
    request.ClearField("dataset")
    return request


@pytest.mark.parametrize("content", ["one\n", "-3\n", "99999999999999999999999\n", "1 2\n"])
def test_a_stored_list_of_something_else_is_refused_at_the_start(
    url: str, tmp_path: Path, content: str
) -> None:
    """A server does not start without a list that it should have."""
    stored = tmp_path / "list.txt"
    stored.write_text(content)
    datasets = {"d": DatasetConfig(url=url, skips=(str(stored),))}

    with pytest.raises(ConfigurationError, match=r"list\.txt"):
        server_of(datasets)
