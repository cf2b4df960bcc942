"""Claims about parts of packed rows as a training loop gets them, and about changes of the mesh."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import pytest
import torch

from headrace.client import Batch, RemoteDataset, Sharding, Slice, cu_seqlens
from headrace.storage import RowOptions
from support.datasets import write_dataset
from support.packed import documents_of, index_rows, table_of
from support.running import server_of

_COLUMNS = ("tokens", "tokens.labels", "tokens.positions", "tokens.documents")
_FILL = {"tokens": 0, "tokens.labels": -100, "tokens.positions": 0, "tokens.documents": -1}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of rows of 48 elements."""
    url = str(tmp_path_factory.mktemp("packed"))
    write_dataset(url, table_of(documents_of(200, seed=3)), shard_samples=[120, 80])
    index_rows(url, RowOptions(48, eos=7))
    with server_of({"d": url}) as server:
        yield server.address


def _dataset(address: str, *, rank: int = 0, **options: Any) -> RemoteDataset:
    return RemoteDataset(
        address,
        "d:48",
        seed=5,
        epochs=1,
        rank=rank,
        columns=[*_COLUMNS, "tokens.boundaries"],
        sharding=Sharding(global_batch_size=4),
        **options,
    )


def _parts(address: str, layout: Any, cp: int) -> list[list[Batch]]:
    cut = Slice(_COLUMNS, layout=layout, boundaries="tokens.boundaries", fill=_FILL)
    found = []
    for rank in range(cp):
        with _dataset(address, rank=rank, world_size=cp, mesh={"cp": cp}, stages=[cut]) as dataset:
            found.append(list(dataset))
    return found


def _flat(batch: Batch, name: str) -> torch.Tensor:
    value: Any = batch[name]
    values: torch.Tensor = value.values if name in batch.ragged else value.reshape(-1)
    return values


@pytest.mark.parametrize("layout", ["contiguous", "zigzag", "documents"])
def test_parts_of_packed_rows_have_their_documents(
    address: str, layout: Literal["contiguous", "zigzag", "documents"]
) -> None:
    """Every token once, with its own label and position, between the boundaries of its document."""
    with _dataset(address, world_size=1) as dataset:
        whole = list(dataset)
    for batch, parts in zip(whole, zip(*_parts(address, layout, 3), strict=True), strict=True):
        seen = []
        for part in parts:
            bounds, longest = cu_seqlens(part.ragged["tokens.boundaries"])
            columns = [_flat(part, name) for name in _COLUMNS]
            assert len(columns[0]) == bounds[-1]
            assert int(bounds.diff().max()) == longest
            for low, high in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
                assert 1 == len(set(columns[3][low:high].tolist()) - {-1} or {-1})
            seen += list(zip(*(column.tolist() for column in columns), strict=True))
        wanted = list(zip(*(_flat(batch, name).tolist() for name in _COLUMNS), strict=True))
        real = [each for each in wanted if each[3] != -1]
        assert sorted(real) == sorted(each for each in seen if each[3] != -1)


def test_a_run_goes_on_in_another_mesh(address: str) -> None:
    """The state of a rank of one is that of all ranks of any other."""
    with _dataset(address, rank=1, world_size=4, mesh={"dp": 2, "tp": 2}) as dataset:
        next(iter(dataset))
        state = dataset.state_dict()
    with _dataset(address, world_size=1) as alone:
        alone.load_state_dict(state)
        wanted = [batch["tokens"].tolist() for batch in alone]
    found = []
    for rank in range(2):
        with _dataset(address, rank=2 * rank, world_size=4, mesh={"dp": 2, "cp": 2}) as dataset:
            dataset.load_state_dict(state)
            found.append([batch["tokens"].tolist() for batch in dataset])

    assert wanted == [first + second for first, second in zip(*found, strict=True)]
