"""An Arrow Flight server to compare with: what a good engineer would write in an afternoon.

It holds the decoded shards in memory and knows the order beforehand. For a batch it sorts the rows
by shard, which its client does not see, and gathers each shard's by the fastest way that NumPy and
Arrow have for the column: opaque items of one size for fixed-size columns, Arrow's own `take` on a
shard's array for strings and bytes. Plain ``Table.take`` over all shards is 10 to 40 times slower.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.flight as fl
from numpy.typing import NDArray

from headrace.storage import open_dataset

_SEED = 7

_Wanted = Sequence[NDArray[np.int64]]
_Gather = Callable[[_Wanted], "pa.Array[Any]"]


def serve_flight(
    argument: tuple[str, int], pipe: Connection, *, location: str = "grpc://127.0.0.1:0"
) -> None:
    """Serve a dataset of ours until told to end.

    Args:
        argument: Its folder, and the rows of a batch.
        pipe: Is told the address; then says when to end.
        location: Where to listen: a free port, or ``grpc+unix:///path``.
    """
    folder, batch_size = argument
    with open_dataset(folder) as dataset:
        blocks = [dataset.read_block(block) for block in range(dataset.block_count)]
        counts = dataset.shard_sample_counts
    rows = pa.Table.from_batches(blocks).combine_chunks()
    starts = np.concatenate([[0], np.cumsum(counts)])
    shards = [
        rows.slice(start, end - start).combine_chunks()
        for start, end in itertools.pairwise(starts.tolist())
    ]
    server = _Server(location, shards, starts, batch_size)
    is_unix = location.startswith("grpc+unix:")
    pipe.send(location if is_unix else f"grpc://127.0.0.1:{server.port}")
    pipe.recv()
    server.shutdown()


def read_sizes(address: str, ticket: str) -> Generator[int, None, None]:
    """Yield the payload bytes of each batch of one stream."""
    with fl.connect(address) as client:
        reader = client.do_get(fl.Ticket(ticket.encode()))
        try:
            while True:
                batch = reader.read_chunk().data
                assert batch is not None
                yield batch.nbytes
        finally:
            reader.cancel()


class _Server(fl.FlightServerBase):
    """Serves the tickets ``ready`` and ``gather``, without end."""

    def __init__(
        self,
        location: str,
        shards: Sequence[pa.Table],
        starts: NDArray[np.int64],
        batch_size: int,
    ) -> None:
        super().__init__(location)
        self._gatherers = [
            _gatherer([pa.concat_arrays(shard.column(index).chunks) for shard in shards])
            for index in range(shards[0].num_columns)
        ]
        self._schema = shards[0].schema
        self._starts = starts
        self._batch_size = batch_size
        self._order = np.random.default_rng(_SEED).permutation(int(starts[-1]))

    def do_get(self, _context: fl.ServerCallContext, ticket: fl.Ticket) -> fl.GeneratorStream:
        batches = self._batches()
        if ticket.ticket == b"ready":
            batches = itertools.repeat(next(batches))
        return fl.GeneratorStream(self._schema, batches)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        while True:
            for start in range(0, len(self._order) - self._batch_size + 1, self._batch_size):
                yield self._gather(self._order[start : start + self._batch_size])

    def _gather(self, ids: NDArray[np.int64]) -> pa.RecordBatch:
        # Sorting is how the rows of a shard come together; their order in a batch is nobody's.
        ids = np.sort(ids)
        edges = np.searchsorted(ids, self._starts)
        wanted = [
            ids[edges[shard] : edges[shard + 1]] - self._starts[shard]
            for shard in range(len(self._starts) - 1)
        ]
        columns = [gather(wanted) for gather in self._gatherers]
        return pa.record_batch(columns, schema=self._schema)


def _gatherer(shards: Sequence[pa.Array[Any]]) -> _Gather:
    arrow_type = shards[0].type
    if pa.types.is_fixed_size_list(arrow_type):
        return _fixed_lists(cast("Sequence[pa.FixedSizeListArray[Any, Any]]", shards))
    if pa.types.is_primitive(arrow_type):
        return _numbers(shards)

    def gather(wanted: _Wanted) -> pa.Array[Any]:
        return pa.concat_arrays(
            [
                pc.take(shard, pa.array(rows, pa.int64()), boundscheck=False)
                for shard, rows in zip(shards, wanted, strict=True)
            ]
        )

    return gather


def _numbers(shards: Sequence[pa.Array[Any]]) -> _Gather:
    arrays = [shard.to_numpy(zero_copy_only=True) for shard in shards]

    def gather(wanted: _Wanted) -> pa.Array[Any]:
        gathered: pa.Array[Any] = pa.array(_joined(arrays, wanted))
        return gathered

    return gather


def _fixed_lists(shards: Sequence[pa.FixedSizeListArray[Any, Any]]) -> _Gather:
    size = shards[0].type.list_size
    values = [shard.flatten().to_numpy(zero_copy_only=True) for shard in shards]
    dtype = values[0].dtype
    items = [array.view(np.dtype((np.void, size * dtype.itemsize))) for array in values]

    def gather(wanted: _Wanted) -> pa.Array[Any]:
        lists: pa.Array[Any] = pa.FixedSizeListArray.from_arrays(
            pa.array(_joined(items, wanted).view(dtype)), size
        )
        return lists.cast(shards[0].type)

    return gather


def _joined(shards: Sequence[NDArray[Any]], wanted: _Wanted) -> NDArray[Any]:
    out = np.empty(sum(map(len, wanted)), shards[0].dtype)
    at = 0
    for shard, rows in zip(shards, wanted, strict=True):
        np.take(shard, rows, out=out[at : at + len(rows)], mode="clip")
        at += len(rows)
    return out
