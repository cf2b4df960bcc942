"""Claims about ``buckets=``: padded batches of like length, resumed on any number of ranks.

How it could go wrong: lengths that stand beside a converted dataset and are not used; a state that
resumes without its buckets, or in others, without a word; an older server that sends any lengths.
"""

from __future__ import annotations

import itertools
import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from headrace.client import (
    Batch,
    BatchLoader,
    Deadlines,
    Fallback,
    NumpyDataset,
    Order,
    RemoteDataset,
    Sharding,
    Transport,
)
from headrace.converter import WriteOptions, convert_files
from headrace.errors import BadArgumentError, TokenSpecChangedError
from headrace.order import decode_token, split_buckets
from headrace.server import Server
from support.private import server_pids
from support.proxy import proxied
from support.running import server_of
from support.s3 import S3

_COUNT, _GLOBAL = 500, 24
_LENGTHS = np.random.default_rng(4).integers(1, 400, _COUNT)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Documents whose lengths were stored as they were converted, and by nothing else."""
    folder = tmp_path_factory.mktemp("d")
    _convert(folder, str(folder / "d"))
    return str(folder / "d")


def _convert(folder: Path, url: str) -> None:
    lists = pa.array([np.full(each, each % 100) for each in _LENGTHS], pa.list_(pa.int32()))
    pq.write_table(pa.table({"tokens": lists}), folder / "a.parquet")
    source = str(folder / "a.parquet")
    convert_files(source, url, source_format="parquet", write=WriteOptions(lengths="tokens"))


def _serving(url: str) -> Server:
    return server_of({"d": url})


@pytest.fixture(scope="module")
def server(url: str) -> Iterator[Server]:
    """A server of them."""
    with _serving(url) as running:
        yield running


def _run(server: Server, rank: int, world: int, **more: Any) -> RemoteDataset:
    return _of(server.address, rank, world, **more)


def _of(
    address: str, rank: int, world: int, *, buckets: int | None = 10, **more: Any
) -> RemoteDataset:
    fields = {"end": "uneven", "epochs": 2, **more}
    order = Order(buckets=buckets, with_ids=True)
    sharding = Sharding(global_batch_size=_GLOBAL)
    return RemoteDataset(
        address,
        "d",
        seed=5,
        rank=rank,
        world_size=world,
        order=order,
        sharding=sharding,
        **fields,
    )


def _ids(batch: Batch) -> list[int]:
    assert batch.sample_ids is not None
    return cast("list[int]", batch.sample_ids.tolist())


def _epochs(runs: list[RemoteDataset]) -> list[list[int]]:
    """Return the samples of each global batch that runs have left."""
    # Each loop is an epoch, and the state of a run may lie in the first of two.
    ranks = [[_ids(batch) for _ in range(2) for batch in run] for run in runs]
    return [sorted(itertools.chain(*parts)) for parts in zip(*ranks, strict=True)]


def test_padded_batches_are_mostly_real(server: Server) -> None:
    """All ranks of a step have like lengths, and padding is little, to few shapes."""
    steps = zip(*(list(_run(server, rank, 3, buckets=20)) for rank in range(3)), strict=True)
    real = padded = 0
    for parts in list(steps)[:-1]:
        shapes = set()
        for batch in parts:
            tokens = batch.ragged["tokens"].to_padded(multiple_of=16)
            assert torch.equal(tokens[:, 0], torch.tensor(_LENGTHS[_ids(batch)] % 100).int())
            real += int(_LENGTHS[_ids(batch)].sum())
            padded += tokens.numel()
            shapes.add(tokens.shape[1])
        assert max(shapes) - min(shapes) <= 48
    assert real > 0.88 * padded


def test_a_state_holds_its_buckets(server: Server) -> None:
    """Two ranks, killed in the first epoch, continue on three and in a dataset without buckets."""
    wanted = _epochs([_run(server, 0, 1)])
    assert sorted(itertools.chain(*wanted[: len(wanted) // 2])) == list(range(_COUNT))

    first = _run(server, 1, 2)
    for _ in itertools.islice(first, 7):
        pass
    state = json.loads(json.dumps(first.state_dict()))
    rest = [_run(server, rank, 3, buckets=None) for rank in range(3)]
    for run in rest:
        run.load_state_dict(state)
    assert _epochs(rest) == wanted[7:]

    for other in (_run(server, 0, 2, buckets=11), _run(server, 0, 2, buckets=9)):
        with pytest.raises(TokenSpecChangedError, match="the state has 10"):
            other.load_state_dict(state)


def test_a_state_from_before_the_first_batch_has_buckets_too(server: Server) -> None:
    """It holds no lengths yet."""
    run = _run(server, 0, 1)
    state = run.state_dict()
    other = _run(server, 0, 1, buckets=None)
    other.load_state_dict(state)
    assert _epochs([other]) == _epochs([run])


def test_workers_of_a_loader_read_the_same_batches(server: Server) -> None:
    """Two workers, broken off in the first epoch; three ranks without workers go on from there."""
    wanted = _epochs([_run(server, 0, 1)])
    loader = BatchLoader(_run(server, 0, 1), num_workers=2)
    assert [sorted(_ids(batch)) for _ in range(2) for batch in loader] == wanted

    broken = BatchLoader(_run(server, 0, 1), num_workers=2)
    seen = [sorted(_ids(batch)) for batch in itertools.islice(broken, 5)]
    state = json.loads(json.dumps(broken.state_dict()))
    rest = [_run(server, rank, 3) for rank in range(3)]
    for run in rest:
        run.load_state_dict(state)
    assert seen + _epochs(rest) == wanted


def test_storage_takes_over_and_gives_back(
    url: str, runtime: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A rank whose server is gone reads the same buckets from storage, and then from a server."""
    caplog.set_level(logging.WARNING)
    quick = Deadlines(connect_s=200, silence_s=0.5, give_up_s=200, fallback_s=0.3)
    way = Transport(prefetch_bytes=0, deadlines=quick, fallback=Fallback(url))
    with _serving(url) as first, proxied(first.address) as proxy:
        wanted = [_ids(batch) for batch in _run(first, 1, 2, epochs=1)]
        rank = _of(proxy.address, 1, 2, epochs=None, transport=way)
        batches = iter(rank)
        seen = [_ids(batch) for batch in itertools.islice(batches, 5)]
        first.stop()
        seen += [_ids(batch) for batch in batches]
        states: list[dict[str, Any]] = []
        epochs: list[list[list[int]]] = []
        # On a busy machine, epochs that the server had sent before it ended are still on their way.
        deadline = time.monotonic() + 120
        while not epochs or (not server_pids(runtime) and time.monotonic() < deadline):
            states.append(rank.state_dict())
            epochs.append([_ids(batch) for batch in rank])
        assert len(server_pids(runtime)) == 1
        with _serving(url) as second:
            proxy.upstream = second.address
            # It looks for a server now and then, and an epoch takes milliseconds.
            deadline = time.monotonic() + 120
            for _ in itertools.chain.from_iterable(itertools.repeat(rank)):
                if "moving back" in caplog.text or time.monotonic() > deadline:
                    break
            assert "moving back" in caplog.text
            # The rest of an epoch that was broken off.
            for _ in rank:
                pass
            states.append(rank.state_dict())
            epochs.append([_ids(batch) for batch in rank])
            assert seen == wanted
            for state, epoch in zip(states, epochs, strict=True):
                plain = _run(second, 1, 2, epochs=None)
                plain.load_state_dict(state)
                assert [_ids(batch) for batch in plain] == epoch
        rank.close()


def test_a_store_of_objects_has_the_same_batches(server: Server, s3: S3, tmp_path: Path) -> None:
    """Converted to S3 and served from there, also to two ranks after a state of local files."""
    _convert(tmp_path, s3.url("d"))
    wanted = _epochs([_run(server, 0, 1)])
    local = _run(server, 0, 1)
    for _ in itertools.islice(local, 4):
        pass
    with _serving(s3.url("d")) as stored:
        assert _epochs([_run(stored, rank, 3) for rank in range(3)]) == wanted
        rest = [_run(stored, rank, 2) for rank in range(2)]
        for run in rest:
            run.load_state_dict(local.state_dict())
        assert _epochs(rest) == wanted[4:]


def test_numpy_reads_the_same_batches(server: Server) -> None:
    """And a token of theirs says which buckets they are."""
    wanted = [_LENGTHS[_ids(batch)].tolist() for batch in _run(server, 0, 1, end="drop_last")]
    found = NumpyDataset(
        server.address, "d", batch_size=_GLOBAL, seed=5, epochs=1, order=Order(buckets=10)
    )
    assert [[len(each) for each in arrays["tokens"]] for arrays in found] == wanted
    assert found.token is not None
    assert split_buckets(decode_token(found.token).stage("buckets"))[0] == 10


def test_what_has_no_buckets_is_refused_before_anything_is_asked() -> None:
    """Mixtures, and numbers out of range."""
    for dataset, buckets, words in (
        ([("a", 0.5), ("b", 0.5)], 10, "for a mixture"),
        ("a", 1, r"order\.buckets is 1"),
        ("a", True, r"order\.buckets is True"),
        ("a", 1 << 17, r"order\.buckets is 131072"),
    ):
        with pytest.raises(BadArgumentError, match=words):
            RemoteDataset(
                "localhost:1", cast("Any", dataset), batch_size=2, order=Order(buckets=buckets)
            )


def test_an_old_state_has_none(server: Server) -> None:
    """A run without buckets does not continue with some."""
    plain = _run(server, 0, 1, buckets=None)
    next(iter(plain))
    with pytest.raises(TokenSpecChangedError, match="the state has none"):
        _run(server, 0, 1).load_state_dict(plain.state_dict())
