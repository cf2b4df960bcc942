"""Claims about `headrace read --buckets`: the batches that a training loop gets.

How it could mislead: other batches than those of a loop, or a token that is read without its
buckets, so that what is shown is not what a resumed run reads.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from headrace.cli.stored.row_counter import row_counter
from headrace.client import NumpyDataset, Order
from headrace.server import Server
from headrace.storage import RowOptions, index_packing
from support.command import run
from support.datasets import write_dataset
from support.running import server_of

_COUNT = 400
_LENGTHS = np.random.default_rng(8).integers(1, 200, _COUNT)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Documents of these lengths, with lengths stored and without."""
    urls = {name: str(tmp_path_factory.mktemp(name)) for name in ("d", "bare")}
    lists = pa.array([np.full(each, 7) for each in _LENGTHS], pa.list_(pa.int32()))
    for url in urls.values():
        write_dataset(url, pa.table({"tokens": lists}), shard_samples=(150, 250), block_bytes=4096)
    index_packing(urls["d"], RowOptions(256), columns=["tokens"], count_rows=row_counter())
    with server_of(urls) as running:
        yield running


def _read(server: Server, *arguments: str) -> list[dict[str, object]]:
    ran = run("read", server.address, "d", "--ids", "--json", "--seed", "5", *arguments)
    assert ran.returncode == 0, ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines()]


def test_it_shows_what_a_loop_reads(server: Server) -> None:
    """For each rank of two; and after a token, with the buckets said again or not."""
    for rank in range(2):
        place = ("--rank", str(rank), "--world-size", "2", "--global-batch-size", "16")
        shown = _read(server, "--buckets", "10", *place)
        dataset = NumpyDataset(
            server.address,
            "d",
            batch_size=8,
            seed=5,
            epochs=1,
            rank=rank,
            world_size=2,
            order=Order(buckets=10),
        )
        with dataset:
            lengths = [[len(each) for each in arrays["tokens"]] for arrays in dataset]

        assert [_LENGTHS[np.array(each["ids"])].tolist() for each in shown] == lengths
        spreads = [max(each) / min(each) for each in lengths[:20]]
        assert np.median(spreads) < 1.5
        token = str(shown[6]["token"])
        for again in ((), ("--buckets", "10")):
            rest = _read(server, "--token", token, *again, *place)
            assert [each["ids"] for each in rest] == [each["ids"] for each in shown[7:]]


def test_what_cannot_be_is_said(server: Server) -> None:
    """Numbers out of range, other buckets than the token's, and datasets without lengths."""
    token = str(_read(server, "--buckets", "10", "--global-batch-size", "16")[0]["token"])
    for name, words, found in (
        ("d", ("--buckets", "1"), "--buckets is 1; expected an int in [2, 65537)"),
        ("d", ("--buckets", "9", "--token", token), "10"),
        ("bare", ("--buckets", "9"), "headrace index URL --pack-length"),
    ):
        ran = run("read", server.address, name, "--global-batch-size", "16", *words)
        assert ran.returncode != 0
        assert found in ran.stderr
