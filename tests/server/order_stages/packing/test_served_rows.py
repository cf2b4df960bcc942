"""Claims about packed rows over the wire: each document once, the same rows for every world.

How it could give a wrong sample, in the order of the tests: a piece that lies elsewhere than its
row says; rows that depend on the world size, on where a run was resumed, on the cache or on the
compiled loops; a skipped document that moves others; a length that lies; a version that is not the
token's.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import grpc
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from headrace.client import RemoteDataset, Sharding
from headrace.errors import BadArgumentError, ColumnNotFoundError, ManifestCorruptError
from headrace.server import ServerConfig, start_server
from headrace.storage import (
    RowOptions,
    ShardWriter,
    commit_dataset,
    open_store,
)
from headrace.v1 import columns_pb2 as columns_pb
from headrace.v1 import shard_service_pb2 as pb
from headrace.v1.stages import packed
from support.datasets import write_dataset
from support.packed import (
    check_row,
    documents_of,
    failure_before_batches,
    index_rows,
    marked,
    of_other_dataset,
    payloads,
    resumed_payloads,
    rows_seen,
    shown_samples,
    table_of,
)
from support.running import channel_of
from support.served import TIMEOUT_S, Transcript, epoch_request, failure_of, read, stub_of

_LENGTHS = (64, 100)
_COUNT = 150
_MARKS = {64: RowOptions(64, eos=9), 100: RowOptions(100, cut=20, bos=7, fill=3)}


@pytest.fixture(scope="module")
def documents() -> list[NDArray[np.int32]]:
    """Some short, some longer than several rows, some empty."""
    return documents_of(_COUNT, seed=5)


@pytest.fixture(scope="module")
def url(documents: list[NDArray[np.int32]], tmp_path_factory: pytest.TempPathFactory) -> str:
    """The documents in three shards of many blocks, with the lengths of two packings."""
    found = str(tmp_path_factory.mktemp("documents"))
    write_dataset(found, table_of(documents), shard_samples=(60, 60, 30), block_bytes=2048)
    for length in _LENGTHS:
        index_rows(found, _MARKS[length])
    return found


@pytest.fixture(scope="module")
def channel(url: str) -> Iterator[grpc.Channel]:
    """A server of them, with a cache that cannot hold a batch's blocks at once."""
    with channel_of({"d": url}, cache_bytes=1 << 15) as opened:
        yield opened


def _request(length: int = 64, **fields: Any) -> pb.ReadBatchesRequest:
    return epoch_request(
        **{
            "dataset": f"d:{length}",
            "order": pb.OrderSpec(seed=3, shuffle_samples=20),
            "global_batch_size": 7,
            "with_ids": True,
            "end": pb.END_MODE_UNEVEN,
            **fields,
        }
    )


@pytest.mark.parametrize("length", _LENGTHS)
@pytest.mark.parametrize("epoch", [0, 3])
def test_every_document_comes_once(
    channel: grpc.Channel, documents: list[NDArray[np.int32]], length: int, epoch: int
) -> None:
    """In rows whose columns agree, whatever is cut and marked."""
    seen = read(channel, _request(length, epoch_start=pb.EpochStart(epoch=epoch)))

    done: dict[int, set[int]] = {}
    rows = rows_seen(seen)
    for row in rows:
        check_row(row, _MARKS[length], documents, done)
    wanted = {
        number: len(marked(document, _MARKS[length])) for number, document in enumerate(documents)
    }
    assert {number: len(places) for number, places in done.items()} == {
        number: size for number, size in wanted.items() if size
    }
    assert seen.start is not None
    assert len(rows) == seen.start.epoch_sample_count == seen.ends[0].sample_count
    assert sorted(row["headrace.sample_id"] for row in rows) == list(range(len(rows)))


def test_a_rank_may_have_no_row_of_the_last_batch(channel: grpc.Channel) -> None:
    """Whose message is a header without a payload, wherever in memory that ends."""
    world = 16
    found = [
        read(
            channel,
            _request(
                rank=rank,
                world_size=world,
                global_batch_size=world,
                epoch_start=pb.EpochStart(epoch=epoch),
                columns=["tokens"],
                with_ids=False,
            ),
        ).batches
        for rank in (0, 1, world - 1)
        for epoch in (0, 20, 300, 70_000, 10_000_000)
    ]

    last = [batches[-1].header for batches in found]
    assert {0, 1} == {header.sample_count for header in last}
    assert {0} == {header.payload_bytes for header in last if not header.sample_count}


def test_the_next_epoch_has_other_rows(channel: grpc.Channel) -> None:
    """Of the same number, and rows of one id hold other documents."""
    first, second = (
        {row["headrace.sample_id"]: row["tokens.samples"] for row in rows_seen(read(channel, each))}
        for each in (_request(), _request(epoch_start=pb.EpochStart(epoch=1)))
    )

    assert first.keys() == second.keys()
    assert sum(first[row] != second[row] for row in first) > len(first) / 2


@settings(max_examples=6)
@given(
    length=st.sampled_from(_LENGTHS),
    worlds=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    stops=st.lists(st.integers(1, 4), min_size=3, max_size=3),
    end=st.sampled_from([pb.END_MODE_UNEVEN, pb.END_MODE_PAD, pb.END_MODE_DROP_LAST]),
    lanes=st.sampled_from([1, 2]),
    shuffle=st.booleans(),
    skips=st.sampled_from([(), (0, 1, 2, 77, 149)]),
)
def test_rows_are_the_same_for_all_worlds_and_over_resumes(  # noqa: PLR0917 - as Hypothesis gives them
    channel: grpc.Channel,
    length: int,
    worlds: list[int],
    stops: list[int],
    end: pb.EndMode,
    lanes: int,
    shuffle: bool,  # noqa: FBT001 - the same
    skips: tuple[int, ...],
) -> None:
    """A run that is killed and goes on with another world gives what an undisturbed one gives."""
    order = pb.OrderSpec(seed=4, shuffle_samples=30, lanes=lanes, unit=7, shuffle=shuffle)
    fields: dict[str, Any] = {"order": order, "end": end, "skips": pb.SkipList(sample_ids=skips)}
    whole = payloads(read(channel, _request(length, **fields)))

    def read_rank(**own: Any) -> Transcript:
        return read(channel, _request(length, **fields, **own))

    joined = resumed_payloads(read_rank, worlds, stops, batch_count=len(whole))

    if end == pb.END_MODE_PAD:
        # The pads of several ranks stand in another order.
        joined[-1].sort(key=str)
        whole[-1].sort(key=str)
    assert joined == whole


def test_rows_are_the_same_from_memory(url: str) -> None:
    """A first stream waits for blocks, a second finds them."""
    with channel_of({"d": url}) as opened:
        requests = [_request(length, max_chunk_bytes=1 << 16) for length in _LENGTHS]
        cold = [payloads(read(opened, each)) for each in requests]
        warm = [payloads(read(opened, each)) for each in requests]

    assert cold == warm


def test_a_skipped_document_leaves_its_place_empty(channel: grpc.Channel) -> None:
    """And all others where they were."""
    skipped = (0, 3, 77, 149)
    fields: dict[str, Any] = {"skips": pb.SkipList(sample_ids=skipped)}

    plain, rest = (rows_seen(read(channel, each)) for each in (_request(), _request(**fields)))

    assert len(plain) == len(rest)
    for before, after in zip(plain, rest, strict=True):
        kept = np.repeat(
            ~np.isin(before["tokens.samples"], skipped), np.diff(before["tokens.boundaries"])
        )
        expected = np.where(kept, before["tokens"], 0)
        assert expected.tolist() == list(after["tokens"])
        assert not set(skipped) & set(after["tokens.samples"])


def test_steps_go_on_with_rows(channel: grpc.Channel) -> None:
    """A cast, for one, finds the columns of rows."""
    cast = packed(columns_pb.Cast(column="tokens", element_type=pb.ELEMENT_TYPE_INT64))

    plain, cast_rows = (
        rows_seen(read(channel, _request(columns=["tokens"], stages=steps)))
        for steps in ([], [cast])
    )

    assert [list(row["tokens"]) for row in plain] == [list(row["tokens"]) for row in cast_rows]


def test_documents_are_found_in_their_rows(channel: grpc.Channel) -> None:
    """FindSamples says where each document's rows come, and ExplainBatch which blocks they need."""
    stub, rows = stub_of(channel), rows_seen(read(channel, _request()))
    batch = pb.GetBatchRequest(
        dataset="d:64",
        order=pb.OrderSpec(seed=3, shuffle_samples=20),
        global_batch_size=7,
        world_size=1,
        epoch_start=pb.EpochStart(),
        end=pb.END_MODE_UNEVEN,
    )

    wanted_ids = range(_COUNT)
    found = stub.FindSamples(
        pb.FindSamplesRequest(batch=batch, sample_ids=wanted_ids), timeout=TIMEOUT_S
    )
    explained = stub.ExplainBatch(pb.ExplainBatchRequest(batch=batch), timeout=TIMEOUT_S)

    places: dict[int, list[int]] = {}
    for row in found.rows:
        places.setdefault(row.sample, []).append(row.step * 7 + row.row)
    wanted: dict[int, list[int]] = {}
    for place, row_found in enumerate(rows):
        for sample in set(row_found["tokens.samples"]) - {-1}:
            wanted.setdefault(sample, []).append(place)
    assert {sample: sorted(each) for sample, each in places.items()} == wanted
    shown = [sample for row in rows[:7] for sample in row["tokens.samples"] if sample >= 0]
    assert list(explained.sample_ids) == shown


def test_a_private_server_serves_the_rows_of_a_url(
    url: str,
    documents: list[NDArray[np.int32]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """The URL with the length of rows behind it; a state of it goes on with more ranks."""
    # A socket's path has 107 bytes at most.
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("rt")))
    fields: dict[str, Any] = {"end": "uneven", "epochs": 1, "columns": ["tokens.samples"]}
    with RemoteDataset(
        None, f"{url}:64", sharding=Sharding(global_batch_size=6), **fields
    ) as alone:
        whole = [shown_samples(batch) for batch in alone]
        assert sum(len(batch) for batch in whole) > len(documents) / 20
        assert len(alone) == len(whole)
    with RemoteDataset(
        None, f"{url}:64", sharding=Sharding(global_batch_size=6), **fields
    ) as begun:
        for _ in zip(range(3), begun, strict=False):
            pass
        state = begun.state_dict()
    rest = []
    for rank in range(3):
        with RemoteDataset(None, f"{url}:64", rank=rank, world_size=3, **fields) as dataset:
            dataset.load_state_dict(state)
            rest.append([shown_samples(batch) for batch in dataset])

    joined = [list(itertools.chain.from_iterable(each)) for each in zip(*rest, strict=True)]
    assert joined == whole[3:]


def test_what_cannot_be_asked_for_is_refused(channel: grpc.Channel) -> None:
    """A length that no index has, rows by id, and lengths that are none."""
    stub = stub_of(channel)
    requests = {
        "d:65": "lengths 64, 100 are stored",
        "d:0": "lengths 64, 100",
        "d:99999999": "no dataset",
        "e:64": "no dataset",
        "d:": "no dataset",
        "d:-64": "no dataset",
    }

    for name, message in requests.items():
        failure = failure_before_batches(channel, _request(dataset=name))
        assert failure_of(failure)[1].reason == "DATASET_NOT_FOUND"
        assert message in str(failure.details())
    by_id = pb.GetSamplesRequest(dataset="d:64", sample_ids=[1])
    with pytest.raises(grpc.RpcError) as raised:
        list(stub.GetSamples(by_id, timeout=TIMEOUT_S))
    assert "differ from epoch to epoch" in str(raised.value.details())
    response = stub.GetDataset(pb.GetDatasetRequest(name="d:64"), timeout=TIMEOUT_S)
    described = response.dataset
    assert described.sample_count > 0
    assert [column.name for column in described.columns][:2] == ["tokens", "weights"]


def test_a_length_that_lies_is_found_and_nothing_of_its_batch_is_sent(tmp_path: Path) -> None:
    """The error names the sample; whoever stored other lengths is to store them again."""
    lying = str(tmp_path / "lying")
    truth = [np.arange(5, dtype=np.int32)] * 20
    write_dataset(lying, table_of(truth), shard_samples=(20,))
    other = str(tmp_path / "other")
    write_dataset(
        other,
        table_of([*truth[:13], np.arange(6, dtype=np.int32), *truth[14:]]),
        shard_samples=(20,),
    )
    pointer = index_rows(other, RowOptions(16))
    fingerprint = index_rows(lying, RowOptions(16)).dataset
    for file in (tmp_path / "other" / "packing" / pointer.dataset).iterdir():
        target = tmp_path / "lying" / "packing" / fingerprint / file.name
        content = of_other_dataset(file.read_bytes(), pointer.dataset, fingerprint)
        target.write_bytes(content)

    with channel_of({"d": lying}) as opened:
        failure = failure_before_batches(opened, _request(16, global_batch_size=99))

    assert failure_of(failure)[1].reason == "STAGE_FAILED"
    assert "sample 13 has 5 elements in column 'tokens', but 6" in str(failure.details())


def test_a_token_of_an_earlier_version_goes_on_with_its_rows(tmp_path: Path) -> None:
    """After an append the rows of before are there, and those of all documents too."""
    url, store = str(tmp_path / "grows"), open_store(str(tmp_path / "grows"))
    documents = documents_of(300, seed=1)

    def append(part: slice, number: int, mode: Literal["error", "append"]) -> None:
        table = table_of(documents)[part.start : part.stop]
        writer = ShardWriter(store, f"part-{number}.arrow", schema=table.schema, block_bytes=2048)
        for batch in table.to_batches():
            writer.append(batch)
        commit_dataset(store, table.schema, [writer.close()], mode=mode)

    append(slice(0, 200), 0, "error")
    first = index_rows(url, RowOptions(64))
    config = ServerConfig(datasets={"d": url}, listen="127.0.0.1:0")
    with start_server(config) as server, grpc.insecure_channel(server.address) as opened:
        begun = read(opened, _request())
    append(slice(200, 300), 1, "append")
    second = index_rows(url, RowOptions(64))
    with start_server(config) as server, grpc.insecure_channel(server.address) as opened:
        rest = read(opened, _request(resume_token=begun.tokens[2]))
        grown = read(opened, _request())

    assert payloads(rest) == payloads(begun)[3:]
    assert first.sample_count == 200
    assert second.sample_count == 300
    shown = {sample for row in rows_seen(grown) for sample in row["tokens.samples"]} - {-1}
    assert shown == {number for number, each in enumerate(documents) if each.size}


def test_columns_that_cannot_be_packed_alike_are_refused(tmp_path: Path) -> None:
    """When lengths are stored, with the sample that has unequal ones."""
    url = str(tmp_path / "unequal")
    table = pa.table(
        {
            "tokens": pa.array([[1, 2], [3], [4]], pa.list_(pa.int32())),
            "mask": pa.array([[1, 1], [1, 0], [0]], pa.list_(pa.uint8())),
            "text": pa.array(["a", "b", "c"]),
        }
    )
    write_dataset(url, table, shard_samples=(3,))

    with pytest.raises(BadArgumentError, match="sample 1 has 1 elements in 'tokens' but 2"):
        index_rows(url, RowOptions(8), columns=["tokens", "mask"])
    with pytest.raises(BadArgumentError, match="2 columns contain lists"):
        index_rows(url, RowOptions(8), columns=[])
    with pytest.raises(BadArgumentError, match="expected lists of numbers"):
        index_rows(url, RowOptions(8), columns=["text"])
    with pytest.raises(ColumnNotFoundError):
        index_rows(url, RowOptions(8), columns=["nothing"])
    with pytest.raises(BadArgumentError, match="sample 0 has 2 elements"):
        index_rows(url, RowOptions(1), columns=["tokens"], refuse_longer=True)


def test_what_is_stored_damaged_is_refused(tmp_path: Path) -> None:
    """Any flipped byte of the table of groups, the row counts or the lengths."""
    copied = str(tmp_path / "copied")
    write_dataset(copied, table_of(documents_of(50, seed=2)), shard_samples=(50,))
    pointer = index_rows(copied, RowOptions(64))
    (table,) = pointer.rows
    for name in (pointer.lengths.name, pointer.groups.name, table.counts.name):
        path = tmp_path / "copied" / name
        content = path.read_bytes()
        path.write_bytes(bytes([content[0] ^ 1]) + content[1:])
        with channel_of({"d": copied}) as opened:
            failure = failure_before_batches(opened, _request())
        path.write_bytes(content)

        assert failure_of(failure)[1].reason == ManifestCorruptError.reason
