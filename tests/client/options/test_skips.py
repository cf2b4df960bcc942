"""Samples that a job leaves out: kept by a state, extended on purpose alone."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.client import Order, RemoteDataset, Selection
from headrace.errors import BadArgumentError, TokenSpecChangedError
from headrace.order import Skips, decode_token
from headrace.server import Server
from support.datasets import small_table, write_dataset
from support.running import server_of


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A server that has no list stored."""
    write_dataset(str(tmp_path), small_table(100), shard_samples=[100])
    with server_of({"d": str(tmp_path)}) as started:
        yield started


def _dataset(
    server: Server, skips: list[int] | None = None, *, allow_new_skips: bool = False
) -> RemoteDataset:
    source = Selection("d", skips=skips, allow_new_skips=allow_new_skips)
    return RemoteDataset(
        server.address, source, batch_size=10, epochs=1, order=Order(with_ids=True)
    )


def _ids(dataset: RemoteDataset) -> list[int]:
    found = [batch.sample_ids for batch in dataset]
    return [sample for ids in found if ids is not None for sample in ids.tolist()]


def test_a_state_goes_on_without_the_skipped_samples(server: Server) -> None:
    """The state holds the list, so a dataset made without one goes on with it."""
    skips = [3, 7, 50]
    dataset, resumed = _dataset(server, skips=skips), _dataset(server)
    next(iter(dataset))
    state = json.loads(json.dumps(dataset.state_dict()))
    rest = _ids(dataset)

    resumed.load_state_dict(state)

    token = base64.b64decode(state["token"])
    assert Skips(skips).digest == decode_token(token).stage("skips")
    assert rest == _ids(resumed)
    assert not set(skips) & set(rest)


def test_more_skips_are_adopted_on_purpose_alone(server: Server) -> None:
    """Without `allow_new_skips` a longer list is refused; with it the run goes on."""
    dataset = _dataset(server, skips=[3, 7])
    next(iter(dataset))
    state = dataset.state_dict()
    strict = _dataset(server, skips=[3, 7, 9])
    free = _dataset(server, skips=[3, 7, 9], allow_new_skips=True)
    for each in (strict, free):
        each.load_state_dict(state)

    with pytest.raises(TokenSpecChangedError, match="allow_new_skips"):
        _ids(strict)

    assert not {3, 7, 9} & set(_ids(free))


def test_the_first_token_names_the_list(server: Server) -> None:
    """A state before the first batch is that of the run."""
    dataset = _dataset(server, skips=[3])
    state = dataset.state_dict()
    resumed = _dataset(server)

    resumed.load_state_dict(state)

    assert _ids(dataset) == _ids(resumed)


@pytest.mark.parametrize("skips", ["none", [-1], list(range(65_537))])
def test_what_is_no_list_is_refused(skips: object) -> None:
    """Before anything travels: no digest, an id below 0, too many."""
    with pytest.raises(BadArgumentError):
        RemoteDataset("127.0.0.1:1", Selection("d", skips=skips), batch_size=1)  # type: ignore[arg-type]  # that is what is tested
