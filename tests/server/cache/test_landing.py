"""Claims about blocks that are verified together: they land together, in a cache of any size."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from headrace.errors import ConfigurationError
from headrace.server.cache.block_cache import BlockCache
from headrace.server.layout.block_layout import block_layout
from headrace.server.layout.wire_columns import split_schema
from headrace.server.telemetry.metrics import Metrics
from headrace.storage import Dataset, ShardWriter, commit_dataset, open_dataset, open_store
from headrace.storage.shard.block_cutter import Cut
from support.blocks import demand

_ROWS = 80_000


@pytest.fixture(scope="module", params=["none", "lz4"])
def dataset(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Dataset]:
    """A dataset whose rows hold their own number; every fifth block or so holds a null."""
    folder = tmp_path_factory.mktemp("landing")
    store = open_store(str(folder))
    schema = pa.schema([pa.field("x", pa.int64(), nullable=False), pa.field("y", pa.int64())])
    x = np.arange(_ROWS)
    table = pa.table([pa.array(x), pa.array(x, mask=x % 10_000 == 0)], schema=schema)
    with ShardWriter(
        store, "00000.arrow", schema=schema, compression=request.param, block_bytes=32_000
    ) as writer:
        writer.append(table.to_batches()[0])
        entry = writer.close()
    commit_dataset(store, schema, [entry])
    store.close()
    with open_dataset(str(folder)) as opened:
        assert isinstance(opened, Dataset)
        yield opened


@pytest.mark.parametrize("blocks", [1.5, 3.5, 100.0])
def test_each_block_lands_whatever_there_is_room_for(dataset: Dataset, blocks: float) -> None:
    """Every block has its own values, verified or decoded, and all memory is accounted for."""
    layout = block_layout(split_schema(dataset.schema)[0])
    count = dataset.block_count
    size = int(blocks * layout.size(dataset.block_place(0).sample_count, 0))
    cache = BlockCache(size, fetch_threads=2, observer=Metrics())
    try:
        source = cache.add_source(dataset, layout, block_count=count)
        assert source.stored is not None
        source.run_blocks = 8
        waiter = cache.readers.waiter()
        wanted = list(range(count))
        cache.prefetch(source, np.array(wanted), waiter)

        firsts = dataset.block_first_samples(np.array(wanted)).tolist()
        assert firsts == demand(cache, source, wanted, waiter)
        assert 0 == int(cache._slots.pins.sum())
        assert 0 == cache._space._landing
        if blocks > count:
            assert count == cache._slots.count
        held = cache._slots.length[cache._slots.source >= 0]
        assert cache.used_bytes == int((held + -held % 64).sum())
    finally:
        cache.close()


def test_a_block_that_does_not_fit_fails_alone(tmp_path: Path) -> None:
    """Those that were read with it land."""
    store = open_store(str(tmp_path))
    batches = [
        pa.RecordBatch.from_arrays(
            [pa.array([block]), pa.array([b"y" * (100_000 if block == 2 else 5000)])],
            names=["x", "y"],
        )
        for block in range(6)
    ]
    schema = batches[0].schema
    with ShardWriter(store, "00000.arrow", schema=schema) as writer:
        for batch in batches:
            writer.write_block(Cut([batch], batch.nbytes, starts_shard=False))
        entry = writer.close()
    commit_dataset(store, schema, [entry])
    store.close()
    with open_dataset(str(tmp_path)) as opened:
        layout = block_layout(split_schema(opened.schema)[0])
        cache = BlockCache(60_000, fetch_threads=1, observer=Metrics())
        try:
            source = cache.add_source(opened, layout, block_count=6)
            source.run_blocks = 6
            waiter = cache.readers.waiter()
            cache.prefetch(source, np.arange(6), waiter)

            assert [0, 1, 3, 4, 5] == demand(cache, source, [0, 1, 3, 4, 5], waiter)
            with pytest.raises(ConfigurationError, match="does not fit"):
                demand(cache, source, [2], waiter)
        finally:
            cache.close()
