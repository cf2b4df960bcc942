"""A mixture as a training job names it: resumable, in the versions that the run began with."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.client import Batch, Mixture, MixtureEntry, Order, RemoteDataset, read_mixture
from headrace.errors import BadArgumentError, TokenDatasetChangedError, TokenSpecChangedError
from headrace.order import piecewise
from headrace.server import Server
from headrace.storage import ShardWriter, commit_dataset, open_store
from support.datasets import small_table, write_dataset
from support.running import server_of

PAIRS = [("a", 0.7), ("b", 0.3)]


@pytest.fixture
def urls(tmp_path: Path) -> dict[str, str]:
    """Two datasets that a test may append to."""
    found = {name: str(tmp_path / name) for name in "ab"}
    for url in found.values():
        write_dataset(url, small_table(60), shard_samples=[20, 40])
    return found


@pytest.fixture
def server(urls: dict[str, str]) -> Iterator[Server]:
    """A server of both."""
    with server_of(urls) as started:
        yield started


def _ids(batches: Iterable[Batch]) -> list[list[list[int]]]:
    found = [batch.sample_ids for batch in batches]
    return [ids.tolist() for ids in found if ids is not None]


def _dataset(server: Server, mixture: object = PAIRS, **options: object) -> RemoteDataset:
    fields: dict[str, object] = {"batch_size": 10, "seed": 3, "epochs": 2}
    fields["order"] = Order(with_ids=True)
    return RemoteDataset(server.address, mixture, **{**fields, **options})  # type: ignore[arg-type]  # tests name the options they mean


def test_pairs_are_names_and_proportions(server: Server) -> None:
    """An epoch has as many samples as all datasets, drawn 7 to 3; ids are pairs."""
    dataset = _dataset(server)

    epoch = [pair for batch in _ids(dataset) for pair in batch]

    assert 12 == len(dataset)
    assert 120 == len(epoch)
    assert 84 == sum(1 for index, _ in epoch if index == 0)
    assert all(0 <= number < 60 for _, number in epoch)


def test_a_run_goes_on_in_its_versions_after_an_append(
    server: Server, urls: dict[str, str]
) -> None:
    """A state holds the version of each dataset, so that a later server gives the same batches."""
    dataset = _dataset(server)
    loop = iter(dataset)
    next(loop)
    state = json.loads(json.dumps(dataset.state_dict()))
    rest = _ids(loop)
    _append(urls["b"])

    with server_of(urls) as later:
        resumed = _dataset(later)
        # Asked for its length first, it has learnt of the current versions.
        assert 13 == len(resumed)
        resumed.load_state_dict(state)

        assert 12 == len(resumed)
        assert rest == _ids(resumed)
        # The token of one version of each; the client asks for the current ones, by name.
        current = _dataset(later).resume(_token(state))
        with pytest.raises(TokenDatasetChangedError, match="version of each dataset"):
            next(iter(current))


def _token(state: dict[str, object]) -> bytes:
    return base64.b64decode(str(state["token"]))


def _append(url: str) -> None:
    table = small_table(10)
    store = open_store(url)
    with ShardWriter(store, "later.arrow", schema=table.schema) as writer:
        for batch in table.to_batches():
            writer.append(batch)
        entry = writer.close()
    commit_dataset(store, table.schema, [entry], mode="append")


def test_a_state_of_another_mixture_is_refused_in_words(server: Server) -> None:
    """The message names the option that differs, with both values."""
    state = _dataset(server).state_dict()
    other = _dataset(server, [("a", 0.6), ("b", 0.3)])
    single = _dataset(server, "a")

    with pytest.raises(TokenSpecChangedError, match=r"a.proportion: 0.6 requested, .* 0.7"):
        other.load_state_dict(state)
    with pytest.raises(TokenSpecChangedError, match="belongs to a mixture"):
        single.load_state_dict(state)
    with pytest.raises(TokenSpecChangedError, match="another mixture"):
        _dataset(server).load_state_dict(single.state_dict())


_PRIVATE = """
import json, sys
from headrace.client import Order, RemoteDataset
pairs = [(sys.argv[1], 0.7), (sys.argv[2], 0.3)]
dataset = RemoteDataset(None, pairs, batch_size=10, seed=3, epochs=1, order=Order(with_ids=True))
print(json.dumps([batch.sample_ids.tolist() for batch in dataset]))
"""


def test_a_private_server_reads_a_mixture_of_urls(urls: dict[str, str], server: Server) -> None:
    """With no address the names are URLs, and the batches are those of a server of both."""
    # In a process of its own, with which the private server ends.
    command = [sys.executable, "-c", _PRIVATE, urls["a"], urls["b"]]
    found = subprocess.run(command, check=True, capture_output=True, text=True, timeout=240)

    assert _ids(_dataset(server)) == json.loads(found.stdout)


MIXTURES = [
    Mixture((MixtureEntry("a", repeat=2), MixtureEntry("b", choose=7, choice="fixed"))),
    Mixture((MixtureEntry("a", proportion=1),), "per_dataset", epoch_size=40),
    Mixture((MixtureEntry("a"), MixtureEntry("b")), schedule=piecewise([0, 9], [[1, 0], [1, 2]])),
]


@pytest.mark.parametrize("mixture", MIXTURES)
def test_a_mixture_survives_json(mixture: Mixture) -> None:
    """What stands in a state or a file reads as the same mixture."""
    found = read_mixture(json.dumps(mixture.to_json()))

    assert replace(mixture, schedule=None) == replace(found, schedule=None)
    assert mixture.to_message() == found.to_message()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"datasets": 3}',
        '{"datasets": []}',
        '{"datasets": [{"proportion": 1}]}',
        '{"datasets": [{"name": "a", "weight": 1}]}',
        '{"datasets": [{"name": "a", "proportion": "much"}]}',
        '{"datasets": [{"name": "a", "proportion": 1, "repeat": 1}]}',
        '{"datasets": [{"name": "a"}], "batching": "best"}',
        '{"datasets": [{"name": "a"}], "schedule": {"starts": [1], "weights": [[1]]}}',
    ],
)
def test_what_is_no_mixture_is_refused(text: str) -> None:
    """A file of something else is BAD_COORDINATES, with what is wanted."""
    with pytest.raises(BadArgumentError):
        read_mixture(text)
