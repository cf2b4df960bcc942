"""Tests of `where=`: a loop over the samples that an expression keeps, from its first batch on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from headrace.client import (
    Batch,
    Deadlines,
    Mixture,
    MixtureEntry,
    NumpyDataset,
    Order,
    RemoteDataset,
    Selection,
    Transport,
)
from headrace.errors import BadArgumentError, TokenSpecChangedError
from headrace.server import Server
from support.datasets import write_dataset
from support.running import server_of
from support.threads import at_once

SAMPLES = 3000
WHERE = "label < 10 and lang = 'en'"
KEPT = [n for n in range(SAMPLES) if n // 100 < 10 and n % 3 == 0]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Samples sorted by label, in three languages, one of them null."""
    found = str(tmp_path_factory.mktemp("where") / "d")
    numbers = list(range(SAMPLES))
    table = pa.table(
        {
            "x": numbers,
            "label": [number // 100 for number in numbers],
            "lang": [("en", "de", None)[number % 3] for number in numbers],
        }
    )
    write_dataset(found, table, shard_samples=[1000, 2000], block_bytes=512)
    return found


@pytest.fixture(scope="module")
def server(url: str) -> Iterator[Server]:
    """A server of it, under two names."""
    with server_of({"d": url, "e": url}) as running:
        yield running


def _dataset(server: Server, where: str | None, world: tuple[int, int] = (0, 1)) -> RemoteDataset:
    return RemoteDataset(
        server.address,
        Selection("d", where=where),
        batch_size=64 // world[1],
        seed=3,
        end="uneven",
        epochs=2,
        rank=world[0],
        world_size=world[1],
        order=Order(with_ids=True),
        transport=Transport(deadlines=Deadlines(connect_s=10, give_up_s=10)),
    )


def _own(batch: Batch) -> Any:
    assert batch.sample_ids is not None
    return batch.sample_ids.tolist()


def _ids(dataset: RemoteDataset) -> list[int]:
    return [sample for batch in dataset for sample in _own(batch)]


def test_an_epoch_is_of_the_samples_that_are_kept(server: Server) -> None:
    """Each once, in every epoch, and `len` counts their batches."""
    dataset = _dataset(server, WHERE)

    assert -(-len(KEPT) // 64) == len(dataset) == dataset.batches_left
    first, second = _ids(dataset), _ids(dataset)
    assert sorted(first) == sorted(second) == KEPT
    assert first != second


def test_a_run_goes_on_with_another_world_size(server: Server) -> None:
    """Its state holds the expression, through JSON; words may differ, samples may not."""
    dataset = _dataset(server, WHERE)
    head: list[int] = []
    for batch in dataset:
        head += _own(batch)
        if len(head) == 128:
            break
    state = json.loads(json.dumps(dataset.state_dict()))
    rest = _ids(dataset)

    for where in (None, "lang='en' AND label <= 9"):
        parts = [_dataset(server, where, (rank, 2)) for rank in range(2)]
        for part in parts:
            part.load_state_dict(state)
        seen = [list(part) for part in parts]
        joined = [
            sample
            for batches in zip(*seen, strict=True)
            for batch in batches
            for sample in _own(batch)
        ]
        assert rest == joined
    changed = _dataset(server, "label < 10")
    changed.load_state_dict(state)
    with pytest.raises(TokenSpecChangedError, match="use the where= of the token's run"):
        _ids(changed)


def test_a_state_before_the_first_batch_holds_the_filter(server: Server) -> None:
    """The digest is asked for, so that what goes on from there has the same samples."""
    state = _dataset(server, WHERE).state_dict()
    dataset = _dataset(server, None)
    dataset.load_state_dict(state)

    assert KEPT == sorted(_ids(dataset))


def test_a_mixture_filters_each_dataset(server: Server) -> None:
    """By the `where` of its entry, which its state holds."""
    entries = (MixtureEntry("d", where="lang is null"), MixtureEntry("e", where="label = 3"))
    dataset = RemoteDataset(
        server.address,
        Mixture(entries),
        batch_size=50,
        end="uneven",
        epochs=1,
        order=Order(with_ids=True),
    )
    pairs = [tuple(pair) for batch in dataset for pair in _own(batch)]

    expected = [(0, n) for n in range(2, SAMPLES, 3)] + [(1, n) for n in range(300, 400)]
    assert expected == sorted(pairs)
    state = dataset.state_dict()
    plain = Mixture(tuple(MixtureEntry(each.name) for each in entries))
    again = RemoteDataset(server.address, plain, batch_size=50, end="uneven")
    again.load_state_dict(state)
    assert -(-len(expected) // 50) == len(again)


def test_numpy_arrays_and_skips_go_with_it(server: Server) -> None:
    """The same samples without torch; what is skipped gives its place to another one kept."""
    arrays = NumpyDataset(
        server.address, Selection("d", where=WHERE), batch_size=50, epochs=1, end="uneven"
    )
    assert KEPT == sorted(x for batch in arrays for x in batch["x"].tolist())
    dataset = RemoteDataset(
        server.address,
        Selection("d", where=WHERE, skips=[0, 1, 3]),
        batch_size=50,
        epochs=1,
        end="uneven",
        order=Order(with_ids=True),
    )
    seen = _ids(dataset)
    assert len(KEPT) == len(seen)
    assert set(KEPT) - {0, 3} == set(seen)


@pytest.mark.parametrize("where", ["label > 300", "lable < 3", "label <"])
def test_mistakes_are_raised_at_the_first_batch(server: Server, where: str) -> None:
    """And by `len`, with the field that is wrong."""
    with pytest.raises(BadArgumentError, match="where"):
        next(iter(_dataset(server, where)))
    with pytest.raises(BadArgumentError, match="where"):
        len(_dataset(server, where))


@pytest.mark.parametrize("where", ["", 3, ["label < 3"], b"label < 3"])
def test_what_is_no_text_is_refused_at_once(where: object) -> None:
    """Before any server is asked."""
    with pytest.raises(BadArgumentError, match="expected an expression such as"):
        RemoteDataset("localhost:1", Selection("d", where=where), batch_size=1)  # type: ignore[arg-type] # the mistake
    with pytest.raises(BadArgumentError, match="expected an expression such as"):
        MixtureEntry("d", where=where)  # type: ignore[arg-type] # the mistake


def test_many_ranks_begin_at_once(server: Server) -> None:
    """All of them wait for one look at the dataset, and have their parts of one order."""
    seen: dict[int, list[int]] = {}

    def run(rank: int) -> None:
        seen[rank] = _ids(_dataset(server, "label >= 20", (rank, 8)))

    at_once(run, range(8))

    assert list(range(2000, 3000)) == sorted(sample for own in seen.values() for sample in own)
