"""Answers of stores, caches and proxies that are not for what was requested are never believed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.errors import HeadraceError, ShardCorruptError, StoreUnavailableError
from headrace.storage import RetryPolicy, Store, StoreOptions, open_dataset, open_store
from storage.webdataset.tar_files import tar_bytes
from support.s3 import S3
from support.store_proxy import StoreProxy, store_proxied

_OBJECT = bytes(range(256)) * 4


@pytest.fixture
def proxy(s3: S3) -> Iterator[StoreProxy]:
    """A proxy in front of the store, which keeps answers like a cache."""
    with store_proxied(s3.weed.endpoint) as running:
        running.kept = {}
        yield running


def _options(proxy: StoreProxy) -> StoreOptions:
    return StoreOptions(endpoint=proxy.endpoint, retry=RetryPolicy(attempts=2, base_s=0.001))


@pytest.fixture(params=["boto3", "own", "session"])
def store(
    request: pytest.FixtureRequest, s3: S3, proxy: StoreProxy, monkeypatch: pytest.MonkeyPatch
) -> Store:
    """A store with an object ``x``, whose next read is by boto3, a connection or a session."""
    open_store(s3.url("d")).write("x", _OBJECT)
    options = _options(proxy)
    if request.param == "session":
        # A proxy of the environment leaves our own connections out.
        monkeypatch.setenv("http_proxy", proxy.endpoint)
        options = StoreOptions(endpoint="http://127.0.0.1:9", retry=options.retry)
    found = open_store(s3.url("d"), options=options)
    if request.param != "boto3":
        assert _OBJECT[:100] == found.read("x", length=100)
    else:
        open_store(s3.url("d"), options=options).read("x", length=100)  # kept by the proxy
    return found


@pytest.mark.parametrize("fault", ["mixed", "unstated"])
def test_another_range_of_the_same_length_is_refused(
    store: Store, proxy: StoreProxy, fault: str
) -> None:
    """A cache gives another part of the object: nothing of it is used, and a repeat is right."""
    proxy.once_each(fault)  # type: ignore[arg-type] # one of the two
    assert _OBJECT[300:400] == store.read("x", offset=300, length=100)

    proxy.choose = lambda _: fault  # type: ignore[assignment,return-value] # as above
    with pytest.raises(StoreUnavailableError, match=r"d/x: .*Content-Range .*bytes=500-599.*cache"):
        store.read("x", offset=500, length=100)


@pytest.mark.parametrize("fault", ["mixed", "unstated"])
def test_the_rest_of_an_object_is_all_of_it(store: Store, proxy: StoreProxy, fault: str) -> None:
    """A read to the end of the object is refused if the answer is for less."""
    assert _OBJECT[924:1024] == store.read("x", offset=924)

    proxy.choose = lambda _: fault  # type: ignore[assignment,return-value] # one of the two
    with pytest.raises(StoreUnavailableError, match=r"Content-Range .*bytes=924-"):
        store.read("x", offset=924)


def test_a_whole_object_is_no_part_of_one(s3: S3, proxy: StoreProxy) -> None:
    """A request without a range that is answered with a part is refused."""
    open_store(s3.url("d")).write("x", _OBJECT)
    store = open_store(s3.url("d"), options=_options(proxy))
    store.read("x", length=100)
    assert _OBJECT == store.read_versioned("x")[0]

    assert proxy.kept is not None
    path = next(path for path, part in proxy.kept if part is None)
    proxy.kept[path, None] = next(answer for (_, part), answer in proxy.kept.items() if part)
    proxy.choose_whole = lambda _: "stale"
    with pytest.raises(StoreUnavailableError, match="Content-Range 'bytes 0-99/1024'"):
        store.read_versioned("x")


def _tar(s3: S3) -> str:
    # Members of equal lengths, so that blocks are as long as one another.
    members = {f"{at:06d}.bin": b"%06d" % at * 10_000 for at in range(96)}
    open_store(s3.url("d")).write("a.tar", tar_bytes(members))
    return s3.url("d")


def _parquet(s3: S3) -> str:
    sink = pa.BufferOutputStream()
    rows = pa.table({"n": pa.array(range(4096), pa.int64())})
    pq.write_table(rows, sink, row_group_size=512, use_dictionary=False, compression="none")
    open_store(s3.url("d")).write("a.parquet", sink.getvalue().to_pybytes())
    return s3.url("d")


@pytest.mark.parametrize("make", [_tar, _parquet])
def test_no_layout_serves_other_samples(
    s3: S3, proxy: StoreProxy, make: Callable[[S3], str]
) -> None:
    """Files of others have no checksums: each block is right or an error, never another block."""
    url = make(s3)
    with open_dataset(url) as honest:
        expected = [honest.read_block(block) for block in range(honest.block_count)]
    with open_dataset(url, options=_options(proxy)) as dataset:
        assert expected[0] == dataset.read_block(0)
        proxy.choose = lambda _: "mixed"
        refused = []
        for block in range(1, dataset.block_count):
            with suppress(HeadraceError):
                assert expected[block] == dataset.read_block(block)
                continue
            refused.append(block)

    assert len(expected) > 3
    assert refused


def test_an_old_version_from_a_cache_is_refused(s3: S3, proxy: StoreProxy) -> None:
    """A cache still has the bytes of an object that was replaced in the store."""
    direct = open_store(s3.url("d"))
    direct.write("x", b"old" * 100)
    store = open_store(s3.url("d"), options=_options(proxy))
    store.read("x", offset=3, length=3)
    direct.write("x", b"new" * 100)
    entry = store.entry("x")
    assert entry is not None
    assert b"new" == store.read_entry(entry, offset=6, length=3)

    proxy.choose = lambda _: "stale"
    with pytest.raises(StoreUnavailableError, match=r"another version .* etag:.* expected"):
        store.read_entry(entry, offset=3, length=3)


def test_a_replaced_object_is_said_to_have_changed(s3: S3, proxy: StoreProxy) -> None:
    """An honest answer of a new version names the file, and is not asked for again."""
    direct, store = open_store(s3.url("d")), open_store(s3.url("d"), options=_options(proxy))
    direct.write("x", b"old" * 100)
    entry = store.entry("x")
    assert entry is not None
    direct.write("x", b"newer" * 100)
    proxy.seen.clear()

    with pytest.raises(ShardCorruptError, match=r"file x in .*has changed"):
        store.read_entry(entry, offset=3, length=3)
    assert 1 == len(proxy.seen)
