"""Claims about mixtures of packed rows over the wire.

How they could give a wrong sample, in the order of the tests: a pass over a dataset that two epochs
share and that is packed twice, so that documents are lost; rows that depend on the world size, the
lanes or where a run was resumed; ids of one dataset taken for those of another; a skipped document
of one dataset that is left out of another; rows of different lengths or marks in one batch, whose
weights would be no weights by tokens; versions that are not the token's.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from headrace.client import Deal, Mixture, MixtureEntry, RemoteDataset, Sharding
from headrace.server import ServerConfig, start_server
from headrace.storage import RowOptions, ShardWriter, commit_dataset, open_store
from headrace.v1 import dealing_pb2 as dealing_pb
from headrace.v1 import mixtures_pb2 as mixtures_pb
from headrace.v1 import shard_service_pb2 as pb
from support.asking import asking, order_stages
from support.datasets import write_dataset
from support.packed import (
    check_row,
    documents_of,
    failure_before_batches,
    index_rows,
    of_other_dataset,
    payloads,
    resumed_payloads,
    rows_seen,
    shown_samples,
    table_of,
)
from support.running import channel_of
from support.served import TIMEOUT_S, Transcript, epoch_request, failure_of, read, stub_of

_OPTIONS = RowOptions(64, eos=9)
_COUNTS = {"a": 150, "b": 60, "c": 25}
_Documents = dict[str, list[NDArray[np.int32]]]


@pytest.fixture(scope="module")
def documents() -> _Documents:
    """Of three datasets, each with other elements."""
    return {name: documents_of(count, seed=at) for at, (name, count) in enumerate(_COUNTS.items())}


@pytest.fixture(scope="module")
def urls(documents: _Documents, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Three datasets of them, the last with its columns in another order and no `number`."""
    found = {}
    for name, own in documents.items():
        url = found[name] = str(tmp_path_factory.mktemp(name))
        table = table_of(own)
        if name == "c":
            table = table.select(["weights", "tokens"])
        shards = (len(own) // 3, len(own) - len(own) // 3)
        write_dataset(url, table, shard_samples=shards, block_bytes=2048)
        index_rows(url, _OPTIONS)
    return found


@pytest.fixture(scope="module")
def channel(urls: dict[str, str]) -> Iterator[grpc.Channel]:
    """A server of them, with a cache that cannot hold a batch's blocks at once."""
    with channel_of(urls, cache_bytes=1 << 15) as opened:
        yield opened


def _mixture(
    *, batching: Any = mixtures_pb.BATCHING_RANDOM, epoch_size: int = 0, **amounts: Any
) -> mixtures_pb.Mixture:
    """Return a mixture of rows; an amount is a proportion, or more fields, or None for all."""
    datasets = []
    for name, amount in amounts.items():
        fields = amount if isinstance(amount, dict) else {}
        if isinstance(amount, float):
            fields = {"proportion": amount}
        datasets.append(mixtures_pb.MixtureDataset(name=f"{name}:64", **fields))
    return mixtures_pb.Mixture(datasets=datasets, batching=batching, epoch_size=epoch_size)


def _request(mixture: mixtures_pb.Mixture, **fields: Any) -> pb.ReadBatchesRequest:
    return epoch_request(
        **{
            "mixture": mixture,
            "order": pb.OrderSpec(seed=3, shuffle_samples=20, unit=8),
            "global_batch_size": 8,
            "with_ids": True,
            "end": pb.END_MODE_UNEVEN,
            **fields,
        }
    )


def _check_passes(rows: list[dict[str, Any]], documents: _Documents, row_counts: list[int]) -> None:
    """Hold each whole pass over each dataset against its documents: each of them comes once."""
    for index, name in enumerate(documents):
        own = [row for row in rows if row["headrace.sample_id"][0] == index]
        count = row_counts[index]
        for start in range(0, len(own) - count + 1, count):
            done: dict[int, set[int]] = {}
            for row in own[start : start + count]:
                check_row(row, _OPTIONS, documents[name], done)
            wanted = {at: len(each) + 1 for at, each in enumerate(documents[name])}
            assert {at: len(places) for at, places in done.items()} == wanted
            ids = [int(row["headrace.sample_id"][1]) for row in own[start : start + count]]
            assert sorted(ids) == list(range(count))


def _row_counts(channel: grpc.Channel) -> list[int]:
    stub = stub_of(channel)
    requests = [pb.GetDatasetRequest(name=f"{name}:64") for name in _COUNTS]
    found = [stub.GetDataset(each, timeout=TIMEOUT_S).dataset for each in requests]
    assert [each.document_count for each in found] == list(_COUNTS.values())
    return [each.sample_count for each in found]


@pytest.mark.parametrize("epoch", [0, 3])
def test_every_document_of_all_datasets_comes_once(
    channel: grpc.Channel, documents: _Documents, epoch: int
) -> None:
    """In an epoch that draws each row once."""
    mixture = _mixture(a=None, b=None, c=None)
    seen = read(channel, _request(mixture, epoch_start=pb.EpochStart(epoch=epoch)))

    counts = _row_counts(channel)
    assert seen.start is not None
    assert seen.start.epoch_sample_count == sum(counts)
    assert list(seen.ends[0].dataset_sample_counts) == counts
    _check_passes(rows_seen(seen), documents, counts)


@pytest.mark.parametrize("batching", [mixtures_pb.BATCHING_RANDOM, mixtures_pb.BATCHING_STRATIFIED])
@pytest.mark.parametrize("shuffle", [True, False])
def test_passes_that_epochs_share_hold_each_document_once(
    channel: grpc.Channel,
    documents: _Documents,
    batching: mixtures_pb.Batching,
    shuffle: bool,  # noqa: FBT001 - as pytest gives it
) -> None:
    """With weights a pass ends in the middle of an epoch, and the next one has other rows."""
    mixture = _mixture(a=0.6, b=0.3, c=0.1, epoch_size=40, batching=batching)
    order = pb.OrderSpec(seed=3, shuffle_samples=20, unit=10, shuffle=shuffle)
    seen = read(channel, _request(mixture, order=order, global_batch_size=10, epoch_count=12))

    rows, counts = rows_seen(seen), _row_counts(channel)
    drawn = Counter(int(row["headrace.sample_id"][0]) for row in rows)
    assert len(rows) == 12 * 40
    # Rows are the items, so weights by rows are weights by tokens; each epoch rounds them to rows.
    assert [drawn[at] for at in range(3)] == pytest.approx([288, 144, 48], abs=12)
    assert min(drawn[at] / count for at, count in enumerate(counts)) > 2
    _check_passes(rows, documents, counts)
    own = [row for row in rows if row["headrace.sample_id"][0] == 0]
    first, second = own[: counts[0]], own[counts[0] : 2 * counts[0]]
    by_id = {int(row["headrace.sample_id"][1]): list(row["tokens.samples"]) for row in first}
    changed = sum(
        by_id[int(row["headrace.sample_id"][1])] != list(row["tokens.samples"]) for row in second
    )
    assert changed > counts[0] / 2


def test_a_fixed_choice_of_rows_has_the_same_documents_in_every_epoch(
    channel: grpc.Channel,
) -> None:
    """As it has the same samples where the items are samples."""
    fixed = {"choose": 10, "choice": mixtures_pb.CHOICE_FIXED}
    seen = read(channel, _request(_mixture(a=fixed, b=None), epoch_count=3))

    shown = [
        (int(row["headrace.sample_id"][1]), tuple(row["tokens"]))
        for row in rows_seen(seen)
        if row["headrace.sample_id"][0] == 0
    ]
    assert len(shown) == 30
    assert set(Counter(shown).values()) == {3}


_MIXTURES = st.one_of(
    st.builds(
        lambda a, b, size, batching: _mixture(
            a=a / 10, b=b / 10, c=0.1, epoch_size=size, batching=batching
        ),
        st.integers(1, 9),
        st.integers(0, 9),
        st.integers(20, 60),
        st.sampled_from(
            [
                mixtures_pb.BATCHING_RANDOM,
                mixtures_pb.BATCHING_STRATIFIED,
                mixtures_pb.BATCHING_PER_DATASET,
            ]
        ),
    ),
    st.builds(
        lambda repeat, choice: _mixture(a={"repeat": repeat, "choice": choice}, b=None),
        st.sampled_from([0.4, 1.0, 2.3]),
        st.sampled_from([mixtures_pb.CHOICE_FRESH, mixtures_pb.CHOICE_FIXED]),
    ),
)


@pytest.mark.long
@pytest.mark.timeout(1800)
@settings(max_examples=40)
@given(
    mixture=_MIXTURES,
    worlds=st.lists(st.sampled_from([1, 2, 3, 4, 8]), min_size=1, max_size=3),
    stops=st.lists(st.integers(1, 3), min_size=3, max_size=3),
    lanes=st.sampled_from([1, 2]),
    shuffle=st.booleans(),
    skips=st.sampled_from([(), (0, 1, 2, 24)]),
)
def test_rows_are_the_same_for_all_worlds_and_over_resumes(  # noqa: PLR0917 - as Hypothesis gives them
    channel: grpc.Channel,
    mixture: mixtures_pb.Mixture,
    worlds: list[int],
    stops: list[int],
    lanes: int,
    shuffle: bool,  # noqa: FBT001 - the same
    skips: tuple[int, ...],
) -> None:
    """Of two epochs; a run that is killed and goes on with other ranks is the undisturbed one."""
    _check_resumes(channel, mixture, worlds, stops, lanes=lanes, shuffle=shuffle, skips=skips)


@pytest.mark.parametrize("worlds", [[2, 3], [8]])
def test_rows_are_the_same_for_some_worlds_and_over_resumes(
    channel: grpc.Channel, worlds: list[int]
) -> None:
    """As above, with lanes, skips and rows of three datasets."""
    mixture = _mixture(a=0.5, b=0.3, c=0.1, epoch_size=40, batching=mixtures_pb.BATCHING_STRATIFIED)
    skips = (0, 1, 2, 24)
    _check_resumes(channel, mixture, worlds, [2, 1, 1], lanes=2, shuffle=True, skips=skips)


def _check_resumes(
    channel: grpc.Channel,
    mixture: mixtures_pb.Mixture,
    worlds: list[int],
    stops: list[int],
    *,
    lanes: int,
    shuffle: bool,
    skips: tuple[int, ...],
) -> None:
    wanted = mixtures_pb.Mixture.FromString(mixture.SerializeToString())
    if skips:
        wanted.datasets[1].stages.extend(order_stages(skips=pb.SkipList(sample_ids=skips)))
    order = pb.OrderSpec(seed=4, shuffle_samples=30, lanes=lanes, unit=8, shuffle=shuffle)
    fields: dict[str, Any] = {"order": order, "epoch_count": 2}
    whole = payloads(read(channel, _request(wanted, **fields)))

    def read_rank(**own: Any) -> Transcript:
        return read(channel, _request(wanted, **fields, **own))

    joined = resumed_payloads(read_rank, worlds, stops, batch_count=len(whole))

    assert joined[: len(whole)] == whole


def test_a_skipped_document_leaves_its_place_empty(channel: grpc.Channel) -> None:
    """In its own dataset alone; the same id of another one stays."""
    plain = _mixture(a=0.5, b=0.5, epoch_size=60)
    skipping = _mixture(a=0.5, b=0.5, epoch_size=60)
    skipping.datasets[1].stages.extend(order_stages(skips=pb.SkipList(sample_ids=(3, 5, 8))))

    before, after = (rows_seen(read(channel, _request(each))) for each in (plain, skipping))

    is_touched = False
    for whole, rest in zip(before, after, strict=True):
        is_second = whole["headrace.sample_id"][0] == 1
        gone = np.isin(whole["tokens.samples"], (3, 5, 8)) & is_second
        is_touched |= bool(gone.any())
        kept = np.repeat(~gone, np.diff(whole["tokens.boundaries"]))
        assert np.where(kept, whole["tokens"], 0).tolist() == list(rest["tokens"])
    assert is_touched


def test_documents_are_found_in_their_rows(channel: grpc.Channel) -> None:
    """In all passes that an epoch has; and a batch is explained by its documents."""
    stub = stub_of(channel)
    mixture = _mixture(a=0.2, b=0.2, c=0.6, epoch_size=80)
    rows = rows_seen(read(channel, _request(mixture)))
    batch = asking(
        pb.GetBatchRequest,
        mixture=mixture,
        order=pb.OrderSpec(seed=3, shuffle_samples=20, unit=8),
        global_batch_size=8,
        world_size=1,
        epoch_start=pb.EpochStart(),
        end=pb.END_MODE_UNEVEN,
    )
    pairs = [(at, sample) for at, count in enumerate(_COUNTS.values()) for sample in range(count)]

    found = stub.FindSamples(
        pb.FindSamplesRequest(
            batch=batch,
            dataset_indices=[at for at, _ in pairs],
            sample_ids=[sample for _, sample in pairs],
        ),
        timeout=TIMEOUT_S,
    )
    explained = stub.ExplainBatch(pb.ExplainBatchRequest(batch=batch), timeout=TIMEOUT_S)

    places: dict[tuple[int, int], list[int]] = {}
    for row in found.rows:
        places.setdefault(pairs[row.sample], []).append(row.step * 8 + row.row)
    wanted: dict[tuple[int, int], list[int]] = {}
    for place, row_found in enumerate(rows):
        for sample in set(row_found["tokens.samples"]) - {-1}:
            key = int(row_found["headrace.sample_id"][0]), int(sample)
            wanted.setdefault(key, []).append(place)
    assert {pair: sorted(each) for pair, each in places.items()} == wanted
    assert max(map(len, wanted.values())) > 2
    shown = [
        (int(row["headrace.sample_id"][0]), int(sample))
        for row in rows[:8]
        for sample in row["tokens.samples"]
        if sample >= 0
    ]
    assert list(zip(explained.dataset_indices, explained.sample_ids, strict=True)) == shown


def test_dealing_gives_the_same_global_batches(channel: grpc.Channel) -> None:
    """Each rank as many rows, and costs that are more even than in order."""
    mixture = _mixture(a=None, b=None, c=None)
    deals = {"in order": None, "balanced": dealing_pb.Deal()}
    batches: dict[str, list[list[list[dict[str, Any]]]]] = {}
    for name, deal in deals.items():
        fields: dict[str, Any] = {"deal": deal, "global_batch_size": 16, "world_size": 4}
        order = pb.OrderSpec(seed=3, shuffle_samples=40, unit=16)
        ranks = [
            read(channel, _request(mixture, rank=rank, order=order, **fields)) for rank in range(4)
        ]
        batches[name] = [
            [_named(batch) for batch in each]
            for each in zip(*(rank.batches for rank in ranks), strict=True)
        ]

    def tokens(ranks: list[list[dict[str, Any]]]) -> list[list[int]]:
        return sorted(list(row["tokens"]) for rank in ranks for row in rank)

    def spread(ranks: list[list[dict[str, Any]]]) -> float:
        costs = [
            sum(float((np.diff(row["tokens.boundaries"]) ** 2).sum()) for row in rank)
            for rank in ranks
        ]
        return max(costs) * len(costs) / sum(costs)

    assert [tokens(each) for each in batches["in order"]] == [
        tokens(each) for each in batches["balanced"]
    ]
    # Not of the last batch, which may be small.
    means = [float(np.mean([spread(each) for each in own[:-1]])) for own in batches.values()]
    assert means[1] < means[0]


def _named(batch: Any) -> list[dict[str, Any]]:
    values = batch.values
    return [
        {name: column[row] for name, column in values.items()}
        for row in range(batch.header.sample_count)
    ]


def test_what_cannot_be_mixed_is_refused(tmp_path: Path, documents: _Documents) -> None:
    """By name, with what each has, before anything is sent."""
    urls = {}
    for name, options in {
        "a": [RowOptions(64, eos=9), RowOptions(100, eos=9)],
        "b": [RowOptions(100, eos=9)],
        "marked": [RowOptions(64, eos=8)],
        "wide": [RowOptions(64, eos=9)],
        "named": [RowOptions(64, eos=9)],
    }.items():
        url = urls[name] = str(tmp_path / name)
        table = table_of(documents["c"])
        if name == "wide":
            wide = table.column("tokens").cast(pa.list_(pa.int64()))
            table = table.set_column(0, "tokens", wide)
        if name == "named":
            table = table.rename_columns(["ids", "weights", "number"])
        write_dataset(url, table, shard_samples=(25,))
        for option in options:
            columns = ["ids" if name == "named" else "tokens"]
            index_rows(url, option, columns=columns)
    refused = {
        ("a:64", "b:100"): "rows of 'a:64' have 64 elements, and those of 'b:100' 100 elements",
        ("a:64", "a:100"): "all rows of a mixture must have the same length",
        ("a:64", "b"): "packed rows, 'a:64', and samples, 'b'; name rows of the same length",
        ("a", "b:100"): "packed rows, 'b:100', and samples, 'a'",
        ("a:64", "b:64"): "lengths 100 are stored for packing 'b'",
        ("a:64", "marked:64"): "no bos, eos 9, fill 0, and those of 'marked:64' no bos, eos 8",
        ("a:64", "wide:64"): "column 'tokens' differs between the datasets of the mixture",
        ("a:64", "named:64"): "documents in the column 'tokens', and those of 'named:64'",
        ("a:64", "e:64"): "no dataset 'e:64'",
    }

    with channel_of(urls) as opened:
        for names, message in refused.items():
            mixture = mixtures_pb.Mixture(
                datasets=[mixtures_pb.MixtureDataset(name=name) for name in names]
            )
            failure = failure_before_batches(opened, _request(mixture))
            assert message in str(failure.details())
        filtered = mixtures_pb.Mixture(
            datasets=[
                mixtures_pb.MixtureDataset(name="a:64", stages=order_stages(where="number < 5"))
            ]
        )
        failure = failure_before_batches(opened, _request(filtered))
        assert "where is given for 'a:64', whose samples are packed rows" in str(failure.details())


def test_a_column_that_not_all_have_is_refused_by_name(tmp_path: Path) -> None:
    """And the others are sent."""
    urls = {}
    for name, columns in {"a": ["tokens", "weights"], "b": ["tokens"]}.items():
        url = urls[name] = str(tmp_path / name)
        write_dataset(url, table_of(documents_of(20, seed=3)), shard_samples=(20,))
        index_rows(url, _OPTIONS, columns=columns)

    with channel_of(urls) as opened:
        seen = read(opened, _request(_mixture(a=None, b=None), columns=["tokens", "tokens.labels"]))
        failure = failure_before_batches(
            opened, _request(_mixture(a=None, b=None), columns=["weights"])
        )

    assert seen.batches
    assert "packed in 'a:64' but not in 'b:64'" in str(failure.details())


def test_a_length_that_lies_is_found_and_named_with_its_dataset(tmp_path: Path) -> None:
    """Nothing of its batch is sent."""
    truth = [np.arange(5, dtype=np.int32)] * 20
    for name, own in {
        "a": truth,
        "b": truth,
        "other": [*truth[:13], truth[0][:4], *truth[14:]],
    }.items():
        write_dataset(str(tmp_path / name), table_of(own), shard_samples=(20,))
    options = RowOptions(16)
    index_rows(str(tmp_path / "a"), options)
    lying = index_rows(str(tmp_path / "b"), options).dataset
    pointer = index_rows(str(tmp_path / "other"), options)
    for file in (tmp_path / "other" / "packing" / pointer.dataset).iterdir():
        content = of_other_dataset(file.read_bytes(), pointer.dataset, lying)
        (tmp_path / "b" / "packing" / lying / file.name).write_bytes(content)

    mixture = mixtures_pb.Mixture(
        datasets=[mixtures_pb.MixtureDataset(name=name) for name in ("a:16", "b:16")]
    )
    order = pb.OrderSpec(seed=3, unit=99)
    with channel_of({name: str(tmp_path / name) for name in ("a", "b")}) as opened:
        request = _request(mixture, order=order, global_batch_size=99)
        failure = failure_before_batches(opened, request)

    assert failure_of(failure)[1].reason == "STAGE_FAILED"
    assert "sample 13 of the mixture's dataset 1 has 5 elements" in str(failure.details())


def test_a_token_goes_on_with_the_rows_of_earlier_versions(tmp_path: Path) -> None:
    """After one of its datasets has grown, and its lengths with it."""
    stores = {name: open_store(str(tmp_path / name)) for name in ("a", "b")}
    documents = documents_of(120, seed=1)

    def write(name: str, part: slice, number: int) -> None:
        table = table_of(documents).slice(part.start, part.stop - part.start)
        store = stores[name]
        writer = ShardWriter(store, f"part-{number}.arrow", schema=table.schema, block_bytes=2048)
        for batch in table.to_batches():
            writer.append(batch)
        shard = writer.close()
        commit_dataset(store, table.schema, [shard], mode="append" if number else "error")
        index_rows(str(tmp_path / name), _OPTIONS)

    write("a", slice(0, 80), 0)
    write("b", slice(0, 50), 0)
    config = ServerConfig(
        datasets={name: str(tmp_path / name) for name in stores}, listen="127.0.0.1:0"
    )
    mixture = _mixture(a=0.5, b=0.5)
    with start_server(config) as server, grpc.insecure_channel(server.address) as opened:
        begun = read(opened, _request(mixture))
    write("b", slice(50, 120), 1)
    with start_server(config) as server, grpc.insecure_channel(server.address) as opened:
        rest = read(opened, _request(mixture, resume_token=begun.tokens[1]))
        grown = read(opened, _request(mixture))

    assert payloads(rest) == payloads(begun)[2:]
    assert len(rows_seen(grown)) > len(rows_seen(begun))


def test_a_training_job_mixes_rows_of_urls_and_goes_on_with_more_ranks(
    urls: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """With skips by the ids of documents, dealt evenly; a state from before the first batch too."""
    # A socket's path has 107 bytes at most, so a folder of this test's name may be too deep.
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("rt")))
    entries = [
        MixtureEntry(f"{urls['a']}:64", proportion=0.7),
        MixtureEntry(f"{urls['b']}:64", proportion=0.3, skips=[59, 3]),
    ]
    mixture = Mixture(tuple(entries))
    fields: dict[str, Any] = {
        "end": "uneven",
        "epochs": 1,
        "columns": ["tokens.samples"],
    }
    whole_batch = Sharding(global_batch_size=6, deal=Deal())
    with RemoteDataset(None, mixture, sharding=whole_batch, **fields) as alone:
        first = alone.state_dict()
        whole = [shown_samples(batch) for batch in alone]
        assert len(alone) == len(whole)
    with RemoteDataset(None, mixture, sharding=whole_batch, **fields) as begun:
        begun.load_state_dict(first)
        head = [shown_samples(batch) for _, batch in zip(range(3), begun, strict=False)]
        state = begun.state_dict()
    rest = []
    for rank in range(3):
        with RemoteDataset(
            None, mixture, rank=rank, world_size=3, sharding=Sharding(deal=Deal()), **fields
        ) as dataset:
            dataset.load_state_dict(state)
            rest.append([shown_samples(batch) for batch in dataset])

    joined = [sorted(itertools.chain.from_iterable(each)) for each in zip(*rest, strict=True)]
    assert [*map(sorted, head), *joined] == [*map(sorted, whole)]
