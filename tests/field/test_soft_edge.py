"""A cache that is smaller than what is shuffled together costs some more bytes, and never hundreds.

Scaled down: blocks are of 8 KiB, and four hundred of them are shuffled together.
"""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable, Generator
from contextlib import ExitStack, closing
from pathlib import Path

import grpc
import numpy as np
import pyarrow as pa
import pytest

from headrace.server import Server
from headrace.storage import RowOptions, open_dataset
from headrace.storage.packing import groups
from headrace.v1 import dealing_pb2 as dealing_pb
from headrace.v1 import mixtures_pb2 as mixtures_pb
from headrace.v1 import shard_service_pb2 as pb
from support.asking import asking
from support.datasets import write_dataset
from support.needs import needed_cache
from support.packed import index_rows
from support.running import server_of
from support.served import TIMEOUT_S, messages_of, read, read_until_failure
from support.threads import at_once

_BLOCK_BYTES = 8192
_SHUFFLE_BYTES = 400 * _BLOCK_BYTES
_RANKS = 4
# With gRPC's own amount, all batches of these small epochs would be on the way to each rank, and
# the server would be windows apart in what ranks read in step.
_LITTLE_ON_THE_WAY = (
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 1 << 14),
)
EDGE = {0.9: 2.2, 0.75: 4.0, 0.5: 6.5}
"""The promise: bytes read over bytes stored, by the part of what is needed that the cache has."""


def _rows(count: int) -> pa.Table:
    values = pa.array(np.arange(count * 40, dtype=np.float32))
    x = pa.FixedSizeListArray.from_arrays(values, 40)
    return pa.table({"x": x, "label": np.arange(count)})


def _more_columns(count: int) -> pa.Table:
    return _rows(count).append_column("more", pa.array(np.arange(count)))


def _images(count: int) -> pa.Table:
    return pa.table({"image": [i.to_bytes(4) * 63 for i in range(count)]})


def _texts(count: int) -> pa.Table:
    return pa.table({"text": [f"{i:06d}" * (16 + i % 33) for i in range(count)]})


# The raw bytes of a sample, and what makes so many.
_KINDS: dict[str, tuple[int, Callable[[int], pa.Table]]] = {
    "rows": (168, _rows),
    "images": (256, _images),
    "texts": (196, _texts),
    "more columns": (176, _more_columns),
}


def _write(url: Path, kind: str, *, times: float) -> None:
    """Write a dataset of so many times what is shuffled together."""
    size, make = _KINDS[kind]
    count = int(_SHUFFLE_BYTES * times) // size
    last = count - count // 4 * 3
    shards = [count // 4] * 3 + [last]
    write_dataset(str(url), make(count), shard_samples=shards, block_bytes=_BLOCK_BYTES)


def _needed(url: Path) -> int:
    return needed_cache(str(url), shuffle_bytes=_SHUFFLE_BYTES)


def _request(name: str, **more: object) -> pb.ReadBatchesRequest:
    wanted: dict[str, object] = {
        "dataset": name,
        "order": pb.OrderSpec(
            seed=3, shuffle_bytes=_SHUFFLE_BYTES, run_bytes=2 * _BLOCK_BYTES, unit=256
        ),
        "global_batch_size": 256,
        "world_size": 1,
        "epoch_start": pb.EpochStart(epoch=1),  # epoch 0 has a ramp
        "epoch_count": 1,
        "end": pb.END_MODE_UNEVEN,
        "with_ids": True,
    }
    return asking(pb.ReadBatchesRequest, **{**wanted, **more})


def _read(server: Server, request: pb.ReadBatchesRequest) -> list[int]:
    """Return the digests of the batches of a stream."""
    with grpc.insecure_channel(server.address) as channel:
        return [each.header.payload_xxh3 for each in read(channel, request).batches]


def _fetched(server: Server, url: Path, name: str) -> float:
    """Return how many times a dataset's blocks were read."""
    return _fetched_count(server, name) / _block_count(url)


def _fetched_count(server: Server, name: str) -> float:
    """Return how many blocks of a dataset were read."""
    value = server._metrics.registry.get_sample_value(
        "headrace_store_fetched_blocks_total", {"dataset": name}
    )
    return value or 0.0


def _block_count(url: Path) -> int:
    with open_dataset(str(url)) as dataset:
        return dataset.block_count


def _served(stack: ExitStack, urls: dict[str, Path], cache_bytes: int) -> Server:
    return stack.enter_context(
        server_of({name: str(url) for name, url in urls.items()}, cache_bytes=cache_bytes)
    )


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, float], Path]:
    """Datasets by kind and size, each written once."""
    written: dict[tuple[str, float], Path] = {}

    def get(kind: str, times: float) -> Path:
        if (kind, times) not in written:
            written[kind, times] = tmp_path_factory.mktemp(kind)
            _write(written[kind, times], kind, times=times)
        return written[kind, times]

    return get


@pytest.fixture(scope="module")
def expected() -> Callable[[Path], list[int]]:
    """Batches of an epoch through a cache that holds everything."""
    known: dict[Path, list[int]] = {}

    def get(url: Path) -> list[int]:
        if url not in known:
            with ExitStack() as stack:
                known[url] = _read(_served(stack, {"data": url}, 1 << 27), _request("data"))
        return known[url]

    return get


@pytest.mark.parametrize("part", [0.9, pytest.param(0.75, marks=pytest.mark.long), 0.5])
@pytest.mark.parametrize("kind", ["rows", "images", "texts"])
@pytest.mark.parametrize(
    "times", [pytest.param(1.0, id="fits the shuffle"), pytest.param(2.0, id="is larger")]
)
def test_the_edge_is_soft(
    kind: str,
    part: float,
    times: float,
    datasets: Callable[[str, float], Path],
    expected: Callable[[Path], list[int]],
) -> None:
    """An epoch, its end included, reads few times its bytes, and the samples are the same."""
    url = datasets(kind, times)
    with ExitStack() as stack:
        small = _served(stack, {"data": url}, int(part * _needed(url)))

        assert expected(url) == _read(small, _request("data"))
        assert _fetched(small, url, "data") <= EDGE[part]


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Lists whose lengths are stored, with a column to filter by."""
    url = tmp_path_factory.mktemp("documents")
    _write_documents(url, 1.0)
    return url


def _write_documents(url: Path, times: float, *, group_samples: int = 128) -> None:
    count = int(_SHUFFLE_BYTES * times) // 200
    lengths = np.arange(count) * 31 % 61 + 15
    tokens = pa.array([np.full(each, 7, np.int32) for each in lengths], pa.list_(pa.int32()))
    parts = np.arange(count) * 7919 % 20
    table = pa.table({"tokens": tokens, "number": np.arange(count), "part": parts})
    write_dataset(str(url), table, shard_samples=[count], block_bytes=_BLOCK_BYTES)
    # As far below what is shuffled together as groups of real documents are.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(groups, "MAX_GROUP_SAMPLES", group_samples)
        index_rows(str(url), RowOptions(128), columns=["tokens"])


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({"where": "part < 15"}, id="filter"),
        pytest.param({"where": "part = 0"}, id="filter that keeps few"),
        pytest.param({"buckets": 4}, id="buckets"),
        pytest.param({"deal": dealing_pb.Deal()}, id="dealing"),
    ],
)
def test_the_edge_is_soft_for_chosen_samples(documents: Path, more: dict[str, object]) -> None:
    """Filters, length buckets and dealing read few times the bytes, and the same samples."""
    request = _request("data", columns=["number"], global_batch_size=64, **more)
    with ExitStack() as stack:
        small = _served(stack, {"data": documents}, _needed(documents) // 2)
        large = _served(stack, {"data": documents}, 1 << 27)

        assert _read(large, request) == _read(small, request)
        assert _fetched(small, documents, "data") <= EDGE[0.5]


def _mixture(*datasets: mixtures_pb.MixtureDataset) -> dict[str, object]:
    """Return what a request for a mixture has in place of a dataset."""
    return {
        "dataset": "",
        "mixture": mixtures_pb.Mixture(datasets=datasets),
        "epoch_start": pb.EpochStart(),
    }


_MIXTURES = {
    "all of two": [mixtures_pb.MixtureDataset(name="a"), mixtures_pb.MixtureDataset(name="b")],
    "weights": [
        mixtures_pb.MixtureDataset(name="a", proportion=3),
        mixtures_pb.MixtureDataset(name="b", proportion=1),
    ],
}


@pytest.mark.parametrize(
    ("kind", "other", "part"),
    [
        ("all of two", "rows", 0.9),
        ("all of two", "more columns", 0.5),
        pytest.param("all of two", "rows", 0.75, marks=pytest.mark.long),
        ("weights", "rows", 0.5),
        pytest.param("weights", "rows", 0.75, marks=pytest.mark.long),
        pytest.param("weights", "rows", 0.9, marks=pytest.mark.long),
    ],
)
def test_the_edge_is_soft_for_mixtures(
    datasets: Callable[[str, float], Path], kind: str, other: str, part: float
) -> None:
    """Few times what a cache that holds everything reads, and the same samples."""
    urls = {"a": datasets("rows", 1.0), "b": datasets(other, 0.6)}
    request = _request("", columns=["x", "label"], **_mixture(*_MIXTURES[kind]))
    request.epoch_start.epoch = 1
    with ExitStack() as stack:
        large = _served(stack, urls, 1 << 27)
        expected = _read(large, request)
        with grpc.insecure_channel(large.address) as channel:
            needed = _needed_of(large, request, channel)
        small = _served(stack, urls, int(part * needed))

        assert expected == _read(small, request)
        assert _fetched_blocks(small) <= EDGE[part] * _fetched_blocks(large)


@pytest.mark.parametrize(
    "part", [0.9, *(pytest.param(each, marks=pytest.mark.long) for each in (0.75, 0.5))]
)
def test_the_edge_is_soft_for_packed_rows(documents: Path, part: float) -> None:
    """Rows of documents, of which some lie in two rows."""
    request = _request("data:128", global_batch_size=64)
    with ExitStack() as stack:
        large = _served(stack, {"data": documents}, 1 << 27)
        expected = _read(large, request)
        small = _served(stack, {"data": documents}, int(part * _needed(documents)))

        assert expected == _read(small, request)
        assert _fetched_blocks(small) <= EDGE[part] * _fetched_blocks(large)


_MORE_GROUPS = [(0.5, 0.9), (0.5, 0.75), (0.5, 0.5), (1, 0.75), (4, 0.9), (4, 0.75)]


@pytest.mark.parametrize(
    ("of_shuffle", "part"),
    [
        (1, 0.9),
        (1, 0.5),
        (4, 0.5),
        *(pytest.param(*each, marks=pytest.mark.long) for each in _MORE_GROUPS),
    ],
)
def test_the_edge_is_soft_for_rows_of_large_groups(
    tmp_path: Path, of_shuffle: float, part: float
) -> None:
    """Each row reads from a group that is a large part of what is shuffled together, or more."""
    _write_documents(tmp_path, 2.0, group_samples=_SHUFFLE_BYTES // 2 // 200)
    request = _request("data:128", global_batch_size=64)
    request.order.shuffle_bytes = int(_SHUFFLE_BYTES / 2 / of_shuffle)
    with ExitStack() as stack:
        large = _served(stack, {"data": tmp_path}, 1 << 27)
        expected = _read(large, request)
        with grpc.insecure_channel(large.address) as channel:
            needed = _needed_of(large, request, channel)
        small = _served(stack, {"data": tmp_path}, int(part * needed))

        assert expected == _read(small, request)
        assert _fetched_blocks(small) <= EDGE[part] * _fetched_blocks(large)


def test_the_edge_is_soft_for_mixed_rows(documents: Path, tmp_path: Path) -> None:
    """A mixture of the packed rows of two datasets."""
    urls = {"a": documents, "b": tmp_path / "b"}
    _write_documents(urls["b"], 0.6)
    parts = [mixtures_pb.MixtureDataset(name="a:128"), mixtures_pb.MixtureDataset(name="b:128")]
    request = _request("", global_batch_size=64, **_mixture(*parts))
    request.epoch_start.epoch = 1
    with ExitStack() as stack:
        large = _served(stack, urls, 1 << 27)
        expected = _read(large, request)
        with grpc.insecure_channel(large.address) as channel:
            needed = _needed_of(large, request, channel)
        small = _served(stack, urls, needed // 2)

        assert expected == _read(small, request)
        assert _fetched_blocks(small) <= EDGE[0.5] * _fetched_blocks(large)


def _needed_of(server: Server, request: pb.ReadBatchesRequest, channel: grpc.Channel) -> int:
    """Return what a stream needs of the cache."""
    next(messages_of(channel, request))
    return server._cache.needs.needed_bytes


def _fetched_blocks(server: Server) -> float:
    """Return how many blocks of all datasets were read."""
    return sum(
        sample.value
        for metric in server._metrics.registry.collect()
        for sample in metric.samples
        if sample.name == "headrace_store_fetched_blocks_total"
    )


def test_ranks_share_windows(datasets: Callable[[str, float], Path]) -> None:
    """Four ranks that keep in step read as much as one, and get what a large cache gives them."""
    url = datasets("rows", 1.0)
    found: dict[tuple[str, int], list[int]] = {}
    with ExitStack() as stack:
        small = _served(stack, {"data": url}, _needed(url) // 2)
        large = _served(stack, {"data": url}, 1 << 27)
        for name, server in (("large", large), ("small", small)):
            _in_step(name, server, found)

        assert all(found["large", rank] == found["small", rank] for rank in range(_RANKS))
        assert _fetched(small, url, "data") / 2 <= EDGE[0.5]


def _in_step(name: str, server: Server, found: dict[tuple[str, int], list[int]]) -> None:
    """Read two epochs as the ranks of a job do."""
    requests = [_request("data", world_size=_RANKS, rank=rank) for rank in range(_RANKS)]
    for rank, own in enumerate(_read_in_step(server, requests)):
        found[name, rank] = own


def _read_in_step(
    server: Server,
    requests: list[pb.ReadBatchesRequest],
    *,
    epochs: int = 2,
    look: Callable[[], None] | None = None,
) -> list[list[int]]:
    """Read some epochs of several streams, each of which waits for all others at each batch.

    Args:
        server: The server.
        requests: A request for each stream.
        epochs: The number of epochs.
        look: Called while all wait.
    """
    barrier = threading.Barrier(len(requests), action=look, timeout=TIMEOUT_S)
    digests: list[list[int]] = [[] for _ in requests]

    def run(request: pb.ReadBatchesRequest, own: list[int]) -> None:
        request.epoch_count = epochs
        with grpc.insecure_channel(server.address, _LITTLE_ON_THE_WAY) as channel:
            for batch in _continued(channel, request):
                own.extend(batch)
                barrier.wait()

    at_once(lambda each: run(*each), zip(requests, digests, strict=True), timeout_s=600)
    return digests


def _continued(channel: grpc.Channel, request: pb.ReadBatchesRequest) -> Generator[list[int]]:
    """Yield the digest of each batch, and nothing at each end of an epoch; reconnect when asked."""
    while request.epoch_count:
        try:
            for message in messages_of(channel, request):
                if message.HasField("batch"):
                    yield [message.batch.payload_xxh3]
                    request.resume_token = message.batch.resume_token
                if message.HasField("epoch_end"):
                    yield []
                    request.resume_token = message.epoch_end.resume_token
                    request.epoch_count -= 1
        except grpc.RpcError as error:
            assert "reconnect to continue" in str(error.details())  # noqa: PT017 - the others must fail


def test_another_job_makes_a_cache_too_small(datasets: Callable[[str, float], Path]) -> None:
    """A stream of whole blocks is asked to reconnect, once, and its samples stay the same."""
    urls = {kind: datasets(kind, 1.0) for kind in ("rows", "texts")}
    with ExitStack() as stack:
        alone = _served(stack, urls, 1 << 27)
        shared = _served(stack, urls, int(0.6 * sum(map(_needed, urls.values()))))
        with grpc.insecure_channel(alone.address) as channel:
            expected = [*_continued(channel, _request("rows"))]
        with grpc.insecure_channel(shared.address) as channel:
            first = messages_of(channel, _request("rows"))
            assert next(first).start.cache_shortage.job_bytes == 0
            second = _continued(channel, _request("texts"))
            next(second)

            messages, error = read_until_failure(first)
            seen = [each.batch for each in messages if each.HasField("batch")]

            assert "the cache of this server has become too small" in str(error.details())
            rest = _request("rows")
            if seen:
                rest.resume_token = seen[-1].resume_token
            got = [[each.payload_xxh3] for each in seen]
            got.extend(_continued(channel, rest))
            second.close()

    assert expected == got


def test_one_dataset_under_two_names_counts_twice(
    datasets: Callable[[str, float], Path],
) -> None:
    """Its blocks lie in memory twice, so what each of two jobs may use is half of the cache."""
    url = datasets("rows", 1.0)
    with ExitStack() as stack:
        server = _served(stack, {"one": url, "other": url}, int(1.5 * _needed(url)))
        with grpc.insecure_channel(server.address) as channel:
            starts = [
                next(stack.enter_context(closing(_starts(channel, name))))
                for name in ("one", "other")
            ]

    assert [False, True] == [start.HasField("cache_shortage") for start in starts]


def _starts(channel: grpc.Channel, name: str) -> Generator[pb.StreamStart]:
    for message in messages_of(channel, _request(name)):
        if message.HasField("start"):
            yield message.start


def test_a_run_resumes_inside_a_window(datasets: Callable[[str, float], Path]) -> None:
    """A token of one server continues with the same samples on another with less memory."""
    url = datasets("texts", 1.0)
    with ExitStack() as stack:
        small = _served(stack, {"data": url}, _needed(url) // 2)
        large = _served(stack, {"data": url}, 1 << 27)
        with grpc.insecure_channel(large.address) as channel:
            whole = read(channel, _request("data"))
        at = len(whole.batches) // 3
        token = whole.tokens[at]

        rest = _request("data")
        rest.ClearField("epoch_start")
        rest.resume_token = token
        got = _read(small, rest)

        assert [each.header.payload_xxh3 for each in whole.batches[at + 1 :]] == got


def test_three_jobs_on_one_server(
    caplog: pytest.LogCaptureFixture, datasets: Callable[[str, float], Path]
) -> None:
    """Each reads at most what its share of the cache costs, and the log says what would help.

    The first epoch is not counted: until the last job has come, shares are larger, and so are the
    windows for which some blocks are kept.
    """
    urls = {kind: datasets(kind, 1.0) for kind in ("rows", "images", "texts")}
    needed = sum(map(_needed, urls.values()))
    # As many batches each, so that all three read from the first to the last.
    counts = {kind: _SHUFFLE_BYTES // size for kind, (size, _) in _KINDS.items()}
    fetched: list[dict[str, float]] = []
    with ExitStack() as stack, caplog.at_level(logging.WARNING):
        server = _served(stack, urls, int(0.43 * needed))
        requests = [_request(kind, global_batch_size=counts[kind] // 100) for kind in urls]
        for request in requests:
            request.end = pb.END_MODE_DROP_LAST

        def look() -> None:
            fetched.append({kind: _fetched_count(server, kind) for kind in urls})

        _read_in_step(server, requests, epochs=3, look=look)
        look()
        said = [vars(each)["headrace_fields"] for each in caplog.records if "cache is" in each.msg]

    settled = fetched[len(fetched) // 3]
    amounts = {
        kind: (fetched[-1][kind] - settled[kind]) / 2 / _block_count(url)
        for kind, url in urls.items()
    }
    assert [] == [(kind, amount) for kind, amount in amounts.items() if amount > EDGE[0.5]]
    assert -(-needed // (1 << 20)) in {each["needed_mib"] for each in said}


@pytest.mark.parametrize("how", ["ended", "cancelled"])
def test_a_stream_that_is_over_keeps_no_window(
    datasets: Callable[[str, float], Path], how: str
) -> None:
    """Even before garbage is collected: windows of streams that are over hold back the next."""
    url = datasets("rows", 1.0)
    with ExitStack() as stack:
        gc.disable()
        stack.callback(gc.enable)
        server = _served(stack, {"data": url}, _needed(url) // 2)
        with grpc.insecure_channel(server.address) as channel:
            messages = messages_of(channel, _request("data", epoch_count=3))
            for _ in range(20):
                next(messages)
            if how == "ended":
                server.end_some(1)
                read_until_failure(messages)
            else:
                messages.cancel()  # type: ignore[attr-defined]  # it is a call
        (finder,) = server._catalog.get("data").windows._finders._values.values()
        pause = threading.Event()
        for _ in range(int(TIMEOUT_S / 0.05)):
            another = finder.stretch(9, 0)
            if not finder.has_before(another):
                break
            pause.wait(0.05)

        assert [(9, 0)] == [(each.epoch, each.start) for each in finder._alive.values()]
