"""Tests of FindSamples: what it says is where streams of all ranks have the samples."""

from __future__ import annotations

import grpc
import numpy as np
import pytest

from headrace.v1 import mixtures_pb2 as mixtures_pb
from headrace.v1 import shard_service_pb2 as pb
from server.conftest import StartServer
from support.asking import asking
from support.running import RICH_SAMPLES, Running, server_of
from support.served import TIMEOUT_S, failure_of, read, stub_of

_ORDER = pb.OrderSpec(seed=5, shuffle_samples=300, run_bytes=2000)
_SKIPS = [0, 1, 2, 3, 60, 61, 400]
_Rows = dict[int, list[tuple[int, int, int]]]


def _batch(**fields: object) -> pb.GetBatchRequest:
    request = pb.GetBatchRequest(
        dataset="rich",
        order=_ORDER,
        global_batch_size=64,
        world_size=1,
        epoch_start=pb.EpochStart(epoch=1, position=130),
    )
    request.MergeFrom(asking(pb.GetBatchRequest, **fields))
    return request


def _found(served: Running, request: pb.FindSamplesRequest) -> _Rows:
    answer = stub_of(served.channel).FindSamples(request, timeout=TIMEOUT_S)
    found: _Rows = {}
    for row in answer.rows:
        assert 1 == row.epoch
        found.setdefault(row.sample, []).append((row.step, row.rank, row.row))
    return found


def _streamed(
    served: Running, batch: pb.GetBatchRequest
) -> dict[tuple[int, ...], list[tuple[int, ...]]]:
    """Return where the streams of all ranks have each sample."""
    found: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for rank in range(batch.world_size):
        request = pb.ReadBatchesRequest(
            dataset=batch.dataset,
            order=batch.order,
            global_batch_size=batch.global_batch_size,
            rank=rank,
            world_size=batch.world_size,
            end=batch.end,
            epoch_start=batch.epoch_start,
            epoch_count=1,
            with_ids=True,
            stages=batch.stages,
        )
        for one in read(served.channel, request).batches:
            for row, sample_id in enumerate(one.ids):
                # Of a mixture they are pairs.
                key = tuple(np.atleast_1d(sample_id).tolist())
                found.setdefault(key, []).append((one.header.step, rank, row))
    return {sample_id: sorted(rows) for sample_id, rows in found.items()}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"world_size": 3, "end": pb.END_MODE_UNEVEN},
        {"world_size": 2, "end": pb.END_MODE_PAD},
        {"world_size": 2, "skips": pb.SkipList(sample_ids=_SKIPS), "end": pb.END_MODE_PAD},
        {"order": pb.OrderSpec(seed=5, lanes=4, unit=64)},
    ],
    ids=["one rank", "uneven", "pads", "skips", "lanes"],
)
def test_samples_are_where_streams_have_them(
    rich_url: str, start: StartServer, fields: dict[str, object]
) -> None:
    """Every sample: in all rows, substitutes and pads included, or in none."""
    served, batch = start(rich_url), _batch(**fields)
    streamed = _streamed(served, batch)

    request = pb.FindSamplesRequest(batch=batch, sample_ids=range(RICH_SAMPLES))
    found = _found(served, request)

    assert {sample: rows for (sample,), rows in streamed.items()} == found


def test_samples_of_a_mixture_are_where_streams_have_them(rich_url: str) -> None:
    """By the dataset's index and the sample's id in it; a dataset may come several times."""
    with (
        server_of({"rich": rich_url, "again": rich_url}) as server,
        grpc.insecure_channel(server.address) as channel,
    ):
        _check_mixture(Running(server, channel))


def _check_mixture(served: Running) -> None:
    mixture = mixtures_pb.Mixture(
        datasets=[
            mixtures_pb.MixtureDataset(name="rich", repeat=0.4),
            mixtures_pb.MixtureDataset(name="again", repeat=1.5),
        ]
    )
    batch = _batch(world_size=2, mixture=mixture)
    batch.ClearField("dataset")
    streamed = _streamed(served, batch)
    keys = [(index, sample) for index in range(2) for sample in range(0, RICH_SAMPLES, 7)]

    found = _found(
        served,
        pb.FindSamplesRequest(
            batch=batch,
            sample_ids=[sample for _, sample in keys],
            dataset_indices=[index for index, _ in keys],
        ),
    )

    assert {i: streamed[key] for i, key in enumerate(keys) if key in streamed} == found


@pytest.mark.parametrize(
    ("field", "request_"),
    [
        ("sample_ids", pb.FindSamplesRequest(batch=_batch())),
        ("sample_ids", pb.FindSamplesRequest(batch=_batch(), sample_ids=[RICH_SAMPLES])),
        ("sample_ids", pb.FindSamplesRequest(batch=_batch(), sample_ids=[-1])),
        ("sample_ids", pb.FindSamplesRequest(batch=_batch(), sample_ids=[1] * 4097)),
        (
            "dataset_indices",
            pb.FindSamplesRequest(batch=_batch(), sample_ids=[1], dataset_indices=[0]),
        ),
        (
            "sample_ids",
            pb.FindSamplesRequest(
                batch=_batch(world_size=1 << 24, global_batch_size=1 << 30, end=pb.END_MODE_PAD),
                sample_ids=[1],
            ),
        ),
    ],
    ids=["none", "past the end", "negative", "too many", "an index", "pads"],
)
def test_what_cannot_be_answered_is_refused(
    rich_url: str, start: StartServer, field: str, request_: pb.FindSamplesRequest
) -> None:
    """At once, and by the name of the field."""
    served = start(rich_url)

    with pytest.raises(grpc.RpcError) as caught:
        stub_of(served.channel).FindSamples(request_, timeout=TIMEOUT_S)

    code, info = failure_of(caught.value)
    assert (grpc.StatusCode.INVALID_ARGUMENT, field) == (code, info.metadata["field"])
