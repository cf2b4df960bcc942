"""Documents that are packed into rows, and what a test looks at in their rows."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.cli.stored.row_counter import row_counter
from headrace.client import Batch
from headrace.storage import PackingPointer, RowOptions, index_packing
from headrace.storage.packing.pointer import digest_of
from headrace.v1 import shard_service_pb2 as pb
from support.served import Transcript, messages_of, read_until_failure


def documents_of(count: int, seed: int) -> list[NDArray[np.int32]]:
    """Return documents of which some are short, some longer than several rows, some empty."""
    random = np.random.default_rng(seed)
    lengths = np.where(
        random.random(count) < 0.1, random.integers(0, 300, count), random.integers(0, 40, count)
    )
    return [
        np.arange(length, dtype=np.int32) + 1000 * (number + 1)
        for number, length in enumerate(lengths.tolist())
    ]


def table_of(documents: list[NDArray[np.int32]]) -> pa.Table:
    """Return documents with a column of weights that is as long, and one that is no list."""
    return pa.table(
        {
            "tokens": pa.array(documents, pa.list_(pa.int32())),
            "weights": pa.array([each * 0.5 for each in documents], pa.list_(pa.float32())),
            "number": pa.array(range(len(documents)), pa.int64()),
        }
    )


def index_rows(url: str, options: RowOptions, **more: Any) -> PackingPointer:
    """Store what packing the documents of a dataset needs."""
    return index_packing(
        url, options, count_rows=row_counter(), **{"columns": ["tokens", "weights"], **more}
    )


def rows_seen(seen: Transcript) -> list[dict[str, Any]]:
    """Return the rows of a stream, each by column."""
    rows = []
    for batch in seen.batches:
        values = batch.values
        rows += [
            {name: column[row] for name, column in values.items()}
            for row in range(batch.header.sample_count)
        ]
    return rows


def marked(document: NDArray[np.int32], options: RowOptions) -> list[int]:
    """Return a document with its marks."""
    before = [] if options.bos is None else [options.bos]
    after = [] if options.eos is None else [options.eos]
    return [*before, *document.tolist(), *after]


def check_row(
    row: dict[str, Any],
    options: RowOptions,
    documents: list[NDArray[np.int32]],
    done: dict[int, set[int]],
) -> None:
    """Hold a row against the documents that it says it has, and note which of their elements."""
    tokens, edges, samples = (
        np.array(row[f"tokens{part}"]) for part in ("", ".boundaries", ".samples")
    )
    labels, positions, numbers, weights = (
        np.array(row[name])
        for name in ("tokens.labels", "tokens.positions", "tokens.documents", "weights")
    )
    assert edges[0] == 0
    assert edges[-1] == len(tokens) == options.length
    assert len(samples) == len(edges) - 1
    for number, (start, end) in enumerate(itertools.pairwise(edges.tolist())):
        own, sample = tokens[start:end].tolist(), int(samples[number])
        assert start < end
        assert positions[start:end].tolist() == list(range(end - start))
        if sample < 0:
            assert own == [options.fill] * len(own)
            assert set(labels[start:end]) == {-100}
            assert set(numbers[start:end]) == {-1}
            continue
        whole = marked(documents[sample], options)
        first = next(
            at
            for at in range(len(whole))
            if whole[at : at + len(own)] == own and at not in done.setdefault(sample, set())
        )
        places = set(range(first, first + len(own)))
        assert not places & done[sample]
        done[sample] |= places
        assert labels[start:end].tolist() == [*own[1:], -100]
        assert set(numbers[start:end]) == {number}
        has_bos = options.bos is not None
        plain = [0.5 * value for value in documents[sample].tolist()]
        shown = ([0.0] if has_bos else []) + plain + ([] if options.eos is None else [0.0])
        assert weights[start:end].tolist() == shown[first : first + len(own)]


def payloads(seen: Transcript) -> list[list[Any]]:
    """Return the rows of each batch, of each the values of all columns by their names."""
    batches = []
    for batch in seen.batches:
        values = batch.values
        names = sorted(values)
        count = batch.header.sample_count
        batches.append([[values[name][row] for name in names] for row in range(count)])
    return batches


def shown_samples(batch: Batch) -> list[list[int]]:
    """Return the documents of each row of a batch."""
    return [row.tolist() for row in batch.ragged["tokens.samples"] if row is not None]


def failure_before_batches(channel: grpc.Channel, request: pb.ReadBatchesRequest) -> grpc.RpcError:
    """Return how a stream fails of which no batch is sent."""
    seen, failure = read_until_failure(messages_of(channel, request))
    assert not any(message.HasField("batch") for message in seen)
    return failure


def resumed_payloads(
    read_rank: Callable[..., Transcript], worlds: list[int], stops: list[int], *, batch_count: int
) -> list[list[Any]]:
    """Return the rows of each global batch of a run that is killed and goes on with other ranks.

    Args:
        read_rank: Reads the rest of the run as one rank, of whose request it gets some fields.
        worlds: Ranks until the first kill, until the second, and so on; one rank reads the rest.
        stops: Global batches until each kill.
        batch_count: Global batches of the whole run.
    """
    joined: list[list[Any]] = []
    place: dict[str, Any] = {"epoch_start": pb.EpochStart()}
    for world, stop in zip([*worlds, 1], [*stops[: len(worlds)], None], strict=True):
        if len(joined) == batch_count:
            break
        ranks = [read_rank(**place, rank=rank, world_size=world) for rank in range(world)]
        batches = list(zip(*map(payloads, ranks), strict=True))[:stop]
        joined += [list(itertools.chain.from_iterable(each)) for each in batches]
        place = {"resume_token": ranks[0].tokens[len(batches) - 1]}
    return joined


def of_other_dataset(content: bytes, old: str, new: str) -> bytes:
    """Return a file of a `packing/` folder as if it were another dataset's, its digest too."""
    content = content.replace(old.encode(), new.encode())
    if not content.startswith(b"{"):
        return content
    facts = {key: value for key, value in json.loads(content).items() if key != "digest"}
    return json.dumps({**facts, "digest": digest_of(facts)}).encode()
