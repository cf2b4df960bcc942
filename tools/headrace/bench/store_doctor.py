"""Measure whether a store is fast enough for the cold reads of a job."""

from __future__ import annotations

import itertools
import random
import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.errors import BadArgumentError
from headrace.order import Order, OrderSpec, table_of
from headrace.server.cache.needs import needed_bytes
from headrace.server.layout.block_layout import block_layout
from headrace.server.layout.wire_columns import split_schema
from headrace.storage import (
    Dataset,
    OpenDataset,
    SourceOptions,
    Store,
    open_dataset,
    open_store,
)

CONCURRENCIES = (1, 2, 4, 8, 16, 32, 64)
_LATENCY_READS = 31
_MARGIN = 1.2  # over the mean rate of a job
_MIN_GAIN = 1.05  # twice as many simultaneous reads that gain less gain nothing
_MAX_OBJECTS = 1000
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class StoreNeed:
    """The need of a job that reads from a store.

    Attributes:
        samples_per_s: Samples per second over all ranks.
        run_bytes: Bytes of neighbouring samples that the order reads together.
        shuffle_bytes: Bytes of samples that it shuffles together.
        get_price: The price of a million reads.
    """

    samples_per_s: float
    run_bytes: int = 2 << 20
    shuffle_bytes: int = 2 << 30
    get_price: float = 0.4


@dataclass(frozen=True, slots=True)
class Rate:
    """The rate of reads of whole runs.

    Attributes:
        at_once: The number of simultaneous reads.
        mib_per_s: Their total throughput.
        read_ms: The median duration of a read, from request to last byte.
    """

    at_once: int
    mib_per_s: float
    read_ms: float


@dataclass(frozen=True, slots=True)
class StoreDiagnosis:
    """The performance of a store, compared with the need of a job.

    Attributes:
        first_byte_ms: The median duration of a read of one byte on an open connection.
        first_byte_p90_ms: The 90th percentile of such reads.
        read_bytes: The average size of the measured reads.
        rates: The rates by number of simultaneous reads, until more do not help.
        need_mib_per_s: The stored MiB per second that the job reads while nothing is cached.
        need_gets_per_s: The reads per second that this takes.
        price_per_hour: The price of these reads per hour.
        cache_bytes: The cache that a server needs to read each block once per epoch.
        at_once: The smallest number of simultaneous reads that gives a fifth more than the job
            needs, or `None`.
        fits: Whether the store is fast enough for the job.
        verdict: The answer in a sentence.
    """

    first_byte_ms: float
    first_byte_p90_ms: float
    read_bytes: int
    rates: tuple[Rate, ...]
    need_mib_per_s: float
    need_gets_per_s: float
    price_per_hour: float
    cache_bytes: int
    at_once: int | None
    fits: bool
    verdict: str


def diagnose_store(
    url: str, need: StoreNeed, *, seconds: float, source_options: SourceOptions | None = None
) -> StoreDiagnosis:
    """Read random parts of a dataset as a server would, and compare the rates with the need.

    Args:
        url: The URL of the dataset.
        need: What the job needs.
        seconds: The duration of the measurement for each number of simultaneous reads.
        source_options: How to read what other tools have written.

    Raises:
        HeadraceError: The dataset cannot be read.
    """
    with open_dataset(url, source_options=source_options) as dataset:
        spec = OrderSpec(
            seed=0, run_bytes=need.run_bytes, shuffle_bytes=need.shuffle_bytes, unit=256
        )
        order = Order(spec, table_of(dataset.stretches()))
        store = open_store(dataset.url)
        try:
            parts = _parts(dataset, store, need.run_bytes)
            first_byte = _first_bytes(store, parts)
            rates = _rates(store, parts, seconds)
        finally:
            store.close()
        share = need.samples_per_s / dataset.sample_count
        return judge_store(
            rates,
            first_byte_ms=(statistics.median(first_byte), first_byte[len(first_byte) * 9 // 10]),
            read_bytes=int(statistics.mean(length for _, _, length in parts)),
            need_mib_per_s=share * dataset.stored_bytes / _MIB,
            need_gets_per_s=share * order.run_count,
            get_price=need.get_price,
            cache_bytes=_cache_bytes(dataset, need.shuffle_bytes),
        )


def _cache_bytes(dataset: OpenDataset, shuffle_bytes: int) -> int:
    """Return the cache for what is shuffled together, as it lies there."""
    columns, _ = split_schema(dataset.schema, item_nulls=False)
    data_bytes = block_layout(columns).memory_bytes(
        dataset.sample_count, dataset.raw_bytes, block_count=dataset.block_count
    )
    share = min(1.0, (shuffle_bytes or dataset.raw_bytes) / max(1, dataset.raw_bytes))
    return needed_bytes(int(data_bytes * share), data_bytes)


def judge_store(
    rates: Sequence[Rate],
    *,
    first_byte_ms: tuple[float, float],
    read_bytes: int,
    need_mib_per_s: float,
    need_gets_per_s: float,
    get_price: float,
    cache_bytes: int,
) -> StoreDiagnosis:
    """Compare the measurements with the need.

    Args:
        rates: The rates by increasing number of simultaneous reads.
        first_byte_ms: The median and the 90th percentile.
        read_bytes: The average size of a read.
        need_mib_per_s: The stored MiB per second that the job reads.
        need_gets_per_s: The reads per second that this takes.
        get_price: The price of a million reads.
        cache_bytes: The cache that a server needs.
    """
    best = max(rates, key=lambda rate: rate.mib_per_s)
    enough = next((r.at_once for r in rates if r.mib_per_s >= need_mib_per_s * _MARGIN), None)
    needs = f"the job needs {need_mib_per_s:,.1f} MiB/s"
    fits = best.mib_per_s >= need_mib_per_s
    if enough is not None:
        verdict = f"this store is fast enough: {needs}, which it delivers with {enough} at once"
    elif fits:
        verdict = (
            f"this store is only just fast enough: {needs}, and it delivers "
            f"{best.mib_per_s:,.1f} at best"
        )
    else:
        verdict = (
            f"this store is too slow: {needs}, and it delivers {best.mib_per_s:,.1f} at best, with "
            f"{best.at_once} simultaneous reads; move the server closer to the store, give it a "
            "faster network or several replicas (lanes=), or keep the data on a disk (--cache-dir)"
        )
    return StoreDiagnosis(
        *first_byte_ms,
        read_bytes,
        tuple(rates),
        need_mib_per_s,
        need_gets_per_s,
        need_gets_per_s * 3600 * get_price / 1e6,
        cache_bytes,
        enough,
        fits,
        verdict,
    )


_Part = tuple[str, int, int]
"""Name of an object, offset, length."""


def _parts(dataset: OpenDataset, store: Store, run_bytes: int) -> list[_Part]:
    """Return parts of the data as long as a run, in a fixed random order."""
    found = list(
        _parts_of_shards(dataset, run_bytes)
        if isinstance(dataset, Dataset)
        else _parts_of_files(store, run_bytes)
    )
    if not found:
        raise BadArgumentError(f"there is nothing to read in {dataset.url}", field="url")
    random.Random(0).shuffle(found)
    return found


def _parts_of_shards(dataset: Dataset, run_bytes: int) -> list[_Part]:
    # Runs of neighbouring blocks, spread over the dataset.
    run = dataset.run_blocks(run_bytes)
    starts = range(0, dataset.block_count, run)
    chosen = starts[:: max(1, len(starts) // _MAX_OBJECTS)]
    parts: dict[_Part, None] = {}
    for first in chosen:
        place = dataset.block_place(first)
        last = dataset.block_place(min(first + run, dataset.block_count) - 1)
        if last.shard != place.shard:
            last = place
        parts[place.shard, place.offset, last.offset + last.stored_bytes - place.offset] = None
    return list(parts)


def _parts_of_files(store: Store, run_bytes: int) -> list[_Part]:
    entries = itertools.islice(store.list_entries(""), _MAX_OBJECTS)
    sizes = [(entry.name, entry.stored_bytes) for entry in entries if entry.stored_bytes]
    largest = max((size for _, size in sizes), default=0)
    return [
        (name, offset, min(run_bytes, size - offset))
        for name, size in sizes
        if size * 2 >= min(largest, run_bytes)  # leaves out small files, such as an index
        for offset in range(0, max(1, size - run_bytes // 2), run_bytes)
    ][: 4 * _MAX_OBJECTS]


def _first_bytes(store: Store, parts: Sequence[_Part]) -> list[float]:
    """Return the sorted durations of one-byte reads in ms, without the first, which connects."""
    durations = []
    for name, offset, _ in itertools.islice(itertools.cycle(parts), _LATENCY_READS + 1):
        start = time.perf_counter()
        store.read(name, offset=offset, length=1)
        durations.append((time.perf_counter() - start) * 1e3)
    return sorted(durations[1:])


def _rates(store: Store, parts: Sequence[_Part], seconds: float) -> list[Rate]:
    """Measure until twice as many simultaneous reads gain nothing, twice in a row."""
    rates: list[Rate] = []
    best, without_gain = 0.0, 0
    for at_once in CONCURRENCIES:
        found = _rate(store, parts, at_once, seconds)
        rates.append(found)
        without_gain = 0 if found.mib_per_s > best * _MIN_GAIN else without_gain + 1
        best = max(best, found.mib_per_s)
        if without_gain == 2:  # noqa: PLR2004 - once may be chance
            break
    return rates


def _rate(store: Store, parts: Sequence[_Part], at_once: int, seconds: float) -> Rate:
    ahead = itertools.cycle(parts)
    lock = threading.Lock()
    durations: list[float] = []
    failures: list[BaseException] = []
    start = time.perf_counter()
    read_bytes = 0

    def read() -> None:
        nonlocal read_bytes
        try:
            # Each thread reads at least once, even if it starts too late.
            is_over = False
            while not is_over:
                with lock:
                    name, offset, length = next(ahead)
                read_start = time.perf_counter()
                count = len(store.read(name, offset=offset, length=length))
                with lock:
                    durations.append(time.perf_counter() - read_start)
                    read_bytes += count
                is_over = bool(failures) or time.perf_counter() - start >= seconds
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            failures.append(error)

    threads = [threading.Thread(target=read, name=f"headrace-doctor-{at}") for at in range(at_once)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    elapsed = time.perf_counter() - start
    return Rate(at_once, read_bytes / _MIB / elapsed, statistics.median(durations) * 1e3)
