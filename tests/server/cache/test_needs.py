"""Tests of the books of a cache: what jobs need of it, and how much each may use."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

import pyarrow as pa
import pytest

from headrace.bench import WORKLOADS
from headrace.order import OrderSpec
from headrace.server.cache.needs import CacheNeed, CacheNeeds, Shortage
from headrace.server.layout.block_layout import block_layout
from headrace.server.layout.wire_columns import split_schema
from headrace.server.settings.server_config import ServerConfig

_MIB = 1 << 20
_MUCH = 1 << 40


def _need(
    job: str, mib: int, *, lanes: range = range(1), data: str = "", data_bytes: int = _MUCH
) -> CacheNeed:
    return CacheNeed(job, lanes, mib * _MIB, data or job, data_bytes)


def test_lanes_of_jobs_add_up_while_they_are_read() -> None:
    """Ranks of a job count once, its lanes each, with a sixteenth for runs that arrive early."""
    needs = CacheNeeds(120 * _MIB)
    with ExitStack() as streams:
        for _ in range(3):
            assert streams.enter_context(needs.held(_need("one", 16, lanes=range(2)))) is None
        assert 34 * _MIB == needs.needed_bytes

        assert streams.enter_context(needs.held(_need("other", 32))) is None
        assert 68 * _MIB == needs.needed_bytes

        shortage = streams.enter_context(needs.held(_need("third", 64)))
        assert Shortage(68 * _MIB, 52 * _MIB, 136 * _MIB, 120 * _MIB, 3) == shortage

    assert 0 == needs.needed_bytes


def test_jobs_that_read_the_same_data_share_it() -> None:
    """Two jobs whose shuffle is as large as their data need its blocks once."""
    needs = CacheNeeds(100 * _MIB)
    with ExitStack() as streams:
        for seed in range(5):
            need = _need(f"seed {seed}", 64, data="same", data_bytes=60 * _MIB)
            assert streams.enter_context(needs.held(need)) is None

        assert 60 * _MIB == needs.needed_bytes


def test_modest_jobs_have_what_they_need_and_others_equal_parts() -> None:
    """A job that fits into an equal part leaves the rest of that part to those that do not."""
    needs = CacheNeeds(100 * _MIB)
    with ExitStack() as streams:
        for job, mib in (("small", 16), ("large", 160), ("huge", 1600)):
            streams.enter_context(needs.held(_need(job, mib)))

        assert [33 * _MIB, 41 * _MIB + _MIB // 2, 41 * _MIB + _MIB // 2] == [
            needs.part_bytes(job) // (_MIB // 2) * (_MIB // 2) for job in ("small", "large", "huge")
        ]
    assert 100 * _MIB == needs.part_bytes("any")


def test_streams_are_told_once_when_their_job_becomes_short_of_memory() -> None:
    """They are told when another job comes, and not again; what fits alone is known before."""
    needs = CacheNeeds(100 * _MIB)
    told: list[object] = []
    with ExitStack() as streams:
        assert needs.would_fit(_need("first", 64))
        for rank in range(2):
            stream = needs.held(_need("first", 64), on_short=partial(told.append, rank))
            streams.enter_context(stream)
        streams.enter_context(needs.held(_need("modest", 4), on_short=partial(told.append, "no")))
        assert [] == told

        assert not needs.would_fit(_need("second", 64))
        streams.enter_context(needs.held(_need("second", 64)))
        streams.enter_context(needs.held(_need("third", 64)))

        assert [0, 1] == told
        streams.enter_context(needs.held(_need("fourth", 64), on_short=partial(told.append, "own")))
        assert [0, 1, "own"] == told
    assert needs.would_fit(_need("first", 64))


def test_a_part_of_the_cache_has_spare_bytes_of_its_own() -> None:
    """A worker, which does not know what others need, spends no more than its part."""
    needs = CacheNeeds(64 * _MIB)
    with needs.held(_need("one", 128, data_bytes=16 * _MIB)):
        assert 46 * _MIB == needs.spare_bytes(64 * _MIB)
        assert 14 * _MIB == needs.spare_bytes(32 * _MIB)
        assert 0 == needs.spare_bytes(16 * _MIB)


@pytest.mark.parametrize("kind", [*(each.name for each in WORKLOADS), "1.3 times"])
def test_the_defaults_fit_each_other(kind: str) -> None:
    """What a job shuffles by default fits into the default cache, counted as it lies there."""
    raw_bytes = OrderSpec().shuffle_bytes
    columns, _ = split_schema(_schema(kind), item_nulls=False)
    memory_bytes = block_layout(columns).memory_bytes(raw_bytes // _sample_bytes(kind), raw_bytes)
    if kind == "1.3 times":
        memory_bytes = raw_bytes * 13 // 10
    cache_bytes = ServerConfig(datasets={"any": "any"}).cache_bytes

    with CacheNeeds(cache_bytes).held(_need("one", memory_bytes // _MIB)) as shortage:
        assert shortage is None


def _schema(kind: str) -> pa.Schema:
    columns: dict[str, pa.DataType] = {
        "rows": pa.list_(pa.float32(), 40),
        "images": pa.binary(),
        "tokens": pa.list_(pa.int32(), 2048),
    }
    fields = [pa.field("x", columns.get(kind, pa.string()), nullable=False)]
    label = [pa.field("label", pa.int64(), nullable=False)] if kind == "rows" else []
    return pa.schema(fields + label)


def _sample_bytes(kind: str) -> int:
    return {each.name: each.sample_bytes for each in WORKLOADS}.get(kind, 400)


def test_memory_is_counted_as_blocks_lie_in_it() -> None:
    """Rows of 168 B take 192, and each text 16 more than its bytes."""
    rows, _ = split_schema(_schema("rows"), item_nulls=False)
    texts, _ = split_schema(_schema("texts"), item_nulls=False)

    assert 192 * 1001 + 32 == block_layout(rows).memory_bytes(1000, 168 * 1000)
    assert 416 * 1000 + 16 + 32 == block_layout(texts).memory_bytes(1000, 404 * 1000)
