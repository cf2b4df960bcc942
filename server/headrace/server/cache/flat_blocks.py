"""Read blocks of a dataset with columns in the form in which they are sent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

import pyarrow as pa

from headrace.server.cache.disk.disk_blocks import DiskBlocks
from headrace.server.cache.fetch.block_runs import (
    block_schema,
    read_run,
    read_verified,
    run_blocks,
)
from headrace.server.layout.flatten_columns import lower_field
from headrace.storage import OpenDataset, ReadBlock, VerifiedBlocks, Verify

_T = TypeVar("_T")


class FlatBlocks:
    """Reads the blocks of a dataset, and flattens nested columns."""

    def __init__(self, dataset: OpenDataset | DiskBlocks, *, item_nulls: bool = False) -> None:
        """Determine what each column becomes.

        Args:
            dataset: The dataset; the caller closes it.
            item_nulls: Whether lists may hold null items.
        """
        self._dataset = dataset
        self._plan = [
            (index, lowered)
            for index, field in enumerate(dataset.schema)
            for lowered in lower_field(field, item_nulls=item_nulls)
        ]
        self._schema = pa.schema(
            [pa.field(lowered.name, lowered.type, lowered.nullable) for _, lowered in self._plan]
        )

    def read_block(self, block: int) -> pa.RecordBatch:
        """Fetch, verify and decode one block, as `OpenDataset.read_block` does."""
        return self._flat(self._dataset.read_block(block))

    def run_blocks(self, max_bytes: int) -> int:
        """Return how many neighbouring blocks to read together; see the dataset's method."""
        return run_blocks(self._dataset, max_bytes)

    def read_run(self, blocks: Sequence[int]) -> Iterator[ReadBlock]:
        """Fetch, verify and decode blocks, neighbours together; errors are values."""
        for read in read_run(self._dataset, blocks):
            content = read.content
            flat = self._flat(content) if isinstance(content, pa.RecordBatch) else content
            yield read if flat is content else replace(read, content=flat)

    @property
    def block_schema(self) -> pa.Schema | None:
        """The schema of stored blocks; None if they must be decoded, or columns are nested."""
        is_flat = self._schema.equals(self._dataset.schema)
        return block_schema(self._dataset) if is_flat else None

    def read_verified(
        self, blocks: Sequence[int], verify: Verify[_T]
    ) -> Iterator[ReadBlock | VerifiedBlocks[_T]]:
        """Read blocks as `read_run` does, but decode only those that ``verify`` does not take."""
        return read_verified(self._dataset, blocks, verify)

    def _flat(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._schema.equals(batch.schema):
            return batch
        columns = [lowered.extract(batch.column(index)) for index, lowered in self._plan]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)
