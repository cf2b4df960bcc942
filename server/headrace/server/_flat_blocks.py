"""Blocks of a dataset with their columns as they travel."""

from __future__ import annotations

import pyarrow as pa

from headrace.server._disk_blocks import DiskBlocks
from headrace.server._lower import lower_field
from headrace.storage import OpenDataset


class FlatBlocks:
    """Reads the blocks of a dataset, and takes nested columns apart."""

    def __init__(self, dataset: OpenDataset | DiskBlocks, *, item_nulls: bool = False) -> None:
        """Work out once what each column becomes.

        Args:
            dataset: Stays the caller's.
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
        batch = self._dataset.read_block(block)
        if self._schema.equals(batch.schema):
            return batch
        columns = [lowered.extract(batch.column(index)) for index, lowered in self._plan]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)
