"""What the server does with a batch, as a training job asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
import torch

from headrace.client import Cast, DecodeImage, Order, Pad, RemoteDataset, Stack
from headrace.errors import BadArgumentError, StageFailedError
from headrace.server import Server
from support.datasets import write_dataset
from support.running import server_of


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A server of 40 documents."""
    item = pa.field("item", pa.int32(), nullable=False)
    documents = [[number] * (number % 5) for number in range(40)]
    table = pa.table(
        {
            "tokens": pa.array(documents, pa.list_(item)),
            "pair": pa.array([[number, number] for number in range(40)], pa.list_(item)),
        }
    )
    write_dataset(str(tmp_path), table, shard_samples=[40])
    with server_of({"d": str(tmp_path)}) as started:
        yield started


def _dataset(server: Server, *steps: Cast | Pad | Stack, **options: object) -> RemoteDataset:
    return RemoteDataset(
        server.address,
        "d",
        batch_size=10,
        epochs=1,
        stages=steps,
        order=Order(with_ids=True),
        **options,  # type: ignore[arg-type]  # tests name the options they mean
    )


def test_ragged_columns_arrive_as_tensors(server: Server) -> None:
    """Padded and stacked rows are tensors of the type asked for."""
    steps = (Pad("tokens", 4, fill=-1), Cast("tokens", "int64"), Stack("pair", (1, 2)))
    for batch in _dataset(server, *steps):
        assert batch.sample_ids is not None
        tokens, pair = batch["tokens"], batch["pair"]
        assert (torch.int64, (10, 4)) == (tokens.dtype, tuple(tokens.shape))
        assert torch.equal(batch.sample_ids, pair[:, 0, 0].long())
        own = (tokens >= 0).sum(dim=1)
        assert torch.equal(own, batch["tokens.length"])


def test_a_step_that_fails_reaches_the_loop(server: Server) -> None:
    """The error says which column and why; what is no step is refused before anything travels."""
    with pytest.raises(StageFailedError, match="'tokens'"):
        list(_dataset(server, Stack("tokens", (3,))))
    with pytest.raises(BadArgumentError, match="float16"):
        Cast("x", "float17").to_message()
    with pytest.raises(BadArgumentError, match="cover"):
        DecodeImage("x", 1, 1, fit="crop").to_message()  # type: ignore[arg-type]  # that is what is tested
