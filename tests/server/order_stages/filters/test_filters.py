"""Tests of filters on a server: found once, waited for, given up, and bound to tokens."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pytest

from headrace.client.options.where import kept_in
from headrace.errors import (
    BadArgumentError,
    DrainingError,
    FilterPendingError,
    HeadraceError,
    ServerBusyError,
    ShardCorruptError,
)
from headrace.order import OrderSpec, Subset, SubsetOrder, decode_token, table_of
from headrace.server.access.callers import ANYBODY, Caller
from headrace.server.cache.block_cache import BlockCache
from headrace.server.datasets.served_dataset import ServedDataset
from headrace.server.order_stages.filters.filters import FilteredDataset, Filters
from headrace.server.telemetry.metrics import Metrics
from headrace.storage import Filter, kept_bits, make_filter, open_dataset
from headrace.v1 import mixtures_pb2 as mixtures_pb
from headrace.v1 import shard_service_pb2 as pb
from support.asking import asking, order_stages
from support.datasets import write_dataset
from support.running import channel_of
from support.served import TIMEOUT_S, epoch_request, failure_of, read, stub_of

SAMPLES = 3000


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A dataset of 3,000 samples, sorted by label."""
    found = str(tmp_path_factory.mktemp("filters") / "d")
    numbers = list(range(SAMPLES))
    table = pa.table({"x": numbers, "label": [number // 100 for number in numbers]})
    write_dataset(found, table, shard_samples=[1000, 2000], block_bytes=512)
    return found


@pytest.fixture(scope="module")
def channel(url: str) -> Iterator[grpc.Channel]:
    """A server of it, under two names."""
    with channel_of({"d": url, "e": url}) as opened:
        yield opened


def _request(**fields: Any) -> pb.ReadBatchesRequest:
    request = epoch_request(
        dataset="d",
        order=pb.OrderSpec(seed=2, shuffle_samples=40),
        global_batch_size=20,
        with_ids=True,
    )
    request.MergeFrom(asking(pb.ReadBatchesRequest, **fields))
    return request


def test_a_stream_has_the_samples_that_a_filter_keeps(url: str, channel: grpc.Channel) -> None:
    """In the order of `SubsetOrder`, whose digest stands in start and token."""
    seen = read(channel, _request(where="label in (3, 17) or x < 10"))

    expected = {*range(10), *range(300, 400), *range(1700, 1800)}
    flat = [sample for ids in seen.ids for sample in ids]
    assert len(flat) == 200
    assert set(flat) < expected
    assert seen.start is not None
    found = kept_in(seen.start.dataset)
    assert ("label in (17, 3) or x < 10", 210) == (found.where, found.sample_count)
    assert 210 == seen.start.epoch_sample_count
    assert SAMPLES == seen.start.dataset.sample_count
    assert found.digest == decode_token(seen.tokens[0]).stage("filter")
    assert flat == _order_of(url, "label in (3, 17) or x < 10").sample_ids(0, 0, 200).tolist()


def _order_of(url: str, where: str) -> SubsetOrder:
    with open_dataset(url) as dataset:
        bits = kept_bits(dataset, make_filter(where, dataset.schema))
        kept, table = Subset(bits, dataset.sample_count), table_of(dataset.stretches())
    return SubsetOrder(OrderSpec(seed=2, shuffle_samples=40), kept.table(table), kept)


def test_a_token_goes_on_with_the_same_samples_alone(channel: grpc.Channel) -> None:
    """In other words too; other samples, all, and none are refused."""
    seen = read(channel, _request(where="label < 5"))
    again = read(channel, _request(where="NOT (label >= 5)", resume_token=seen.tokens[2]))

    assert seen.ids[3:] == again.ids
    for where in ("label < 6", ""):
        with pytest.raises(grpc.RpcError) as caught:
            read(channel, _request(where=where, resume_token=seen.tokens[2]))
        assert "TOKEN_SPEC_CHANGED" == failure_of(caught.value)[1].reason
    plain = read(channel, _request())
    with pytest.raises(grpc.RpcError) as caught:
        read(channel, _request(where="label < 5", resume_token=plain.tokens[2]))
    assert "TOKEN_SPEC_CHANGED" == failure_of(caught.value)[1].reason


@pytest.mark.parametrize("where", ["label > 300", "lable < 3", "label <"])
def test_what_keeps_nothing_is_refused(channel: grpc.Channel, where: str) -> None:
    """As an argument, with the field, by every call, again and again."""
    asked = asking(pb.GetDatasetRequest, name="d", where=where)
    calls: list[Callable[[], object]] = [
        lambda: read(channel, _request(where=where)),
        lambda: stub_of(channel).GetDataset(asked, timeout=TIMEOUT_S),
    ]
    for call in [*calls, *calls]:
        with pytest.raises(grpc.RpcError) as caught:
            call()
        status, info = failure_of(caught.value)
        assert (grpc.StatusCode.INVALID_ARGUMENT, "where") == (status, info.metadata["field"])


def test_all_calls_take_filters(channel: grpc.Channel) -> None:
    """One batch, its explanation and where samples come agree with the stream."""
    seen = read(channel, _request(where="label = 7"))
    ask = asking(
        pb.GetBatchRequest,
        dataset="d",
        order=pb.OrderSpec(seed=2, shuffle_samples=40),
        global_batch_size=20,
        world_size=1,
        with_ids=True,
        epoch_start=pb.EpochStart(position=40),
        where="label = 7",
    )
    stub = stub_of(channel)
    explained = stub.ExplainBatch(pb.ExplainBatchRequest(batch=ask), timeout=TIMEOUT_S)
    wanted = pb.FindSamplesRequest(batch=ask, sample_ids=[seen.ids[2][5], 3])
    found = stub.FindSamples(wanted, timeout=TIMEOUT_S)

    assert seen.ids[2] == list(explained.sample_ids)
    assert [(0, 5)] == [(row.sample, row.row) for row in found.rows]


def test_datasets_of_a_mixture_have_their_own(channel: grpc.Channel) -> None:
    """Each gives what its filter keeps, once; the whole request may have none."""
    mixture = mixtures_pb.Mixture(
        batching=mixtures_pb.BATCHING_RANDOM,
        datasets=[
            mixtures_pb.MixtureDataset(name="d", stages=order_stages(where="label = 7")),
            mixtures_pb.MixtureDataset(name="e", stages=order_stages(where="x >= 2950")),
        ],
    )
    seen = read(channel, _mixed(mixture))
    again = read(channel, _mixed(mixture, resume_token=seen.tokens[3]))

    every: list[Any] = [pair for ids in seen.ids for pair in ids]
    pairs = sorted(tuple(pair) for pair in every)
    assert [(0, n) for n in range(700, 800)] + [(1, n) for n in range(2950, 3000)] == pairs
    assert seen.ids[4:] == again.ids
    mixture.datasets[1].stages[0].CopyFrom(*order_stages(where="x >= 2951"))
    for request in (_mixed(mixture, resume_token=seen.tokens[3]), _mixed(mixture, where="x > 1")):
        with pytest.raises(grpc.RpcError) as caught:
            read(channel, request)
        assert failure_of(caught.value)[1].reason in {"TOKEN_SPEC_CHANGED", "BAD_COORDINATES"}


def _mixed(mixture: mixtures_pb.Mixture, **fields: Any) -> pb.ReadBatchesRequest:
    request = _request(mixture=mixture, end=pb.END_MODE_UNEVEN, **fields)
    request.dataset = ""
    request.global_batch_size = 25
    return request


class _Slow:
    """A dataset whose blocks come when they may, or fail; large, so each is read alone."""

    stored_bytes = 1 << 40

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self.gate = threading.Event()
        # For the first blocks, where they may come before the rest.
        self.first, self.first_blocks = threading.Event(), 0
        self.begun = threading.Event()
        self.error: HeadraceError | None = None
        self.reads = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataset, name)

    def read_block(self, block: int) -> pa.RecordBatch:
        self.reads += 1
        self.begun.set()
        gate = self.first if block < self.first_blocks else self.gate
        assert gate.wait(TIMEOUT_S)
        if self.error is not None:
            raise self.error
        batch: pa.RecordBatch = self._dataset.read_block(block)
        return batch


@contextmanager
def _slow(url: str, filters: Filters) -> Iterator[tuple[_Slow, ServedDataset]]:
    with open_dataset(url) as dataset:
        slow = _Slow(dataset)
        cache = BlockCache(1 << 20, fetch_threads=1, observer=Metrics())
        try:
            yield slow, ServedDataset("d", slow, cache=cache, max_batch_bytes=1 << 20)
        finally:
            slow.first.set()
            slow.gate.set()
            filters.close()
            cache.close()


def test_calls_wait_a_little_and_are_told_to_ask_again(url: str) -> None:
    """Many that ask at once have each block read once, and all get the same object."""
    filters = Filters()
    with _slow(url, filters) as (slow, served):
        for where in ("label = 3", "label=3"):
            with pytest.raises(FilterPendingError, match="has checked 0 of 3,000"):
                filters.apply(served, where, ANYBODY, wait_s=0.01)
        slow.gate.set()
        with ThreadPoolExecutor(8) as pool:
            views = list(
                pool.map(
                    lambda _: filters.apply(served, "label = 3", ANYBODY, wait_s=TIMEOUT_S),
                    range(8),
                )
            )

        assert 1 == len(set(map(id, views)))
        assert 100 == views[0].readable.sample_count
        assert slow.reads == slow.block_count


def test_what_nobody_waits_for_is_given_up(url: str) -> None:
    """After half a minute without a word; who asks again has it begun again."""
    now = [0.0]
    filters = Filters(clock=lambda: now[0])
    with _slow(url, filters) as (slow, served):
        with pytest.raises(FilterPendingError):
            filters.apply(served, "label = 3", ANYBODY, wait_s=0)
        assert slow.begun.wait(TIMEOUT_S)
        now[0] = 31.0
        slow.gate.set()
        _until_idle()

        reads = slow.reads
        assert reads < slow.block_count
        view = _asked(filters, served, "label = 3")
        assert 100 == view.readable.sample_count
        assert slow.reads == reads + slow.block_count


def _refusal(
    filters: Filters, served: ServedDataset, caller: Caller = ANYBODY, where: str = "label = 3"
) -> HeadraceError:
    with pytest.raises(HeadraceError) as caught:
        filters.apply(served, where, caller, wait_s=0)
    return caught.value


def _until_idle() -> None:
    for thread in threading.enumerate():
        if thread.name == "headrace-filters":
            thread.join(TIMEOUT_S)


def _asked(filters: Filters, served: ServedDataset, where: str) -> FilteredDataset:
    # With a clock that stands, a call does not wait by itself.
    for _ in range(1000):
        try:
            return filters.apply(served, where, ANYBODY, wait_s=0)
        except FilterPendingError:
            _until_idle()
    raise AssertionError(where)


def test_callers_take_turns_and_have_few_waiting(url: str) -> None:
    """A fifth filter of one caller is refused while another one's is taken, and goes first."""
    filters = Filters()
    greedy, modest = Caller("greedy"), Caller("modest")
    with _slow(url, filters) as (slow, served):
        for number in range(4):
            with pytest.raises(FilterPendingError):
                filters.apply(served, f"label = {number}", greedy, wait_s=0)
        with pytest.raises(ServerBusyError, match="4 of them from this caller"):
            filters.apply(served, "label = 4", greedy, wait_s=0)
        with pytest.raises(FilterPendingError):
            filters.apply(served, "label = 9", modest, wait_s=0)
        slow.gate.set()
        filters.apply(served, "label = 9", modest, wait_s=TIMEOUT_S)

        assert slow.reads <= 3 * slow.block_count
        for number in range(4):
            filters.apply(served, f"label = {number}", greedy, wait_s=TIMEOUT_S)


def test_what_is_refused_or_repeated_is_not_parsed(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parsing takes milliseconds, in which no other call is served."""
    parsed: list[str] = []

    def counting(where: str, schema: pa.Schema) -> Filter:
        parsed.append(where)
        return make_filter(where, schema)

    monkeypatch.setattr("headrace.server.order_stages.filters.filters.make_filter", counting)
    filters = Filters()
    with _slow(url, filters) as (slow, served):
        for number in (0, 1, 2, 3, 3, 3):
            assert isinstance(
                _refusal(filters, served, where=f"label = {number}"), FilterPendingError
            )
        assert isinstance(_refusal(filters, served, where="label <"), ServerBusyError)
        slow.gate.set()
        filters.apply(served, "label = 3", ANYBODY, wait_s=TIMEOUT_S)

    assert [f"label = {number}" for number in range(4)] == parsed


def test_a_small_filter_does_not_wait_for_a_large_one(url: str, tmp_path: Path) -> None:
    """Callers take turns between reads; the turns of this clock are over after two."""
    ticks = itertools.count()
    filters = Filters(clock=lambda: next(ticks) / 5)
    few = str(tmp_path / "few")
    write_dataset(few, pa.table({"x": [1, 2, 3]}), shard_samples=[3])
    with _slow(few, filters) as (quick, small), _slow(url, filters) as (slow, large):
        quick.gate.set()
        slow.first_blocks = 4
        assert isinstance(_refusal(filters, large, Caller("greedy")), FilterPendingError)
        assert slow.begun.wait(TIMEOUT_S)
        assert isinstance(_refusal(filters, small, Caller("modest"), "x = 2"), FilterPendingError)
        slow.first.set()

        assert filters.apply(small, "x = 2", Caller("modest"), wait_s=TIMEOUT_S)
        assert isinstance(_refusal(filters, large, Caller("greedy")), FilterPendingError)


def test_damage_reaches_all_who_wait_and_is_tried_again_later(url: str) -> None:
    """The error is that of the block, for some seconds; then the dataset is read again."""
    now = [0.0]
    filters = Filters(clock=lambda: now[0])
    with _slow(url, filters) as (slow, served):
        slow.error = ShardCorruptError("block 3 is damaged")
        slow.gate.set()
        for _ in range(3):
            with pytest.raises(ShardCorruptError, match="block 3"):
                _asked(filters, served, "label = 3")
        slow.error = None
        now[0] = 6.0

        assert 100 == _asked(filters, served, "label = 3").readable.sample_count


def test_a_server_that_ends_does_not_wait_for_filters(url: str) -> None:
    """`close` ends what is being read; calls are sent elsewhere from then on."""
    filters = Filters()
    with _slow(url, filters) as (slow, served):
        with pytest.raises(FilterPendingError):
            filters.apply(served, "label = 3", ANYBODY, wait_s=0)
        assert slow.begun.wait(TIMEOUT_S)
        closing = threading.Thread(target=filters.close)
        closing.start()
        while isinstance(error := _refusal(filters, served), FilterPendingError):
            pass
        assert isinstance(error, DrainingError)
        slow.gate.set()
        closing.join(TIMEOUT_S)

        assert not closing.is_alive()
        assert slow.reads < slow.block_count


def test_an_endless_row_of_filters_takes_no_memory(url: str) -> None:
    """What was found longest ago is forgotten, errors too; what is read from stays."""
    filters = Filters()
    with _slow(url, filters) as (slow, served):
        slow.gate.set()
        first = filters.apply(served, "label = 3", ANYBODY, wait_s=TIMEOUT_S)
        for number in range(20):
            with pytest.raises(BadArgumentError, match="keeps none"):
                filters.apply(served, f"label = {1000 + number}", ANYBODY, wait_s=TIMEOUT_S)

        again = filters.apply(served, "label = 3", ANYBODY, wait_s=TIMEOUT_S)
        assert first is again


def test_an_error_that_is_raised_again_keeps_no_earlier_calls(url: str) -> None:
    """Its traceback would grow with each call, and keep all that these had at hand."""
    filters = Filters()
    with _slow(url, filters) as (slow, served):
        slow.gate.set()
        depths = set()
        for _ in range(3):
            with pytest.raises(BadArgumentError, match="keeps none") as caught:
                filters.apply(served, "label = 1000", ANYBODY, wait_s=TIMEOUT_S)
            depths.add(len(caught.traceback))

    assert 1 == len(depths)


def test_a_filter_that_got_no_thread_is_found_at_the_next_request(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A system that has no thread to give for a moment does not end all filters."""

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    cache = BlockCache(1 << 24, fetch_threads=1, observer=Metrics())
    with open_dataset(url) as dataset:
        served = ServedDataset("d", dataset, cache=cache, max_batch_bytes=1 << 24)
        filters = Filters()
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            with pytest.raises(RuntimeError):
                filters.apply(served, "x < 10", ANYBODY, wait_s=0.0)

        found = filters.apply(served, "x < 10", ANYBODY, wait_s=TIMEOUT_S)
        filters.close()
    cache.close()

    assert 10 == found.readable.sample_count
